"""One seed of transactions and groups on one broker: a bank, workers, groups, a nemesis, and the judgement.

Either all topics of the broker acknowledge only what is flushed, and it may lose power; or it does not,
and only its process may die.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tests.simulation.brokers import Brokers
from tests.simulation.checker import Anomaly
from tests.simulation.client import LATEST, Client
from tests.simulation.committed_reader import CommittedReader
from tests.simulation.consumer_member import ConsumerMember
from tests.simulation.group_reader import GroupReader
from tests.simulation.history import History
from tests.simulation.host import Host, Process
from tests.simulation.late_coordinator import LateCoordinator
from tests.simulation.ledger import Ledger, Place
from tests.simulation.ledger_checker import check_ledger
from tests.simulation.lives import Lives, Program
from tests.simulation.machine import PORT, BrokerMachine
from tests.simulation.member import Member, fetch_positions
from tests.simulation.nemesis import POWER_FAULTS, Nemesis
from tests.simulation.network import Network
from tests.simulation.one_broker import Outcome
from tests.simulation.transactional import NEW, OLD, TransactionalProducer
from tests.simulation.transferrer import Transferrer
from tests.simulation.worker import Worker
from tests.simulation.workload import IdempotentProducer
from tests.simulation.world import SimulationFailed, World

ACCOUNTS, INPUT, OUTPUT = "accounts", "input", "output"
PARTITIONS = {ACCOUNTS: 3, INPUT: 2, OUTPUT: 2}
DURATION_S = 60.0
HEAL_S = 120.0
READERS, NEW_READERS, WORKERS = "readers", "new-readers", "workers"
TRANSFERRERS = (("t0", NEW), ("t1", OLD), ("t2", NEW))


def simulate_exactly_once(
    seed: int,
    *,
    duration_s: float = DURATION_S,
    trace_lines: int = 400,
    favourite: str = "",
    is_flushed: bool | None = None,
    slowness: float = 1.0,
) -> Outcome:
    """Run one seed whole. Never raises for what the broker did wrong: that is in the outcome.

    `slowness` is the disk's.
    """
    world = World(seed, trace_lines=trace_lines)
    run = _Run(world, duration_s, favourite, is_flushed)
    run.machine.host.disk.slowness = slowness
    outcome = Outcome(seed)
    try:
        world.run(run.main(), limit_s=duration_s + 10 * HEAL_S)
        outcome.anomalies = check_ledger(run.ledger)
        outcome.anomalies += [Anomaly("complaint", text) for text in run.history.complaints]
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
    def __init__(self, world: World, duration_s: float, favourite: str, is_flushed: bool | None) -> None:
        self.world = world
        self.duration_s = duration_s
        self.favourite = favourite
        self.random = random = Random(world.random.getrandbits(64))
        self.network = Network(world)
        self.ledger = Ledger()
        self.lived: Counter[str] = Counter()
        self.is_flushed = random.random() < 0.5 if is_flushed is None else is_flushed
        self.history = History(is_flushed_before_ack=self.is_flushed)
        settings = {
            "log.flush.before.ack": "true" if self.is_flushed else "false",
            "log.flush.offset.checkpoint.interval.ms": random.choice(("1000", "60000")),
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": random.choice(("0", "500")),
            "group.consumer.heartbeat.interval.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
            "group.consumer.session.timeout.ms": "6000",
            "group.consumer.min.session.timeout.ms": "1000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
        host = Host(world, self.network, "broker")
        self.machine = BrokerMachine(
            world, host, self.history, ACCOUNTS, PARTITIONS[ACCOUNTS], random.choice((1, 2)), settings
        )
        self.hosts: list[Host] = []
        self.lives: list[Lives] = []
        self.programs: list[Any] = []
        self.readers: list[CommittedReader] = []
        self.source: IdempotentProducer
        self.late: LateCoordinator
        self.ledger.accounts = tuple((ACCOUNTS, index) for index in range(PARTITIONS[ACCOUNTS]))
        self.ledger.outputs = tuple((OUTPUT, index) for index in range(PARTITIONS[OUTPUT]))
        self.inputs: tuple[Place, ...] = tuple((INPUT, index) for index in range(PARTITIONS[INPUT]))

    def counts(self) -> Counter[str]:
        counts = Counter(self.lived)
        counts.update(fate.name.lower() for fate in self.ledger.fates())
        for program in self.programs:
            counts += getattr(program, "counts", Counter())
        counts["acks"] = counts["committed"] + counts["aborted"] + self.source.acked
        counts["reads"] = len(self.ledger.reads)
        counts["offset_commits"] = sum(bool(commit.is_done) for commit in self.ledger.commits)
        counts["offset_reads"] = len(self.ledger.offset_reads)
        counts["generations"] = len({(a.group, a.generation) for a in self.ledger.assignments})
        counts["holdings"] = len(self.ledger.holdings)
        counts["outputs"] = sum(len(self.ledger.final.get(place, ())) for place in self.ledger.outputs)
        counts["late_markers"] = self.late.sent
        counts["power_losses"] = len(self.history.losses)
        return counts

    # The run

    async def main(self) -> None:
        await self.machine.boot()
        admin = self._start("admin")
        for topic, partitions in PARTITIONS.items():
            segment = self.random.choice(("10000", "100000"))
            configs = {"internal.segment.bytes": segment}
            await admin.call(Client("broker", PORT, topic).create_topic(partitions, configs))
        working = [asyncio.ensure_future(lives.run()) for lives in self._make_lives()]
        working.append(self._start_source())
        working.append(self._start_late_coordinator())
        for number in range(2):
            self._start_reader(f"reader-{number}")
        names = [host.name for host in self.hosts]
        avoided = () if self.is_flushed else POWER_FAULTS
        nemesis = Nemesis(self.world, self.network, self.machine, names, self.favourite, avoided)
        await nemesis.run(self.duration_s)
        self.source.is_over = self.late.is_over = True
        for lives in self.lives:
            lives.is_calm = True
        await self._in_time("the source", working[-2])
        ends = {place: await admin.call(self._end(place)) for place in self.inputs}
        await self._in_time("the workers", self._all_worked(ends))
        for lives in self.lives:
            lives.is_over = True
        await self._in_time("clients", asyncio.gather(*working))
        for host in self.hosts:  # what is left of clients that were replaced
            if host.process is not None and host.name.rpartition("-")[0] in {
                each.name for each in self.lives
            }:
                host.crash()
        await asyncio.sleep(15.0)  # whatever they left open is aborted by now
        await self._in_time("readers", self._all_read())
        await self._read_final()
        await self._in_time("positions", admin.call(self._read_positions(admin)))
        await self.machine.stop()
        for host in self.hosts:
            if host.process is not None:
                host.end()

    def _make_lives(self) -> list[Lives]:
        for transactional_id, version in TRANSFERRERS:
            self._add_lives(transactional_id, partial(self._transferrer, transactional_id, version))
        for number, version in enumerate((NEW, OLD)):
            self._add_lives(f"w{number}", partial(self._worker, f"w{number}", version))
        for number in range(3):
            self._add_lives(f"g{number}", self._group_reader)
        for number in range(2):
            self._add_lives(f"n{number}", self._new_group_reader)
        return self.lives

    def _transferrer(self, transactional_id: str, version: int, name: str, process: Process) -> Program:
        producer = self._producer(transactional_id, name, process, version)
        return Transferrer(producer, self.ledger.accounts)

    def _worker(self, transactional_id: str, version: int, name: str, process: Process) -> Program:
        producer = self._producer(transactional_id, name, process, version)
        return Worker(self._member(WORKERS, self.inputs, process), producer, OUTPUT)

    def _group_reader(self, _: str, process: Process) -> Program:
        return GroupReader(self._member(READERS, self.ledger.accounts, process))

    def _new_group_reader(self, _: str, process: Process) -> Program:
        brokers = self._brokers(process)
        member = ConsumerMember(NEW_READERS, self.ledger.accounts, brokers, self.ledger, process.random)
        return GroupReader(member)

    def _add_lives(self, name: str, make: Callable[[str, Process], Program]) -> None:
        def remember(instance: str, process: Process) -> Program:
            program = make(instance, process)
            self.programs.append(program)
            return program

        self.lives.append(Lives(self.world, self.network, name, remember, self.hosts, self.lived))

    def _producer(
        self, transactional_id: str, name: str, process: Process, version: int
    ) -> TransactionalProducer:
        return TransactionalProducer(
            transactional_id,
            name,
            self._brokers(process),
            self.ledger,
            process.random,
            process.clock.now_ms,
            version=version,
            timeout_ms=self.random.choice((3000, 8000)),
        )

    def _member(self, group: str, places: tuple[Place, ...], process: Process) -> Member:
        return Member(group, places, self._brokers(process), self.ledger, process.random)

    def _brokers(self, process: Process) -> Brokers:
        return Brokers([("broker", PORT)], process.random)

    def _start(self, name: str) -> Process:
        host = Host(self.world, self.network, name)
        self.hosts.append(host)
        return host.start()

    def _start_source(self) -> Any:
        process = self._start("source")
        client = Client("broker", PORT, INPUT)
        history = History(is_flushed_before_ack=self.is_flushed)
        history.complaints = self.history.complaints
        self.source = IdempotentProducer("s", client, history, process.random, process.clock.now_ms, acks=-1)
        return asyncio.ensure_future(process.call(self.source.run(range(PARTITIONS[INPUT]))))

    def _start_late_coordinator(self) -> Any:
        process = self._start("late")
        self.late = LateCoordinator(self._brokers(process), self.ledger, process.random, self._epoch_of)
        new = {transactional_id for transactional_id, version in TRANSFERRERS if version == NEW}
        run = self.late.run(lambda name: name.partition("-")[0] in new)
        return asyncio.ensure_future(process.call(run))

    def _epoch_of(self, name: str) -> int | None:
        """The epoch of the coordinator of a transaction, known from inside the broker."""
        broker = self.machine.broker
        if broker is None or not broker.metadata.topics.get("__transaction_state"):
            return None
        index = broker.coordinators.partition_of("__transaction_state", name.partition("-")[0])
        partition = broker.replicas.topic("__transaction_state").get(index)
        return None if partition is None else partition.leader_epoch

    def _start_reader(self, name: str) -> CommittedReader:
        process = self._start(name)
        reader = CommittedReader(name, self._brokers(process), self.ledger, process.random)
        process.start(reader.run((*self.ledger.accounts, *self.ledger.outputs)))
        self.readers.append(reader)
        return reader

    # The end

    async def _in_time(self, who: str, work: Any) -> Any:
        try:
            async with asyncio.timeout(HEAL_S):
                return await work
        except TimeoutError:
            raise SimulationFailed(f"{who} are stuck {HEAL_S} s after the faults ended") from None

    async def _end(self, place: Place) -> int:
        return await Client("broker", PORT, place[0]).offset(place[1], LATEST)

    async def _all_worked(self, ends: dict[Place, int]) -> None:
        """Wait until the workers have committed the whole input."""
        process = self._start("observer")
        member = self._member(WORKERS, self.inputs, process)
        while True:
            found = await process.call(fetch_positions(member, self.inputs, is_stable=True))
            if found is not None and all(found[place] >= end for place, end in ends.items()):
                return
            await asyncio.sleep(0.5)

    async def _all_read(self) -> None:
        ends = {}
        process = self._start("asker")
        for place in (*self.ledger.accounts, *self.ledger.outputs):
            ends[place] = await process.call(self._end(place))
        while any(
            reader.position.get(place, 0) < end for reader in self.readers for place, end in ends.items()
        ):
            await asyncio.sleep(0.5)

    async def _read_final(self) -> None:
        """All topics, read by a reader that is new."""
        process = self._start("auditor")
        ledger = Ledger()
        reader = CommittedReader("auditor", self._brokers(process), ledger, process.random)
        reader.is_hasty = True
        places = (*self.ledger.accounts, *self.ledger.outputs, *self.inputs)
        ends = {place: await process.call(self._end(place)) for place in places}
        process.start(reader.run(places))
        while any(reader.position.get(place, 0) < end for place, end in ends.items()):
            await asyncio.sleep(0.5)
        for place in places:
            self.ledger.final[place] = [
                (read.offset, read.value) for read in ledger.reads if read.place == place
            ]
        for place in self.inputs:
            self.ledger.inputs[place] = [value for _, value in self.ledger.final[place]]

    async def _read_positions(self, process: Process) -> None:
        for group in (READERS, NEW_READERS):
            member = self._member(group, self.ledger.accounts, process)
            while await fetch_positions(member, self.ledger.accounts, is_stable=False) is None:
                await asyncio.sleep(0.2)
