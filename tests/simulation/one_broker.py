"""One seed of the simulation of one broker: a workload, a nemesis, and the judgement."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

from tests.simulation.checker import Anomaly, check
from tests.simulation.churn import Churn
from tests.simulation.client import LATEST, Client
from tests.simulation.consumer import Consumer
from tests.simulation.history import Entry, History
from tests.simulation.host import Host
from tests.simulation.image import survived_end
from tests.simulation.machine import PORT, BrokerMachine
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.trimmer import Trimmer
from tests.simulation.workload import FireAndForget, IdempotentProducer, PlainProducer, Sender
from tests.simulation.world import SimulationFailed, World

TOPIC = "events"
PARTITIONS = 3
DURATION_S = 60.0
HEAL_S = 90.0
MIN_ACKS = 1000
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
PRODUCERS = (
    PlainProducer,
    IdempotentProducer,
    PlainProducer,
    IdempotentProducer,
    PlainProducer,
    IdempotentProducer,
    FireAndForget,
)


@dataclass(slots=True)
class Outcome:
    """What one seed did, and what was wrong with it."""

    seed: int
    trace_hash: str = ""
    anomalies: list[Anomaly] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    trace: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.anomalies


def simulate(
    seed: int,
    *,
    duration_s: float = DURATION_S,
    trace_lines: int = 400,
    favourite: str = "",
    configs: Mapping[str, str] = NO_CONFIGS,
) -> Outcome:
    """Run one seed whole. Never raises for what the broker did wrong: that is in the outcome.

    `favourite` is a fault to come often; `configs` are the topic's, in place of what the seed chose.
    """
    world = World(seed, trace_lines=trace_lines)
    run = _Run(world, duration_s, favourite, configs)
    outcome = Outcome(seed)
    try:
        world.run(run.main(), limit_s=duration_s + 10 * HEAL_S)
        outcome.anomalies = check(run.history)
    except SimulationFailed as failure:
        outcome.anomalies = [Anomaly("failure", str(failure))]
    except Exception:
        outcome.anomalies = [Anomaly("failure", traceback.format_exc())]
    outcome.trace_hash = world.trace.hash()
    outcome.faults = run.machine.faults
    outcome.counts = run.counts()
    outcome.virtual_s = world.now
    outcome.trace = list(world.trace.lines)
    return outcome


class _Run:
    def __init__(self, world: World, duration_s: float, favourite: str, configs: Mapping[str, str]) -> None:
        self.world = world
        self.duration_s = duration_s
        self.favourite = favourite
        self.random = Random(world.random.getrandbits(64))
        self.network = Network(world)
        random = self.random
        self.history = History(is_flushed_before_ack=random.random() < 0.5)
        self.topic_configs = {
            "internal.segment.bytes": random.choice(("10000", "30000", "200000")),
            "index.interval.bytes": random.choice(("100", "4096")),
            "flush.before.ack": "true" if self.history.is_flushed_before_ack else "false",
            "message.timestamp.type": random.choice(("CreateTime", "LogAppendTime")),
        }
        if random.random() < 0.3:
            self.topic_configs["flush.messages"] = random.choice(("1", "7", "100"))
        if random.random() < 0.3:
            self.topic_configs["flush.ms"] = random.choice(("100", "3000"))
        self.topic_configs.update(configs)
        self.history.is_flushed_before_ack = self.topic_configs["flush.before.ack"] == "true"
        settings = {"log.flush.offset.checkpoint.interval.ms": random.choice(("1000", "5000", "60000"))}
        host = Host(world, self.network, "broker")
        log_dirs = random.choice((1, 2))
        self.machine = BrokerMachine(world, host, self.history, TOPIC, PARTITIONS, log_dirs, settings)
        self.machine.host.disk.cold_probability = random.choice((0.0, 0.05, 0.5))
        self.producers: list[Sender] = []
        self.consumers: list[Consumer] = []
        self.clients: list[Host] = []
        self.churn: Churn
        self.trimmer: Trimmer

    def counts(self) -> Counter[str]:
        counts = Counter(
            acks=sum(producer.acked for producer in self.producers),
            records=len(self.history.acks),
            reads=sum(consumer.read for consumer in self.consumers),
            connections=self.network.connections_made,
            fsyncs=self.machine.host.disk.fsyncs,
            power_losses=len(self.history.losses),
            topics=self.churn.rounds,
            trims=sum(trim.done_at is not None for trim in self.history.trims),
            final=sum(map(len, self.history.final.values())),
        )
        counts["epoch_bumps"] = sum(
            producer.bumps for producer in self.producers if isinstance(producer, IdempotentProducer)
        )
        counts["excused"] = sum(
            self.history.is_excused(ack.partition, ack.offset, ack.sent_at) for ack in self.history.acks
        )
        return counts

    async def main(self) -> None:
        self.world.log(f"topic: {self.topic_configs}")
        await self.machine.boot()
        admin = self._host("admin").start()
        client = Client("broker", PORT, TOPIC)
        await admin.call(client.create_topic(PARTITIONS, self.topic_configs))
        churn = self._start_churn()
        trimming = self._start_trimmer()
        working = self._start_producers()
        self._start_consumers()
        names = [host.name for host in self.clients]
        nemesis = Nemesis(self.world, self.network, self.machine, names, self.favourite)
        await nemesis.run(self.duration_s)
        for producer in self.producers:
            producer.is_over = True
        self.churn.is_over = self.trimmer.is_over = True
        await self._in_time("creating and deleting topics", churn)
        await self._in_time("deleting records", trimming)
        await self._in_time("producers", asyncio.gather(*working))
        ends = [await admin.call(client.offset(partition, LATEST)) for partition in range(PARTITIONS)]
        await self._in_time("consumers", self._all_read(ends))
        first = await self._in_time("readers", self._final_log("reader-1", ends))
        await self.machine.stop()
        self._compare_with_disk(ends)
        await self.machine.boot()
        self.history.final = await self._in_time("readers", self._final_log("reader-2", ends))
        if first != self.history.final:
            self.history.complaints.append("a clean restart changed the log")
        await self.machine.stop()
        for host in self.clients:
            host.end()

    def _host(self, name: str) -> Host:
        host = Host(self.world, self.network, name)
        self.clients.append(host)
        return host

    def _start_churn(self) -> asyncio.Future[Any]:
        process = self._host("churn").start()
        self.churn = Churn(Client("broker", PORT, "churn"), self.history, process.random)
        return asyncio.ensure_future(process.call(self.churn.run()))

    def _start_trimmer(self) -> asyncio.Future[Any]:
        process = self._host("trimmer").start()
        self.trimmer = Trimmer(Client("broker", PORT, TOPIC), self.history, process.random, PARTITIONS)
        self.trimmer.is_over = self.random.random() < 0.5
        return asyncio.ensure_future(process.call(self.trimmer.run()))

    def _start_producers(self) -> list[Any]:
        working = []
        for number, kind in enumerate(PRODUCERS):
            host = self._host(f"producer-{number}")
            process = host.start()
            producer = kind(
                f"{kind.__name__[0].lower()}{number}",
                Client("broker", PORT, TOPIC),
                self.history,
                process.random,
                host.clock.now_ms,
                acks=0 if kind is FireAndForget else self.random.choice((-1, 1)),
            )
            if self.topic_configs["internal.segment.bytes"] == "200000":
                producer.large = 0.02
            partitions = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
            self.producers.append(producer)
            working.append(asyncio.ensure_future(process.call(producer.run(partitions))))
        return working

    def _start_consumers(self) -> None:
        for number in range(2):
            process = self._host(f"consumer-{number}").start()
            client = Client("broker", PORT, TOPIC)
            consumer = Consumer(
                f"c{number}", client, self.history, process.random, has_session=number % 2 == 1
            )
            self.consumers.append(consumer)
            process.start(consumer.run(range(PARTITIONS)))

    async def _in_time(self, who: str, work: Any) -> Any:
        """After the faults everyone makes progress."""
        try:
            async with asyncio.timeout(HEAL_S):
                return await work
        except TimeoutError:
            raise SimulationFailed(f"{who} are stuck {HEAL_S} s after the faults ended") from None

    async def _all_read(self, ends: list[int]) -> None:
        for consumer in self.consumers:
            while any(consumer.position[partition] < end for partition, end in enumerate(ends)):
                await asyncio.sleep(0.5)

    async def _final_log(self, name: str, ends: list[int]) -> dict[int, list[Entry]]:
        """The whole topic, read by a consumer that is new."""
        history = History(is_flushed_before_ack=True, trims=self.history.trims)
        process = self._host(name).start()
        reader = Consumer(name, Client("broker", PORT, TOPIC), history, process.random)
        process.start(reader.run(range(PARTITIONS)))
        while not reader.position or any(reader.position[p] < end for p, end in enumerate(ends)):
            await asyncio.sleep(0.5)
        logs: dict[int, list[Entry]] = {partition: [] for partition in range(PARTITIONS)}
        for read in history.reads:
            logs[read.partition].append(Entry(read.offset, read.value))
        self.history.complaints += history.complaints
        return logs

    def _compare_with_disk(self, ends: list[int]) -> None:
        for partition, end in enumerate(ends):
            on_disk = survived_end(self.machine.host.disk, self.machine.log_dirs, TOPIC, partition)
            if on_disk != end:
                text = f"the log of partition {partition} ends at {end}, its files at {on_disk}"
                self.history.complaints.append(text)
