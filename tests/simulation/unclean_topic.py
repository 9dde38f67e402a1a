"""A replicated topic that asks for unclean elections, with few replicas: what is acknowledged may be lost.

All the rest holds: what an offset holds in a leader epoch never changes, whoever is asked; replicas become
equal; producers and consumers go on by themselves; a consumer that is told of each cut has in the end what is
there, no more and no less; and once all replicas are in sync again no more is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from millstream.errors import OffsetOutOfRange, error_for
from millstream.protocol.batch import decode_records
from millstream.protocol.fetched import whole_batches
from millstream.protocol.messages import FetchRequest
from tests.simulation.brokers import Brokers
from tests.simulation.client import LATEST, RETRY_S
from tests.simulation.consumer import text_of
from tests.simulation.history import History, Loss
from tests.simulation.host import Process
from tests.simulation.leader_client import LeaderClient
from tests.simulation.workload import IdempotentProducer, PlainProducer, Sender

NAME = "unclean"
PLACE = (NAME, 0)
REPLICAS = 2
CONFIGS = {
    "unclean.leader.election.enable": "true",
    "min.insync.replicas": "1",
    "internal.segment.bytes": "20000",
}
FETCH_VERSION = 12
LAST_ACKS = 5
"""How much each producer must be able to write in the end."""
REST_S = 1.0
"""How long producers pause at most."""
PATIENCE_S = 30.0
ALL = "all"
"""The producer that waits for all replicas in sync."""


class EpochReader:
    """Reads for ever; where the log was cut off it forgets what came after, and goes on there (KIP-320)."""

    def __init__(self, topic: UncleanTopic, brokers: Brokers, random: Random) -> None:
        self.log: list[tuple[int, str]] = []
        """What it has read, each with its leader epoch: where it is read next is how much that is."""
        self._topic = topic
        self._brokers = brokers
        self._random = random

    async def run(self) -> None:
        while True:
            await self.poll(self._random.choice((1, 1000, 100_000)))
            await asyncio.sleep(self._random.uniform(0.0, 0.2))  # it is seldom far behind a cut

    async def poll(self, max_bytes: int) -> None:
        partition = FetchRequest.FetchPartition(
            partition=0,
            fetch_offset=len(self.log),
            last_fetched_epoch=self._epoch,
            partition_max_bytes=max_bytes,
        )
        topic = FetchRequest.FetchTopic(topic=NAME, partitions=[partition])
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=max_bytes, topics=[topic])
        try:
            answer = await self._brokers.ask_leader(*PLACE, request, FETCH_VERSION)
        except OSError:
            await asyncio.sleep(RETRY_S * self._random.random())
            return
        found = answer.responses[0].partitions[0]
        if found.error_code == OffsetOutOfRange.code:
            self._topic.counts["unclean resets"] += 1
            self.log.clear()  # the leader has nothing as old as that
        elif found.error_code:
            self._brokers.forget_leader(*PLACE)
            if not error_for(found.error_code).retriable:
                self._topic.complain(f"is refused for good: {error_for(found.error_code).__name__}")
            await asyncio.sleep(RETRY_S * self._random.random())
        elif found.diverging_epoch is not None and found.diverging_epoch.epoch >= 0:
            self._topic.counts["diverged consumers"] += 1
            self._cut_off(found.diverging_epoch.epoch, found.diverging_epoch.end_offset)
        else:
            self._take(memoryview(found.records or b""))

    @property
    def _epoch(self) -> int:
        return self.log[-1][0] if self.log else -1

    def _cut_off(self, epoch: int, end_offset: int) -> None:
        """Keep what is of the leader's epochs up to `epoch`, which ends there."""
        before = len(self.log), self._epoch
        del self.log[end_offset:]
        while self._epoch > epoch:
            self.log.pop()
        if len(self.log) == before[0]:
            self._topic.complain(f"diverges at {end_offset} in epoch {epoch} from {before}, which is no cut")

    def _take(self, data: memoryview) -> None:
        for header, position in whole_batches(data, True):
            if header.leader_epoch < self._epoch:
                self._topic.complain(f"has epoch {header.leader_epoch} after {self._epoch} at {header}")
            for record in decode_records(data[position : position + header.size]):
                self._topic.note(header.leader_epoch, record.offset, value := text_of(record))
                if record.offset > len(self.log):
                    self._topic.complain(f"has {value} at {record.offset}, and nothing at {len(self.log)}")
                if record.offset >= len(self.log):
                    missing = record.offset - len(self.log)
                    self.log += [(header.leader_epoch, "")] * missing + [(header.leader_epoch, value)]


class UncleanTopic:
    """Those who write and read the topic, and what they found."""

    def __init__(
        self, start: Callable[[str], Process], make_brokers: Callable[[Process], Brokers], history: History
    ) -> None:
        """`start` starts a client's process; `history` takes the complaints."""
        self.counts: Counter[str] = Counter()
        self._start = start
        self._make_brokers = make_brokers
        self._complaints = history.complaints
        # Producers are ready for a loss at any time.
        self._sent = History(is_flushed_before_ack=False, losses=[Loss(0.0, {})])
        self._seen: dict[tuple[int, int], str] = {}
        self._producers: list[Sender] = []
        self._working: list[asyncio.Future[Any]] = []

    def complain(self, text: str) -> None:
        self._complaints.append(f"the topic {NAME} {text}")

    def note(self, epoch: int, offset: int, value: str) -> None:
        """Somebody has read a record."""
        known = self._seen.setdefault((epoch, offset), value)
        if known != value:
            self.complain(f"has both {known} and {value} at {offset} in epoch {epoch}")

    def begin(self) -> None:
        for kind, acks in ((IdempotentProducer, -1), (PlainProducer, 1)):
            process = self._start(f"unclean-{kind.__name__}")
            client = LeaderClient(self._make_brokers(process), *PLACE)
            producer = kind(
                ALL if acks < 0 else "one",
                client,
                self._sent,
                process.random,
                process.clock.now_ms,
                acks=acks,
            )
            producer.rest_s = REST_S
            self._producers.append(producer)
            self._working.append(asyncio.ensure_future(process.call(producer.run([0]))))
        process = self._start("unclean-reader")
        self._reader = EpochReader(self, self._make_brokers(process), process.random)
        process.start(self._reader.run())

    async def end(self) -> None:
        """All replicas are in sync: what is written from now on is there in the end."""
        loop = asyncio.get_running_loop()
        healed_at, before = loop.time(), [producer.acked for producer in self._producers]
        while any(
            producer.acked < acked + LAST_ACKS
            for producer, acked in zip(self._producers, before, strict=True)
        ):
            await asyncio.sleep(0.1)
        for producer in self._producers:
            producer.is_over = True
        await asyncio.gather(*self._working)
        process = self._start("unclean-auditor")
        final = await process.call(self._read_all(process))
        self.counts["unclean acks"] = len(self._sent.acks)
        for ack in self._sent.acks:
            if final[ack.offset : ack.offset + 1] != [ack.value]:
                self.counts["unclean losses"] += 1
                if ack.sent_at >= healed_at and self._sent.sends[ack.value].producer == ALL:
                    self.complain(f"has not {ack}, which all replicas had")
        give_up = loop.time() + PATIENCE_S
        while (seen := [value for _, value in self._reader.log])[: len(final)] != final:
            if loop.time() > give_up:
                wrong = [n for n, value in enumerate(final) if seen[n : n + 1] != [value]]
                self.complain(f"was read otherwise, up to {len(seen)}, at {wrong[:3]} to {wrong[-1]}")
                break
            await asyncio.sleep(0.2)

    async def _read_all(self, process: Process) -> list[str]:
        brokers = self._make_brokers(process)
        end = await LeaderClient(brokers, *PLACE).offset(0, LATEST)
        reader = EpochReader(self, brokers, process.random)
        while len(reader.log) < end:
            await reader.poll(1_000_000)
        return [value for _, value in reader.log]
