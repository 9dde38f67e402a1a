"""A replicated topic whose oldest records go all the time: on request, and by size.

One partition is written by an idempotent producer, the other in transactions. What is above the start is
there, whole and in order, whoever leads and however far a replica had lagged behind; what was aborted is
never seen, though the records before it, and with them the beginning of its transaction, are gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.brokers import Brokers
from tests.simulation.client import EARLIEST, LATEST, RETRY_S
from tests.simulation.cluster_trimmer import ClusterTrimmer, Seen
from tests.simulation.committed_reader import Unreadable, read_committed
from tests.simulation.consumer import Consumer
from tests.simulation.history import Entry, History, Trim
from tests.simulation.host import Process
from tests.simulation.leader_client import LeaderClient
from tests.simulation.ledger import CommittedRead, Fate, Ledger, Place
from tests.simulation.start_watch import StartWatch
from tests.simulation.transactional import NEW, Abortable, Fenced, TransactionalProducer, Unanswered
from tests.simulation.workload import IdempotentProducer

NAME = "trimmed"
EVENTS: Place = (NAME, 0)
TRANSACTIONS: Place = (NAME, 1)
PLACES = (EVENTS, TRANSACTIONS)
CHECK_INTERVAL_MS = 1500
REST_S = 1.0
"""How long producers and readers pause at most."""
OUT_OF_RANGE = "OffsetOutOfRange"


class TrimmedConsumer(Consumer):
    """Goes on at the start when what it wants is gone."""

    resets = 0

    async def _reset(self, partition: int) -> None:
        """Another broker may lead by now, whose log starts before that."""
        start = await self.client.offset(partition, EARLIEST)
        if self.position[partition] < start:
            self._run += 1
            self.resets += 1
            self.position[partition] = start
        elif self.position[partition] > await self.client.offset(partition, LATEST):
            text = f"{self.name}: {partition}@{self.position[partition]} is beyond the end"
            self.history.complaints.append(text)


class Writer:
    """Writes transactions, one after the other, each of several batches, and aborts some."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self.is_over = False
        self._producer = producer

    async def run(self) -> None:
        producer = self._producer
        await producer.arrive()
        while not self.is_over:
            try:
                await self._write()
            except (Abortable, Fenced, Unanswered):
                await producer.arrive()
            await asyncio.sleep(producer.random.uniform(0.0, 0.5))

    async def _write(self) -> None:
        producer, random = self._producer, self._producer.random
        producer.begin()
        for _ in range(random.randint(1, 3)):
            padding = "x" * random.choice((0, 0, 300))
            await producer.write(TRANSACTIONS, [padding] * random.choice((1, 2, 8)))
            await asyncio.sleep(random.choice((0.0, 0.1, 0.5)) * random.random())
        await producer.end(random.random() < 0.6)


class TrimmedTopic:
    """Those who write, read and trim the topic, and what they found."""

    def __init__(
        self,
        start: Callable[[str], Process],
        make_brokers: Callable[[Process], Brokers],
        look: Callable[[Place], Seen],
        random: Random,
    ) -> None:
        """`start` starts a client's process. `look` sees a partition from inside."""
        self.retention_bytes = random.choice((-1, -1, 10_000, 30_000))
        self.configs = {
            "internal.segment.bytes": random.choice(("5000", "20000")),
            "retention.bytes": str(self.retention_bytes),
            "file.delete.delay.ms": random.choice(("0", "2000")),
        }
        self.history = History(is_flushed_before_ack=True)
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self._start = start
        self._make_brokers = make_brokers
        self._look = look
        self._working: list[asyncio.Future[Any]] = []
        self._programs: list[Any] = []
        self._consumer: TrimmedConsumer
        self.watch: StartWatch

    def begin(self) -> None:
        process, brokers = self._client("trim-producer")
        client = LeaderClient(brokers, *EVENTS)
        producer = IdempotentProducer(
            "p", client, self.history, process.random, process.clock.now_ms, acks=-1
        )
        producer.rest_s = REST_S
        producer.are_deleted = lambda partition, offset: (
            self.retention_bytes >= 0 or self.history.trimmed(partition) > offset
        )
        self._work(process, producer, producer.run([EVENTS[1]]))
        process, brokers = self._client("trim-writer")
        transactional = TransactionalProducer(
            "trim", "trim", brokers, self.ledger, process.random, process.clock.now_ms, version=NEW
        )
        transactional.are_deleted = lambda place, end: (
            self.retention_bytes >= 0 or self.history.trimmed(place[1]) >= end
        )
        self._work(process, writer := Writer(transactional), writer.run())
        process, brokers = self._client("trimmer")
        self.trimmer = ClusterTrimmer(
            NAME, len(PLACES), brokers, self.history, process.random, lambda index: self._look((NAME, index))
        )
        if self.retention_bytes >= 0:
            self.trimmer.rests_s = (0.5, 3.0, 20.0)  # so that retention finds something
        self._work(process, self.trimmer, self.trimmer.run())
        process, brokers = self._client("trim-consumer")
        client = LeaderClient(brokers, *EVENTS)
        self._consumer = TrimmedConsumer("c", client, self.history, process.random)
        process.start(self._consumer.run([EVENTS[1]]))
        process, brokers = self._client("trim-reader")
        process.start(self._read(brokers, TRANSACTIONS, process.random))

    def _client(self, name: str) -> tuple[Process, Brokers]:
        process = self._start(name)
        return process, self._make_brokers(process)

    def _work(self, process: Process, program: Any, main: Any) -> None:
        self._programs.append(program)
        self._working.append(asyncio.ensure_future(process.call(main)))

    async def end(self) -> None:
        """Let all of them come to their end."""
        for program in self._programs:
            program.is_over = True
        await asyncio.gather(*self._working)

    async def _read(self, brokers: Brokers, place: Place, random: Random) -> None:
        """Read what is committed, for ever."""
        offset = 0
        while True:
            values, offset = await self._read_some(brokers, place, offset, random.choice((1, 1000, 100_000)))
            self.ledger.reads += [CommittedRead("trim-reader", place, at, value) for at, value in values]
            await asyncio.sleep(random.uniform(0.0, REST_S))

    async def _read_some(
        self, brokers: Brokers, place: Place, offset: int, max_bytes: int
    ) -> tuple[list[tuple[int, str]], int]:
        try:
            return await read_committed(brokers, place, offset, max_bytes)
        except Unreadable as error:
            if str(error) == OUT_OF_RANGE:
                self.counts["cluster resets"] += 1
                start = await LeaderClient(brokers, *place).offset(place[1], EARLIEST)
                return [], max(offset, start)
        except OSError:
            pass
        await asyncio.sleep(RETRY_S)
        return [], offset

    # The end

    async def read_final(self) -> None:
        """All that is left, read by one who is new, and what its start is worth."""
        process, brokers = self._client("trim-auditor")
        for place in PLACES:
            log = await process.call(self._read_all(brokers, place))
            if place == EVENTS:
                self.history.final[place[1]] = [Entry(*each) for each in log]
            else:
                self.ledger.final[place] = log
        self.counts += self.trimmer.counts
        self.counts["starts moved"] = self.watch.moves
        self.counts["starts by size"] = self.watch.by_size
        self.counts["cluster resets"] += self._consumer.resets
        self.counts["trimmed acks"] = len(self.history.acks)
        self.counts["trimmed reads"] = len(self.history.reads) + len(self.ledger.reads)
        self.counts["trimmed aborts"] = sum(fate is Fate.ABORTED for fate in self.ledger.fates())

    async def _read_all(self, brokers: Brokers, place: Place) -> list[tuple[int, str]]:
        client = LeaderClient(brokers, *place)
        offset = await client.offset(place[1], EARLIEST)
        end = await client.offset(place[1], LATEST)
        found: list[tuple[int, str]] = []
        while offset < end:
            values, offset = await self._read_some(brokers, place, offset, 1_000_000)
            found += values
        return found

    def judge(self) -> None:
        """Complain, in the history, of starts that nobody asked for, and of transactions with holes."""
        for place in PLACES:
            replicas = {name: replica for name, (replica, _) in self._look(place).replicas.items()}
            for name, replica in replicas.items():
                start_offset = replica.log.start_offset
                if start_offset <= self.history.trimmed(place[1]):
                    continue
                if not 0 <= self.retention_bytes // 2 <= replica.log.size_bytes:
                    text = f"{place} on {name} starts at {start_offset}, and {replica.log.size_bytes} bytes"
                    self.history.complaints.append(f"{text} are left, of {self.retention_bytes} to be kept")
            if place == EVENTS:
                log = self.history.final[place[1]]
                starts = [one.log.start_offset for one in replicas.values()]
                gone = log[0].offset if log else max(starts, default=0)
        self.history.trims = [Trim(EVENTS[1], gone, 0.0)]  # all the rest must be there
        final = [value for _, value in self.ledger.final[TRANSACTIONS]]
        seen = set(final)
        expected = [
            value
            for transaction in self.ledger.transactions.values()
            if transaction.fate is Fate.COMMITTED
            or (
                transaction.fate is Fate.ASKED
                and not seen.isdisjoint(transaction.values.get(TRANSACTIONS, ()))
            )
            for value in transaction.values.get(TRANSACTIONS, ())
        ]
        if final != expected[len(expected) - len(final) :]:
            missing = [value for value in expected if value not in seen]
            self.history.complaints.append(
                f"{TRANSACTIONS}: {len(final)} values are no end of {len(expected)}; missing {missing[-5:]}"
            )
