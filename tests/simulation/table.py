"""A compacted topic as a table under faults: writers that own its keys, and a reader of the whole of it."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from millstream.errors import error_for
from millstream.protocol.batch import Record, decode_records, encode_batch
from millstream.protocol.fetched import whole_batches
from millstream.protocol.messages import FetchRequest, ProduceRequest
from tests.simulation.client import EARLIEST, LATEST, RETRY_S, Client, expect_retriable
from tests.simulation.consumer import FETCH_VERSION
from tests.simulation.history import History
from tests.simulation.host import Host
from tests.simulation.machine import PORT, BrokerMachine
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.world import SimulationFailed, World

TOPIC = "table"
DURATION_S = 40.0
HEAL_S = 90.0
KEYS = 12
PRODUCE_VERSION = 9

Table = dict[bytes, int]


@dataclass(slots=True)
class TableOutcome:
    """What one seed did, and what was wrong with it."""

    seed: int
    trace_hash: str = ""
    failure: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def simulate_table(seed: int) -> TableOutcome:
    """Run one seed whole."""
    world = World(seed, trace_lines=200_000)
    run = _Run(world)
    outcome = TableOutcome(seed)
    logger = logging.getLogger("millstream")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        world.run(run.main(), limit_s=DURATION_S + 10 * HEAL_S)
    except SimulationFailed as failure:
        outcome.failure = str(failure)
    except Exception:
        outcome.failure = traceback.format_exc()
    finally:
        logger.setLevel(level)
    outcome.trace_hash = world.trace.hash()
    outcome.trace = list(world.trace.lines)
    outcome.counts = Counter(
        acks=sum(writer.acked for writer in run.writers),
        tables=run.reader.tables,
        compactions=sum("compacted table-0" in line for line in outcome.trace),
        interruptions=sum("compaction ended early" in line for line in outcome.trace),
        swaps_finished_at_start=sum("putting the cleaned segment" in line for line in outcome.trace),
        faults=run.machine.faults.total(),
    )
    return outcome


class Writer:
    """Counts up the values of its keys, one batch at a time; now and then it deletes one."""

    def __init__(self, name: str, client: Client, random: Random) -> None:
        self.acked = 0
        self.is_over = False
        self.rest_s = 0.04
        """How long it pauses at most."""
        self.table: Table = {}
        """What was acknowledged."""
        self._client = client
        self._random = random
        self._keys = [f"{name}-{number}".encode() for number in range(KEYS)]
        self._next_value = 0

    async def run(self) -> None:
        random = self._random
        producer_id, epoch = await self._client.producer_id()
        sequence = 0
        while not self.is_over:
            changes: dict[bytes, int | None] = {}
            for key in random.sample(self._keys, random.randint(1, 4)):
                self._next_value += 1
                changes[key] = None if random.random() < 0.2 else self._next_value
            records = [
                Record(key=key, value=None if value is None else b"%d" % value, timestamp=1)
                for key, value in changes.items()
            ]
            batch = encode_batch(
                records,
                codec=random.choice((0, 0, 1, 3)),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            await self._send(bytes(batch))
            sequence += len(records)
            for key, value in changes.items():
                if value is None:
                    self.table.pop(key, None)
                else:
                    self.table[key] = value
            self.acked += 1
            await asyncio.sleep(random.uniform(0.0, self.rest_s))

    async def _send(self, batch: bytes) -> None:
        place = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[place])
        while True:
            answer = await self._client.until_done(
                ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]), PRODUCE_VERSION
            )
            code = answer.responses[0].partition_responses[0].error_code
            if not code:
                return
            expect_retriable("a batch", code)
            self._client.refused()
            await asyncio.sleep(RETRY_S)


class TableReader:
    """Reads the whole topic again and again: no key ever goes back to an older value."""

    def __init__(self, client: Client, random: Random) -> None:
        self.tables = 0
        self.rest_s = 1.0
        """How long it pauses at most."""
        self._client = client
        self._random = random

    async def run(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(self._random.uniform(0.0, self.rest_s))

    async def read(self) -> Table:
        end = await self._client.offset(0, LATEST)
        offset = await self._client.offset(0, EARLIEST)
        latest: Table = {}
        deleted: set[bytes] = set()
        while offset < end:
            place = FetchRequest.FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=self._random.choice((1, 1000, 100_000))
            )
            topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[place])
            request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[topic])
            answer = (await self._client.until_done(request, FETCH_VERSION)).responses[0].partitions[0]
            if answer.error_code:
                if error_for(answer.error_code).__name__ != "OffsetOutOfRange":
                    expect_retriable("a fetch", answer.error_code)
                self._client.refused()
                await asyncio.sleep(RETRY_S)
                return await self.read()  # a power loss may have taken what was not acknowledged
            data = memoryview(answer.records or b"")
            for record in decode_records(data, from_offset=offset):
                if record.offset < offset or record.key is None:
                    raise SimulationFailed(f"offset {record.offset} was read after {offset - 1}")
                offset = record.offset + 1
                deleted.discard(record.key)
                if record.value is None:
                    deleted.add(record.key)
                elif latest.get(record.key, 0) > int(record.value):
                    raise SimulationFailed(f"{record.key!r} went back to {record.value!r}")
                else:
                    latest[record.key] = int(record.value)
            for header, _ in whole_batches(data, True):
                offset = max(offset, header.next_offset)  # the last batches may have no records
            if not data:
                break
        self.tables += 1
        return {key: value for key, value in latest.items() if key not in deleted}


class _Run:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random = Random(world.random.getrandbits(64))
        self.network = Network(world)
        settings = {
            "log.cleaner.backoff.ms": random.choice(("100", "700")),
            "log.cleaner.min.cleanable.ratio": random.choice(("0.01", "0.4")),
            "log.cleaner.dedupe.buffer.size": random.choice(("200", "1000000")),
            "log.cleaner.io.buffer.size": random.choice(("100", "524288")),
            "log.cleaner.threads": random.choice(("1", "2")),
            "log.flush.offset.checkpoint.interval.ms": "5000",
        }
        host = Host(world, self.network, "broker")
        self.machine = BrokerMachine(world, host, History(is_flushed_before_ack=True), TOPIC, 1, 1, settings)
        self.machine.host.disk.cold_probability = random.choice((0.0, 0.3))
        self.clients: list[Host] = []
        self.writers: list[Writer] = []
        self.reader: TableReader

    async def main(self) -> None:
        random = self.random
        await self.machine.boot()
        admin = self._host("admin").start()
        client = Client("broker", PORT, TOPIC)
        configs = {
            "cleanup.policy": "compact",
            "flush.before.ack": "true",
            "internal.segment.bytes": random.choice(("1000", "4000")),
            "index.interval.bytes": "200",
            "delete.retention.ms": random.choice(("0", "2000", "100000")),
            "file.delete.delay.ms": random.choice(("0", "1000")),
        }
        await admin.call(client.create_topic(1, configs))
        working = []
        for name in ("left", "right"):
            process = self._host(name).start()
            self.writers.append(Writer(name, Client("broker", PORT, TOPIC), process.random))
            working.append(asyncio.ensure_future(process.call(self.writers[-1].run())))
        process = self._host("reader").start()
        self.reader = TableReader(Client("broker", PORT, TOPIC), process.random)
        process.start(self.reader.run())
        nemesis = Nemesis(self.world, self.network, self.machine, [host.name for host in self.clients])
        await nemesis.run(DURATION_S)
        for writer in self.writers:
            writer.is_over = True
        async with asyncio.timeout(HEAL_S):
            await asyncio.gather(*working)
        await asyncio.sleep(5.0)
        expected = self.writers[0].table | self.writers[1].table
        for _ in range(2):
            reader = self._host(f"reader of {self.reader.tables}").start()
            last = TableReader(Client("broker", PORT, TOPIC), reader.random)
            if (found := await reader.call(last.read())) != expected:
                raise SimulationFailed(f"the table is {found}, not {expected}")
            await self.machine.stop()
            await self.machine.boot()
        await self.machine.stop()
        for host in self.clients:
            host.end()

    def _host(self, name: str) -> Host:
        host = Host(self.world, self.network, name)
        self.clients.append(host)
        return host
