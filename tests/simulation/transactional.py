"""A transactional producer: the steps of one transaction, by the old protocol or by KIP-890's.

By KIP-890's (transaction version 2) whatever is not answered is asked again: the epoch, which is new with
each transaction, keeps a late copy from touching a later one. The old protocol has no such guard, so a
producer that speaks it takes a new epoch whenever an answer stayed away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from millstream.errors import (
    DuplicateSequenceNumber,
    FencedInstanceId,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    RebalanceInProgress,
    TransactionAbortable,
    UnknownMemberId,
    error_for,
)
from millstream.protocol.batch import encode_batch
from millstream.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from millstream.protocol.record import Record
from tests.simulation.brokers import GROUP, TRANSACTION, Brokers
from tests.simulation.client import RETRY_S
from tests.simulation.ledger import Arrival, Fate, Ledger, Place, Transaction
from tests.simulation.loop import SimLoop

FENCED = {ProducerFenced.code, InvalidProducerEpoch.code}
ABORTABLE = {TransactionAbortable.code, InvalidTxnState.code}
LEFT_GROUP = {
    IllegalGeneration.code,
    UnknownMemberId.code,
    RebalanceInProgress.code,
    FencedInstanceId.code,
}
NEW, OLD = 2, 1


class Fenced(Exception):
    """The producer may do nothing more with the epoch it has."""


class Unanswered(Exception):
    """An answer stayed away, and asking again is not safe."""


class Abortable(Exception):
    """The transaction can only be aborted."""


class TransactionalProducer:
    """One instance of a producer with a transactional id."""

    def __init__(
        self,
        transactional_id: str,
        instance: str,
        brokers: Brokers,
        ledger: Ledger,
        random: Random,
        now_ms: Callable[[], int],
        *,
        version: int,
        timeout_ms: int = 6000,
    ) -> None:
        self.transactional_id = transactional_id
        self.instance = instance
        self.brokers = brokers
        self.ledger = ledger
        self.random = random
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self._now_ms = now_ms
        self._count = 0
        self._sequences: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self.are_deleted: Callable[[Place, int], bool] = lambda _, __: False
        """Whether the records of a partition below an offset may be gone: a new leader does not know then
        who wrote them, and takes no batch but a first one."""
        self._added: set[object] = set()
        self.transaction: Transaction | None = None

    # Steps

    async def arrive(self) -> None:
        """Get an id and an epoch; whatever an earlier instance left open is aborted."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        while True:
            try:
                answer = await self._ask_coordinator(request, 4 if self.version == OLD else 5)
            except OSError:
                await self._wait()
                continue
            if not answer.error_code:
                break
            if answer.error_code not in FENCED:  # another came at the same time
                self._expect(answer.error_code, "arriving", ())
            await self._wait()
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        now = asyncio.get_running_loop().time()
        self.ledger.arrivals.append(Arrival(self.producer_id, self.epoch, now))
        self._log(f"arrives as producer {self.producer_id} with epoch {self.epoch}")
        self.transaction = None

    def begin(self) -> Transaction:
        self._count += 1
        self._added.clear()
        name = f"{self.instance}.{self._count}"
        self.transaction = self.ledger.open(name, self.producer_id, self.epoch)
        return self.transaction

    async def write(self, place: Place, payloads: list[str]) -> None:
        """Add values to the open transaction; done when acknowledged."""
        transaction = self.transaction
        assert transaction is not None
        written = transaction.values.setdefault(place, [])
        values = [
            f"{transaction.name}:{place[0]}-{place[1]}-{len(written) + number}:{payload}"
            for number, payload in enumerate(payloads)
        ]
        written += values
        if self.version == OLD and place not in self._added:
            await self._add_partition(place)
        sequence = self._sequences.get(place, 0)
        now_ms = self._now_ms()
        data = encode_batch(
            [Record(value=value.encode(), timestamp=now_ms) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        partition = ProduceRequest.PartitionProduceData(index=place[1], records=data)
        topic = ProduceRequest.TopicProduceData(name=place[0], partition_data=[partition])
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=4000, topic_data=[topic]
        )
        while True:
            try:
                answer = await self.brokers.ask_leader(*place, request, 9 if self.version == OLD else 12)
            except OSError:
                await self._again()
                continue
            found = answer.responses[0].partition_responses[0]
            code = found.error_code
            if code in (0, DuplicateSequenceNumber.code):
                self._sequences[place] = sequence + len(values)
                self._ends[place] = found.base_offset + len(values)
                return
            self.brokers.forget_leader(*place)
            if code == OutOfOrderSequenceNumber.code and self.are_deleted(place, self._ends.get(place, 0)):
                self._log(f"is not known to the leader of {place} any more")
                raise Abortable(OutOfOrderSequenceNumber.__name__)
            self._expect(code, f"writing to {place}", ABORTABLE)
            await self._wait()

    async def commit_offsets(
        self, group: str, member_id: str, generation: int, offsets: dict[Place, int]
    ) -> None:
        """Make a group's positions part of the open transaction."""
        if self.version == OLD and group not in self._added:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            await self._until_done(add, 3, lambda answer: int(answer.error_code), "adding a group")
            self._added.add(group)
        topics: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=self.brokers.epoch(topic, index),
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        while True:
            try:
                version = 3 if self.version == OLD else 5
                answer = await self.brokers.ask_coordinator(GROUP, group, request, version)
            except OSError:
                await self._again()
                continue
            codes = {each.error_code for topic in answer.topics for each in topic.partitions}
            if codes == {0}:
                return
            self.brokers.forget_coordinator(GROUP, group)
            for code in codes - {0}:
                self._expect(code, "committing offsets", ABORTABLE | LEFT_GROUP)
            await self._wait()

    async def end(self, is_commit: bool) -> None:
        """Commit or abort."""
        transaction = self.transaction
        assert transaction is not None
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        if is_commit:
            transaction.fate = Fate.ASKED
            transaction.asked_at = asyncio.get_running_loop().time()
        is_first = True
        while True:
            try:
                answer = await self._ask_coordinator(request, 3 if self.version == OLD else 5)
            except OSError:
                is_first = False
                await self._again()
                continue
            if not answer.error_code:
                break
            if is_commit and is_first and answer.error_code in FENCED | ABORTABLE:
                transaction.fate = Fate.ABORTED
            self._expect(answer.error_code, "ending", ABORTABLE)
            # what is retriable may have been written, and be committed later
            is_first = False
            await self._wait()
        transaction.fate = Fate.COMMITTED if is_commit else Fate.ABORTED
        self._log(f"{transaction.name} of epoch {self.epoch} is {transaction.fate.value}")
        self.transaction = None
        if self.version == NEW:
            if (answer.producer_id, answer.producer_epoch) == (self.producer_id, self.epoch):
                self.ledger.complaints.append(f"{transaction.name} ended without a new epoch")
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()

    # Asking

    async def _add_partition(self, place: Place) -> None:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )

        def code(answer: Any) -> int:
            found = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            return int(found.partition_error_code)

        await self._until_done(request, 3, code, f"adding {place}")
        self._added.add(place)

    async def _until_done(self, request: Any, version: int, code_of: Callable[[Any], int], what: str) -> None:
        while True:
            try:
                answer = await self._ask_coordinator(request, version)
            except OSError:
                await self._again()
                continue
            code = code_of(answer)
            if not code:
                return
            self.brokers.forget_coordinator(TRANSACTION, self.transactional_id)
            self._expect(code, what, ABORTABLE)
            await self._wait()

    async def _ask_coordinator(self, request: Any, version: int) -> Any:
        answer = await self.brokers.ask_coordinator(TRANSACTION, self.transactional_id, request, version)
        if getattr(answer, "error_code", 0):
            self.brokers.forget_coordinator(TRANSACTION, self.transactional_id)
        return answer

    async def _again(self) -> None:
        if self.version == OLD:
            raise Unanswered
        await self._wait()

    def _expect(self, code: int, what: str, abortable: Any) -> None:
        """Raise what an error means; retriable ones are none."""
        error = error_for(code)
        self._log(f"is refused {what}: {error.__name__}")
        if code in FENCED:
            raise Fenced
        if code in abortable:
            raise Abortable(error.__name__)
        if not error.retriable:
            self.ledger.complaints.append(f"{self.instance} was refused for good {what}: {error.__name__}")
            raise Abortable(error.__name__)

    def _log(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            loop.world.log(f"{self.instance} {text}")

    async def _wait(self) -> None:
        await asyncio.sleep(self.random.uniform(0.01, RETRY_S))
