"""One seed of the simulation of a cluster: brokers, a registry, a workload, a nemesis, and the judgement."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from millstream.cluster.metadata import INTERNAL_TOPICS
from millstream.errors import (
    FencedLeaderEpoch,
    KafkaError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    TopicAlreadyExists,
    error_for,
)
from millstream.protocol.messages import CreateTopicsRequest
from millstream.registry.memory import MemoryTree
from tests.simulation.brokers import Brokers
from tests.simulation.checker import Anomaly, check
from tests.simulation.client import LATEST, RETRY_S
from tests.simulation.cluster_churn import ClusterChurn
from tests.simulation.cluster_nemesis import ClusterNemesis
from tests.simulation.cluster_setting import Setting, random_for, setting_of
from tests.simulation.cluster_view import ClusterView
from tests.simulation.committed_reader import CommittedReader
from tests.simulation.compacted_topic import NAME as COMPACTED_TOPIC
from tests.simulation.compacted_topic import CompactedTopic
from tests.simulation.consumer import Consumer
from tests.simulation.consumer_member import ConsumerMember
from tests.simulation.end_watch import EndWatch
from tests.simulation.group_reader import GroupReader
from tests.simulation.history import Entry, History
from tests.simulation.host import Host, Process
from tests.simulation.isr_watch import IsrWatch
from tests.simulation.leader_client import LeaderClient
from tests.simulation.ledger import Ledger, Place
from tests.simulation.ledger_checker import aborted_reads, check_ledger, complaints
from tests.simulation.lives import Lives, Program
from tests.simulation.member import Member, fetch_positions
from tests.simulation.network import Network
from tests.simulation.node import PORT, Node
from tests.simulation.one_broker import Outcome
from tests.simulation.operator import Operator
from tests.simulation.start_watch import StartWatch
from tests.simulation.transactional import NEW, OLD, TransactionalProducer
from tests.simulation.transferrer import Transferrer
from tests.simulation.transport import Link
from tests.simulation.trimmed_topic import CHECK_INTERVAL_MS, PLACES, TrimmedTopic
from tests.simulation.trimmed_topic import NAME as TRIMMED_TOPIC
from tests.simulation.unclean_topic import CONFIGS, UncleanTopic
from tests.simulation.unclean_topic import NAME as UNCLEAN_TOPIC
from tests.simulation.unclean_topic import REPLICAS as UNCLEAN_REPLICAS
from tests.simulation.worker import Worker
from tests.simulation.workload import FireAndForget, IdempotentProducer, PlainProducer, Sender
from tests.simulation.world import SimulationFailed, World

EVENTS, ACCOUNTS, INPUT, OUTPUT = "events", "accounts", "input", "output"
REPLICAS = 3
PARTITIONS = {EVENTS: 2, ACCOUNTS: 3, INPUT: 2, OUTPUT: 2}
PRODUCERS = (PlainProducer, IdempotentProducer, FireAndForget, IdempotentProducer)
SIZES = (3, 3, 3, 3, 5)
"""How many brokers there are, mostly."""
DURATION_S = 60.0
DISTANCES_S = (0.02, 0.1, 0.3)
"""How long everything takes to a broker that is far away."""
LEAST_ACKS = 1000
"""A seed with many faults goes on for a while after the last of them, until it has so many."""
HEAL_S = 180.0
LEFT_OPEN_S = 9.0
"""After which everything that dead clients left open has been aborted."""
READERS, WORKERS = "readers", "workers"
WORKER = "w"
"""What the names of workers begin with."""
TRANSFERRERS = (("t0", NEW), ("t1", OLD))


def simulate_cluster(
    seed: int,
    *,
    duration_s: float = DURATION_S,
    trace_lines: int = 400,
    favourite: str = "",
    is_flushed: bool | None = None,
    brokers: int | None = None,
    **asked: bool,
) -> Outcome:
    """Run one seed whole. Never raises for what the brokers did wrong: that is in the outcome.

    What is None is chosen by the seed, and so is of the `Setting` what is not asked for.
    """
    world = World(seed, trace_lines=trace_lines)
    run = _Run(world, duration_s, favourite, is_flushed, brokers, setting_of(seed, asked))
    outcome = Outcome(seed)
    watcher = _Watcher(run.noted)
    logger = logging.getLogger("millstream")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(watcher)
    try:
        with _counting_fences(run.noted):
            world.run(run.main(), limit_s=duration_s + 10 * HEAL_S)
        outcome.anomalies = check(run.history) + check(run.input_history) + check_ledger(run.ledger)
        if run.trimmed is not None:
            outcome.anomalies += check(run.trimmed.history) + list(aborted_reads(run.trimmed.ledger))
            outcome.anomalies += complaints(run.trimmed.ledger)
    except SimulationFailed as failure:
        outcome.anomalies = [Anomaly("failure", str(failure))]
    except Exception:
        outcome.anomalies = [Anomaly("failure", traceback.format_exc())]
    finally:
        logger.removeHandler(watcher)
        logger.setLevel(level)
    outcome.trace_hash = world.trace.hash()
    outcome.faults = run.faults
    outcome.counts = run.counts()
    outcome.virtual_s = world.now
    outcome.trace = list(world.trace.lines)
    return outcome


FENCES = (FencedLeaderEpoch, StaleBrokerEpoch, StaleControllerEpoch)

WORDS = {
    "truncations": "cut off at",
    "isr_changes": "in sync are now",
    "sessions_lost": "session with the registry is lost",
    "brokers parted with": "are alive, but ask for nothing",
    "offices given up": "though they are alive",
    "compactions": "compacted ",
    "compactions of offsets": "compacted __consumer_offsets",
    "compactions of transactions": "compacted __transaction_state",
}
"""What brokers say when they did something that counts."""


class _Watcher(logging.Handler):
    """Counts what brokers say that they did."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(logging.INFO)
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for name, words in WORDS.items():
            if words in text:
                self._counts[name] += 1
                if name == "isr_changes" and _is_shrink(text):
                    self._counts["isr_shrinks"] += 1


def _is_shrink(text: str) -> bool:
    """Whether somebody who was in sync is so no more."""
    now, before = (set(json.loads(found)) for found in re.findall(r"\[[^]]*\]", text))
    return not before <= now


@contextmanager
def _counting_fences(counts: Counter[str]) -> Iterator[None]:
    """Count how often somebody is refused for being of the past."""

    def counted(error: type[KafkaError]) -> AbstractContextManager[Any]:
        def init(self: KafkaError, *args: object) -> None:
            counts[f"fences: {error.__name__}"] += 1
            super(error, self).__init__(*args)

        return patch.object(error, "__init__", init)

    with ExitStack() as stack:
        for error in FENCES:
            stack.enter_context(counted(error))
        yield


class _Run:
    def __init__(
        self,
        world: World,
        duration_s: float,
        favourite: str,
        is_flushed: bool | None,
        brokers: int | None,
        setting: Setting,
    ) -> None:
        self.world = world
        self.duration_s = duration_s
        self.favourite = favourite
        self.random = random = Random(world.random.getrandbits(64))
        self.network = Network(world)
        self.tree = MemoryTree()
        self.nodes: list[Node] = []
        self.view = ClusterView(self.nodes, self.tree)
        self.is_flushed = random.random() < 0.3 if is_flushed is None else is_flushed
        self.setting = setting
        self.ledger = Ledger()
        # Nothing acknowledged is lost in either mode: the nemesis keeps to what each can bear.
        self.history = History(is_flushed_before_ack=True)
        self.input_history = History(is_flushed_before_ack=True)
        self.trimmed: TrimmedTopic | None = None
        self.unclean: UncleanTopic | None = None
        self.compacted: CompactedTopic | None = None
        if setting.trims:
            own = random_for(world.seed, "trims")
            self.trimmed = TrimmedTopic(self._start, self._brokers, self.view.in_sync, own)
        if setting.unclean:
            self.unclean = UncleanTopic(self._start, self._brokers, self.history)
        if setting.compacts:
            own = random_for(world.seed, "compacts")
            self.compacted = CompactedTopic(self._start, self._brokers, self.history, own)
        self.faults: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self.lived: Counter[str] = Counter()
        settings = {
            "log.flush.before.ack": "true" if self.is_flushed else "false",
            "log.flush.offset.checkpoint.interval.ms": random.choice(("1000", "60000")),
            "replica.high.watermark.checkpoint.interval.ms": random.choice(("500", "5000")),
            "replica.lag.time.max.ms": random.choice(("1500", "4000")),
            "replica.fetch.wait.max.ms": "300",
            "min.insync.replicas": "2",
            "default.replication.factor": "3",
            "offsets.topic.num.partitions": "2",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "group.initial.rebalance.delay.ms": random.choice(("0", "500")),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
        if setting.trims:
            settings["log.retention.check.interval.ms"] = str(CHECK_INTERVAL_MS)
        if self.compacted is not None:
            settings |= self.compacted.settings
        if setting.reads_anywhere:
            settings["replica.selector.class"] = "RackAwareReplicaSelector"
        session_ms, sees_death = random.choice((1500, 4000)), random.random() < 0.5
        knows_boots, cold_probability = random.random() < 0.7, random.choice((0.0, 0.0, 0.05, 0.3))
        self.nodes += [
            Node(
                world,
                self.network,
                self.tree,
                number,
                settings,
                session_ms=session_ms,
                sees_death=sees_death,
                knows_boots=knows_boots,
                faults=self.faults,
            )
            for number in range(1, (brokers or random.choice(SIZES)) + 1)
        ]
        for node in self.nodes:
            node.host.disk.cold_probability = cold_probability
        self.hosts: list[Host] = []
        self.lives: list[Lives] = []
        self.programs: list[Any] = []
        self.readers: list[CommittedReader] = []
        self.producers: list[Sender] = []
        self.consumers: list[tuple[int, Consumer]] = []
        self.source: IdempotentProducer
        self.elections = 0
        self.ledger.accounts = tuple((ACCOUNTS, index) for index in range(PARTITIONS[ACCOUNTS]))
        self.ledger.outputs = tuple((OUTPUT, index) for index in range(PARTITIONS[OUTPUT]))
        self.inputs: tuple[Place, ...] = tuple((INPUT, index) for index in range(PARTITIONS[INPUT]))

    def counts(self) -> Counter[str]:
        counts = self.lived + self.noted
        counts.update(fate.name.lower() for fate in self.ledger.fates())
        for program in self.programs:
            counts += getattr(program, "counts", Counter())
        for topic in (self.trimmed, self.unclean, self.compacted):
            if topic is not None:
                counts += topic.counts
        counts["acks"] = sum(producer.acked for producer in self.producers)
        counts["acks"] += counts["committed"] + counts["aborted"]
        counts["reads"] = len(self.ledger.reads) + len(self.history.reads)
        counts["offset_commits"] = sum(bool(commit.is_done) for commit in self.ledger.commits)
        counts["generations"] = len({(a.group, a.generation) for a in self.ledger.assignments})
        counts["outputs"] = sum(len(self.ledger.final.get(place, ())) for place in self.ledger.outputs)
        counts["elections"] = self.elections
        counts["starts"] = sum(node.starts for node in self.nodes)
        return counts

    # The run

    async def main(self) -> None:
        watching = [asyncio.ensure_future(node.watch_over()) for node in self.nodes]
        looking = asyncio.ensure_future(IsrWatch(self.tree, self.nodes, self.history, {UNCLEAN_TOPIC}).run())
        admin = self._start("admin")
        far_away = self._move_apart() if self.setting.is_wide else []
        await self._in_time("brokers", self._until(lambda: all(node.is_serving for node in self.nodes)))
        for topic, partitions in PARTITIONS.items():
            await self._in_time("the controller", admin.call(self._create(admin, topic, partitions)))
        working = [asyncio.ensure_future(lives.run()) for lives in self._make_lives()]
        producing = self._start_producers()
        self._start_consumers()
        for number in range(2):
            self._start_reader(f"reader-{number}")
        self.readers[0].reads_anywhere = self.setting.reads_anywhere
        if self.setting.loses_disks:
            self._start_end_watch()
        trimming = await self._begin_trimming(admin)
        await self._begin_unclean(admin)
        await self._begin_compacted(admin)
        operator = self._start_operator()
        churn, churning = self._start_churn() if self.setting.is_changeful else (None, None)
        nemesis = ClusterNemesis(
            self.world,
            self.network,
            self.nodes,
            self._client_names,
            self.faults,
            self.view.is_whole,
            is_flushed=self.is_flushed,
            loses_disks=self.setting.loses_disks,
            favourite=self.favourite,
        )
        await nemesis.run(self.duration_s)
        for link in far_away:
            link.distance_s = 0.0  # clients have little patience
        if operator is not None:
            operator.is_over = True
        if self.trimmed is not None:
            self.trimmed.trimmer.is_over = True  # whoever lags behind now gets where the log starts for good
        if churn is not None:
            churn.is_over = True
            await self._in_time("the churn", churning)
        for lives in self.lives:
            lives.is_calm = True
        await self._in_time("replicas", self._until(self.view.is_whole))
        least_acks = LEAST_ACKS * min(1.0, self.duration_s / DURATION_S)
        await self._in_time("producers", self._until(lambda: self.counts()["acks"] >= least_acks))
        for producer in self.producers:
            producer.is_over = True
        for own in (self.trimmed, self.unclean, self.compacted):
            if own is not None:
                await self._in_time("those of a topic of their own", own.end())
        for lives in self.lives:
            lives.is_over = not lives.name.startswith(WORKER)
        await self._in_time("producers", asyncio.gather(*producing))
        ends = {place: await admin.call(self._end(admin, place)) for place in self.inputs}
        await self._in_time("the workers", self._all_worked(ends))
        for lives in self.lives:
            lives.is_over = True
        await self._in_time("clients", asyncio.gather(*working))
        lived = {lives.name for lives in self.lives}
        for host in self.hosts:  # what is left of clients that were replaced
            if host.process is not None and host.name.rpartition("-")[0] in lived:
                host.crash()
        await asyncio.sleep(LEFT_OPEN_S)
        await self._in_time("readers", self._all_read(admin))
        await self._in_time("readers", self._read_final())
        await self._in_time("positions", admin.call(self._read_positions(admin)))
        await self._in_time("replicas", self._until(self.view.is_quiet))
        if self.trimmed is not None:
            await self._in_time("the trimmed topic", self.trimmed.read_final())
            self.trimmed.judge()
        compacted = () if self.compacted is None else (COMPACTED_TOPIC, *INTERNAL_TOPICS)
        self.history.complaints += self.view.differences(compacted)
        if operator is not None:
            self.history.complaints += self.view.wrong_topics(operator)
        self.elections = sum(state.leader_epoch for _, state in self.view.states())
        for each in (looking, *trimming):
            each.cancel()
        await asyncio.gather(looking, *trimming, return_exceptions=True)
        for node in self.nodes:
            node.is_over = True
        await asyncio.gather(*watching)
        for node in self.nodes:
            await self._in_time("stopping", node.stop(1000.0))
        for host in self.hosts:
            if host.process is not None:
                host.end()

    def _move_apart(self) -> list[Link]:
        """One broker is as far from the others as data centers are, or farther; its links."""
        random = random_for(self.world.seed, "is_wide")
        far, distance_s = random.choice(self.nodes), random.choice(DISTANCES_S)
        links = self.network.links_of(far.name, [other.name for other in self.nodes])
        for link in links:
            link.distance_s = distance_s
        self.world.log(f"{far.name} is {distance_s} s away from the others")
        self.noted["distant brokers"] += 1
        return links

    async def _create(
        self,
        admin: Process,
        topic: str,
        partitions: int,
        configs: dict[str, str] | None = None,
        replicas: int = REPLICAS,
    ) -> None:
        brokers = self._brokers(admin)
        if configs is None:
            configs = {"internal.segment.bytes": self.random.choice(("10000", "100000"))}
        made = CreateTopicsRequest.CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                for name, value in configs.items()
            ],
        )
        while True:
            try:
                answer = await brokers.ask_controller(CreateTopicsRequest(topics=[made], timeout_ms=5000), 7)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            code = answer.topics[0].error_code
            if code in (0, TopicAlreadyExists.code):
                return
            if not error_for(code).retriable:
                raise SimulationFailed(f"{topic} could not be created: {error_for(code).__name__}")
            brokers.forget_controller()
            await asyncio.sleep(RETRY_S)

    def _client_names(self) -> Iterable[str]:
        return [host.name for host in self.hosts if host.process is not None]

    # Clients

    def _make_lives(self) -> list[Lives]:
        for transactional_id, version in TRANSFERRERS:
            self._add_lives(transactional_id, partial(self._transferrer, transactional_id, version))
        for number, version in enumerate((NEW, OLD)):
            self._add_lives(f"{WORKER}{number}", partial(self._worker, f"{WORKER}{number}", version))
        for number in range(2):
            self._add_lives(f"g{number}", self._group_reader)
        return self.lives

    def _transferrer(self, transactional_id: str, version: int, name: str, process: Process) -> Program:
        producer = self._producer(transactional_id, name, process, version)
        return Transferrer(producer, self.ledger.accounts)

    def _worker(self, transactional_id: str, version: int, name: str, process: Process) -> Program:
        producer = self._producer(transactional_id, name, process, version)
        return Worker(self._member(WORKERS, self.inputs, process), producer, OUTPUT)

    def _group_reader(self, _: str, process: Process) -> Program:
        kind = ConsumerMember if self.setting.new_groups else Member
        return GroupReader(self._member(READERS, self.ledger.accounts, process, kind))

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
            timeout_ms=self.random.choice((3000, 6000)),
        )

    def _member(
        self, group: str, places: tuple[Place, ...], process: Process, kind: type[Member] = Member
    ) -> Member:
        return kind(group, places, self._brokers(process), self.ledger, process.random)

    def _brokers(self, process: Process) -> Brokers:
        return Brokers([(node.name, PORT) for node in self.nodes], process.random)

    def _start(self, name: str) -> Process:
        host = Host(self.world, self.network, name)
        self.hosts.append(host)
        return host.start()

    def _start_producers(self) -> list[Any]:
        """Each writes to one partition; one of them fills the workers' input."""
        working = []
        places = [(EVENTS, number % PARTITIONS[EVENTS]) for number in range(len(PRODUCERS))]
        kinds: list[type[Sender]] = list(PRODUCERS)
        for place in self.inputs:
            places.append(place)
            kinds.append(IdempotentProducer)
        for number, (kind, (topic, index)) in enumerate(zip(kinds, places, strict=True)):
            process = self._start(f"producer-{number}")
            client = LeaderClient(self._brokers(process), topic, index)
            producer = kind(
                f"{kind.__name__[0].lower()}{number}",
                client,
                self.input_history if topic == INPUT else self.history,
                process.random,
                process.clock.now_ms,
                acks=0 if kind is FireAndForget else -1,
            )
            self.producers.append(producer)
            working.append(asyncio.ensure_future(process.call(producer.run([index]))))
        return working

    def _start_consumers(self) -> None:
        for index in range(PARTITIONS[EVENTS]):
            process = self._start(f"consumer-{index}")
            client = LeaderClient(self._brokers(process), EVENTS, index)
            consumer = Consumer(f"c{index}", client, self.history, process.random, has_session=index % 2 == 1)
            self.consumers.append((index, consumer))
            process.start(consumer.run([index]))

    def _start_reader(self, name: str) -> None:
        process = self._start(name)
        reader = CommittedReader(name, self._brokers(process), self.ledger, process.random)
        process.start(reader.run((*self.ledger.accounts, *self.ledger.outputs)))
        self.readers.append(reader)
        self.programs.append(reader)

    def _start_end_watch(self) -> None:
        process = self._start("end-watch")
        watch = EndWatch(self._brokers(process), self.history, process.random)
        self.programs.append(watch)
        process.start(watch.run([(EVENTS, index) for index in range(PARTITIONS[EVENTS])]))

    def _start_operator(self) -> Operator | None:
        """In half of the seeds somebody moves partitions about, those of the internal topics too.

        Whoever is in a hurry leaves two replicas for a moment. Where disks are lost as well, nobody is: if
        one of the two has lost its disk and the other its power, only a person can say who is to lead.
        """
        if self.random.random() < 0.5 and not self.setting.is_changeful:
            return None
        process = self._start("operator")
        numbers = [node.number for node in self.nodes]
        operator = Operator(
            self._brokers(process),
            numbers,
            lambda: [place for place, _ in self.view.states()],
            process.random,
            is_hurried=self.setting.is_changeful and not self.setting.loses_disks,
        )
        process.start(operator.run(REPLICAS))
        self.programs.append(operator)
        return operator

    def _start_churn(self) -> tuple[ClusterChurn, asyncio.Future[None]]:
        process = self._start("churn")
        churn = ClusterChurn(lambda: self._brokers(process), self.history, process.random, REPLICAS)
        self.programs.append(churn)
        return churn, asyncio.ensure_future(process.call(churn.run()))

    async def _begin_trimming(self, admin: Process) -> list[asyncio.Future[None]]:
        trimmed = self.trimmed
        if trimmed is None:
            return []
        creating = self._create(admin, TRIMMED_TOPIC, len(PLACES), trimmed.configs)
        await self._in_time("the controller", admin.call(creating))
        trimmed.begin()
        watch = StartWatch(
            lambda: (each for place in PLACES for each in self.view.replicas(place).items()),
            trimmed.history,
            has_retention=trimmed.retention_bytes >= 0,
        )
        trimmed.watch = watch
        return [asyncio.ensure_future(watch.run())]

    async def _begin_unclean(self, admin: Process) -> None:
        if self.unclean is not None:
            creating = self._create(admin, UNCLEAN_TOPIC, 1, CONFIGS, UNCLEAN_REPLICAS)
            await self._in_time("the controller", admin.call(creating))
            self.unclean.begin()

    async def _begin_compacted(self, admin: Process) -> None:
        if self.compacted is not None:
            creating = self._create(admin, COMPACTED_TOPIC, 1, self.compacted.configs)
            await self._in_time("the controller", admin.call(creating))
            self.compacted.begin()

    # The end

    async def _in_time(self, who: str, work: Any) -> Any:
        """After the faults everyone makes progress."""
        try:
            async with asyncio.timeout(HEAL_S):
                result = await work
            self.world.log(f"{who}: done")
            return result
        except TimeoutError:
            text = f"{who} are stuck after {HEAL_S} s without faults"
            raise SimulationFailed("\n".join([text, *self.view.unwell()])) from None

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.1)

    async def _end(self, process: Process, place: Place) -> int:
        return await LeaderClient(self._brokers(process), *place).offset(place[1], LATEST)

    async def _all_worked(self, ends: dict[Place, int]) -> None:
        """Wait until the workers have committed the whole input."""
        process = self._start("observer")
        member = self._member(WORKERS, self.inputs, process)
        while True:
            found = await process.call(fetch_positions(member, self.inputs, is_stable=True))
            if found is not None and all(found[place] >= end for place, end in ends.items()):
                return
            await asyncio.sleep(0.5)

    async def _all_read(self, admin: Process) -> None:
        for place in (*self.ledger.accounts, *self.ledger.outputs):
            end = await admin.call(self._end(admin, place))
            for reader in self.readers:
                while reader.position.get(place, 0) < end:
                    await asyncio.sleep(0.5)
        for index, consumer in self.consumers:
            end = await admin.call(self._end(admin, (EVENTS, index)))
            while consumer.position.get(index, 0) < end:
                await asyncio.sleep(0.5)

    async def _read_final(self) -> None:
        """All topics, read by a reader that is new."""
        process = self._start("auditor")
        ledger = Ledger()
        reader = CommittedReader("auditor", self._brokers(process), ledger, process.random)
        reader.is_hasty = True
        events = [(EVENTS, index) for index in range(PARTITIONS[EVENTS])]
        places = (*self.ledger.accounts, *self.ledger.outputs, *self.inputs, *events)
        ends = {place: await process.call(self._end(process, place)) for place in places}
        process.start(reader.run(places))
        while any(reader.position.get(place, 0) < end for place, end in ends.items()):
            await asyncio.sleep(0.5)
        for place in places:
            read = [(each.offset, each.value) for each in ledger.reads if each.place == place]
            if place[0] == EVENTS:
                self.history.final[place[1]] = [Entry(*each) for each in read]
            else:
                self.ledger.final[place] = read
        for place in self.inputs:
            self.input_history.final[place[1]] = [Entry(*each) for each in self.ledger.final[place]]
            self.ledger.inputs[place] = [value for _, value in self.ledger.final[place]]
        self.ledger.complaints += ledger.complaints

    async def _read_positions(self, process: Process) -> None:
        member = self._member(READERS, self.ledger.accounts, process)
        while await fetch_positions(member, self.ledger.accounts, is_stable=False) is None:
            await asyncio.sleep(0.2)
