"""Producers that write down what they sent, and what the broker said of it.

Values are unique. A plain producer has one request under way and repeats it until it is acknowledged,
so its values may appear twice. An idempotent one has up to five batches of a partition under way and
repeats them in order, with their sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from millstream.errors import (
    DuplicateSequenceNumber,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    UnknownProducerId,
    error_for,
)
from millstream.protocol.batch import encode_batch
from millstream.protocol.messages import ProduceRequest, ProduceResponse
from millstream.protocol.record import Record
from tests.simulation.client import REQUEST_TIMEOUT_S, RETRY_S, Client, expect_retriable
from tests.simulation.history import Ack, History

PRODUCE_VERSION = 9
IN_FLIGHT = 5
LARGE_BYTES = 70_000
CODECS = (0, 0, 0, 1, 2, 3, 4)
LOST_STATE = (OutOfOrderSequenceNumber.code, UnknownProducerId.code)


@dataclass(slots=True)
class Batch:
    """Values of one request, with the sequence of the first."""

    values: list[str]
    partition: int
    codec: int
    padding: bytes
    sequence: int = -1
    attempts: int = 0
    lowest_offset: int = 0
    """It is nowhere below this."""


class Sender:
    """What both kinds of producers do: make batches and send them."""

    def __init__(
        self,
        name: str,
        client: Client,
        history: History,
        random: Random,
        now_ms: Callable[[], int],
        acks: int,
    ) -> None:
        self.name = name
        self.client = client
        self.history = history
        self.random = random
        self.acks = acks
        self.acked = 0
        self.is_over = False
        self.large = 0.0
        """How often a batch is so large, and compressed, that the broker checks it in a thread."""
        self.rest_s = 0.6
        """How long it pauses at most between two rounds."""
        self._now_ms = now_ms
        self._sent: dict[int, int] = {}

    def batch(self, partition: int) -> Batch:
        first = self._sent.get(partition, 0)
        count = self.random.choice((1, 1, 1, 2, 4, 10))
        self._sent[partition] = first + count
        values = [self.history.send(self.name, partition, first + n) for n in range(count)]
        codec = self.random.choice(CODECS)
        padding = self.random.choice((0, 0, 0, 10, 60, 300))
        if codec and count == 1 and self.random.random() < self.large:
            padding = LARGE_BYTES
        return Batch(values, partition, codec, self.random.randbytes(padding))

    def request(self, batch: Batch, producer_id: int = -1, producer_epoch: int = -1) -> ProduceRequest:
        now_ms = self._now_ms()
        records = [
            Record(value=value.encode() + b"|" + batch.padding, timestamp=now_ms) for value in batch.values
        ]
        data = encode_batch(
            records,
            codec=batch.codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.sequence,
        )
        partition = ProduceRequest.PartitionProduceData(index=batch.partition, records=data)
        topic = ProduceRequest.TopicProduceData(name=self.client.topic, partition_data=[partition])
        batch.attempts += 1
        return ProduceRequest(acks=self.acks, timeout_ms=4000, topic_data=[topic])

    def acknowledge(self, batch: Batch, base_offset: int, sent_at: float) -> None:
        self.acked += 1
        now = asyncio.get_running_loop().time()
        for offset, value in enumerate(batch.values, base_offset):
            self.history.acks.append(Ack(value, batch.partition, offset, sent_at, now))

    def refused(self, answer: ProduceResponse.PartitionProduceResponse) -> None:
        error = error_for(answer.error_code)
        where = f"{self.name} is refused by partition {answer.index}"
        self.client.log(f"{where}: {error.__name__} {answer.error_message}")
        if answer.error_code not in LOST_STATE:
            expect_retriable(self.name, answer.error_code)
            self.client.refused()

    async def run(self, partitions: Sequence[int]) -> None:
        """Produce until it is over, and all that was begun is done."""
        raise NotImplementedError

    async def pause(self) -> None:
        if self.random.random() < 0.8:
            await asyncio.sleep(self.random.uniform(0.0, self.rest_s))


class PlainProducer(Sender):
    """One request at a time, repeated until acknowledged."""

    async def run(self, partitions: Sequence[int]) -> None:
        while not self.is_over:
            batch = self.batch(self.random.choice(partitions))
            while not await self._try(batch):
                await asyncio.sleep(self.random.uniform(0.0, RETRY_S))
            await self.pause()

    async def _try(self, batch: Batch) -> bool:
        sent_at = asyncio.get_running_loop().time()
        try:
            answer = await self.client.request(self.request(batch), PRODUCE_VERSION)
        except OSError:
            return False
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            self.refused(found)
            return False
        self.acknowledge(batch, found.base_offset, sent_at)
        return True


class FireAndForget(Sender):
    """acks=0: sends and hears nothing; what it sends may be lost, but not invented or torn."""

    async def run(self, partitions: Sequence[int]) -> None:
        while not self.is_over:
            batch = self.batch(self.random.choice(partitions))
            try:
                (await self.client.connection()).post(self.request(batch), PRODUCE_VERSION)
            except OSError:
                self.client.drop()
            await self.pause()


@dataclass(slots=True)
class Sequences:
    """What an idempotent producer knows of one partition: the next sequence, and what is under way."""

    next: int = 0
    sent: int = 0
    """Below it everything was sent before, and may be there though that was not acknowledged."""
    end: int = 0
    """The end of what was acknowledged."""
    pending: list[Batch] = field(default_factory=list)


class IdempotentProducer(Sender):
    """Up to five batches of a partition under way, repeated in order with their sequences."""

    bumps = 0

    are_deleted: Callable[[int, int], bool] = staticmethod(lambda _, __: False)
    """Whether records of a partition from an offset on may be gone, and with them who wrote them."""

    async def run(self, partitions: Sequence[int]) -> None:
        self.history.idempotent.add(self.name)
        self._id, self._epoch = await self.client.producer_id()
        self._state = {partition: Sequences() for partition in partitions}
        while not self.is_over or any(state.pending for state in self._state.values()):
            busy = [p for p, state in self._state.items() if state.pending]
            state = self._state[partition := self.random.choice(busy or list(partitions))]
            if not self.is_over:
                for _ in range(self.random.randint(0 if state.pending else 1, IN_FLIGHT)):
                    if len(state.pending) < IN_FLIGHT:
                        self._add(state, self.batch(partition))
            if not await self._round(state):
                await asyncio.sleep(self.random.uniform(0.0, RETRY_S))
            await self.pause()

    def _add(self, state: Sequences, batch: Batch) -> None:
        batch.sequence, batch.lowest_offset = state.next, state.end
        state.next += len(batch.values)
        state.pending.append(batch)

    async def _round(self, state: Sequences) -> bool:
        """Send all that is pending, take the answers in order; False if something must be repeated."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            connection = await self.client.connection()
            answers = [
                connection.send(self.request(batch, self._id, self._epoch), PRODUCE_VERSION)
                for batch in state.pending
            ]
            sent_before, state.sent = state.sent, state.next
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                answered = list(zip(state.pending, answers, strict=True))
                return await self._take(state, answered, sent_at, sent_before)
        except OSError:
            self.client.drop()
            return False

    async def _take(
        self,
        state: Sequences,
        answers: list[tuple[Batch, asyncio.Future]],
        sent_at: float,
        sent_before: int,
    ) -> bool:
        failed: int | None = None
        is_deleted = False
        for batch, answer in answers:
            found = (await answer).responses[0].partition_responses[0]
            if found.error_code == DuplicateSequenceNumber.code and failed is None:
                state.pending.remove(batch)
            elif not found.error_code:
                is_first_time = batch.sequence >= sent_before and not is_deleted
                if failed not in (None, RequestTimedOut.code) and is_first_time:
                    text = f"{self.name}: sequence {batch.sequence} was accepted after one that was refused"
                    self.history.complaints.append(f"{text} with {error_for(failed).__name__}")
                state.pending.remove(batch)
                state.end = max(state.end, found.base_offset + len(batch.values))
                self.acknowledge(batch, found.base_offset, sent_at)
            elif failed is None:
                failed = found.error_code
                is_deleted = failed in LOST_STATE and self.are_deleted(batch.partition, batch.lowest_offset)
                self.refused(found)
        if failed in LOST_STATE:
            self._start_over(failed, is_deleted)
        return failed is None

    def _start_over(self, code: int, is_deleted: bool) -> None:
        """The broker lost what it knew of this producer: go on with a new epoch, as KIP-360 says.

        Only a power loss may do that, and only where acknowledgements do not mean fsynced, or who deletes
        records that were not acknowledged yet: what is pending is then perhaps written once more.
        """
        if is_deleted:
            self.history.repeated.update(
                value for state in self._state.values() for batch in state.pending for value in batch.values
            )
        elif self.history.is_flushed_before_ack or not self.history.losses:
            name = error_for(code).__name__
            self.history.complaints.append(f"{self.name}: {name} though nothing was lost")
        self.bumps += 1
        self._epoch += 1
        for state in self._state.values():
            pending, state.pending, state.next, state.sent = state.pending, [], 0, 0
            for batch in pending:
                self._add(state, batch)
