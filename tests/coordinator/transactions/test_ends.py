"""From a decision to its markers, in a real broker: in order, again after failures, and after restarts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.broker import transaction_markers
from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.handlers.group_offsets import txn_offset_commit
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.cluster.metadata import Topic
from millstream.cluster.partition import ALL, Partition
from millstream.cluster.replicas import Replicas
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.controller.topics import NewTopic
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.shard import Producer
from millstream.coordinator.transactions.transaction import BUMPING, OLD, Status, Transaction
from millstream.errors import (
    ConcurrentTransactions,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
)
from millstream.model import TopicPartition
from millstream.protocol.batch import decode_marker, decode_records, encode_batch, read_header
from millstream.protocol.messages import TxnOffsetCommitRequest
from millstream.protocol.record import Record
from millstream.registry.contract import Set
from tests.cluster.brokers import Brokers
from tests.cluster.brokers import run as run_brokers
from tests.wire import batches

TOPIC = TopicPartition("t", 0)
GROUP = "group"
PATIENCE_S = 20.0


class Case:
    """A broker with one topic, and one transactional producer on it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.index = 0
        self.producer = Producer(-1, -1)

    async def prepare(self) -> None:
        """Make what is missing, and wait until the coordinators are in service."""
        broker = self.broker
        if TOPIC.topic not in broker.metadata.topics:
            await broker.controller.create_topic(NewTopic(TOPIC.topic, 1, 1))
        for topic in (TRANSACTIONS_TOPIC, GROUPS_TOPIC):
            await broker.coordinators.topic(topic)
        self.index = broker.coordinators.partition_of(TRANSACTIONS_TOPIC, "x")
        await until(lambda: broker.transactions.is_active(self.index))
        await until(lambda: broker.groups.is_active(self.group_index))

    @property
    def group_index(self) -> int:
        return self.broker.coordinators.partition_of(GROUPS_TOPIC, GROUP)

    @property
    def partition(self) -> Partition:
        return self.broker.replicas.leader(*TOPIC)

    @property
    def coordinator(self) -> Partition:
        return self.broker.replicas.leader(TRANSACTIONS_TOPIC, self.index)

    @property
    def transaction(self) -> Transaction:
        found = next(each for shard in self.broker.transactions for each in shard)
        assert found.transactional_id == "x"
        return found

    async def init(self) -> None:
        made = await self.broker.transactions.write(
            self.index, lambda shard: shard.init_producer_id("x", 60_000, None, 5)
        )
        assert made is not None
        self.producer = made

    async def send(self, value: bytes, version: int = 12, sequence: int = 0) -> None:
        data = encode_batch(
            [Record(value, None, (), self.broker.clock.now_ms())],
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        appended = self.partition.append(data, ALL, version, "x")
        if isinstance(appended, asyncio.Future):
            await appended

    async def end(self, *, is_commit: bool = True, version: int = BUMPING) -> None:
        self.producer = await self.broker.transactions.write(
            self.index, lambda shard: shard.end("x", self.producer, is_commit, version)
        )

    def log(self) -> list[bytes | bool]:
        """The values in the partition, and the ends: True for a commit."""
        found = self.partition.log.read(0, 1 << 20)
        entries: list[bytes | bool] = []
        for one in batches(found.data):
            records = decode_records(one, include_control=True)
            if read_header(one).is_control:
                marker = decode_marker(records[0])
                assert marker is not None
                entries.append(marker.is_commit)
            else:
                entries += [record.value or b"" for record in records]
        return entries

    async def completed(self) -> None:
        await until(lambda: self.transaction.is_complete)


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(folder: Path, **options: str) -> AsyncIterator[Case]:
    values = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder),
        "transaction.state.log.num.partitions": "3",
        "offsets.topic.num.partitions": "3",
    }
    broker = Broker(BrokerConfig(values | {key.replace("_", "."): value for key, value in options.items()}))
    async with broker:
        case = Case(broker)
        await case.prepare()
        yield case


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def do_not_end(case: Case, patch: pytest.MonkeyPatch) -> None:
    """Let decisions be made and nothing follow from them, as if the broker died right then."""
    patch.setattr(case.broker.transaction_markers, "prepared", lambda *_: None)


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_end_follows_the_decision(tmp_path: Path, is_commit: bool) -> None:
    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            await case.end(is_commit=is_commit)
            assert case.transaction.is_prepared  # it is answered before the markers are written
            await case.completed()
            assert case.log() == [b"x", is_commit]

    run(test())


def test_no_marker_leaves_before_the_decision_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with running(tmp_path, log_flush_before_ack="true") as case:
            await case.init()
            await case.send(b"x")
            log, let_go = case.coordinator.log, threading.Event()
            flush = log.flush

            def held() -> int:
                assert let_go.wait(PATIENCE_S)
                return flush()

            monkeypatch.setattr(log, "flush", held)
            ending = asyncio.ensure_future(case.end())
            await until(lambda: case.transaction.status is Status.PREPARE_COMMIT)
            await asyncio.sleep(0.3)
            assert case.transaction.status is Status.PREPARE_COMMIT
            assert not ending.done()
            assert case.log() == [b"x"]
            let_go.set()
            await ending
            await case.completed()
            assert case.log() == [b"x", True]

    run(test())


def test_a_topic_that_this_broker_has_not_heard_of_yet_is_not_taken_for_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start of a broker with many partitions its coordinators are in service before it knows all."""

    async def decide() -> None:
        async with running(tmp_path) as case:
            with monkeypatch.context() as patch:
                do_not_end(case, patch)
                await case.init()
                await case.send(b"x")
                await case.end()

    apply = Replicas.apply

    async def apply_slowly(self: Replicas, topic: Topic, *arguments: Any, **options: Any) -> None:
        if topic.name == TOPIC.topic:
            await asyncio.sleep(1.0)
        await apply(self, topic, *arguments, **options)

    async def find() -> None:
        monkeypatch.setattr(Replicas, "apply", apply_slowly)
        async with running(tmp_path) as case:
            await case.completed()
            assert case.log() == [b"x", True]

    run(decide())
    run(find())


def test_the_end_in_a_deleted_topic_is_nobodys_concern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            await case.broker.controller.delete_topic(case.broker.metadata.topic(TOPIC.topic))
            await case.end()
            await case.completed()

    run(test())


@pytest.mark.parametrize("version", [OLD, BUMPING])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_decision_found_in_the_log_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, is_commit: bool
) -> None:
    async def decide() -> None:
        async with running(tmp_path) as case:
            do_not_end(case, monkeypatch)
            await case.init()
            if version == OLD:
                await case.broker.transactions.write(
                    case.index, lambda shard: shard.add_partitions("x", case.producer, (TOPIC,), OLD)
                )
            await case.send(b"x", version=10 if version == OLD else 12)
            await case.end(is_commit=is_commit, version=version)

    async def find() -> None:
        async with running(tmp_path) as case:
            await case.completed()
            assert case.log() == [b"x", is_commit]
            assert case.transaction.is_commit is is_commit
            # Once more, by another leader of the coordinator's partition: there is nothing left to do.
            case.broker.coordinators.lead(case.coordinator)
            await until(lambda: case.broker.transactions.is_active(case.index))
            await asyncio.sleep(0.05)
            assert case.log() == [b"x", is_commit]

    run(decide())
    run(find())


def test_markers_that_were_written_are_written_again_without_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker died after the markers and before it could note that."""

    async def decide() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            patched = pytest.MonkeyPatch()
            shard = next(each for each in case.broker.transactions if each.get("x"))
            patched.setattr(shard, "complete", refuse)
            await case.end()
            await until(lambda: case.log() == [b"x", True])
            assert case.transaction.is_prepared

    def refuse(_: Transaction) -> None:
        raise NotEnoughReplicas

    async def find() -> None:
        async with running(tmp_path) as case:
            await case.completed()
            assert case.log() == [b"x", True, True]
            assert case.partition.last_stable_offset == 3
            case.producer = Producer(case.transaction.producer_id, case.transaction.epoch)
            await case.send(b"y")
            await case.end(is_commit=False)
            await case.completed()
            assert case.log() == [b"x", True, True, b"y", False]

    run(decide())
    run(find())


def test_a_partition_that_cannot_be_written_to_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            tries = 0
            append = case.partition.append_internal

            def refused(*args: Any, **options: Any) -> Any:
                nonlocal tries
                tries += 1
                if tries < 4:
                    raise NotEnoughReplicas
                return append(*args, **options)

            monkeypatch.setattr(case.partition, "append_internal", refused)
            await case.end()
            await until(lambda: tries > 1)
            with pytest.raises(ConcurrentTransactions):
                await case.init()
            await case.completed()
            assert tries == 4
            assert case.log() == [b"x", True]

    run(test())


def test_a_marker_that_is_not_committed_does_not_keep_others_from_being_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition waits for replicas, the other had no leader for a moment: its readers need not wait."""

    async def test() -> None:
        async with running(tmp_path) as case:
            await case.broker.controller.create_topic(NewTopic("u", 1, 1))
            await case.init()
            await case.send(b"x")
            other = case.broker.replicas.leader("u", 0)
            await case.broker.transactions.write(
                case.index,
                lambda shard: shard.add_partitions("x", case.producer, (TopicPartition("u", 0),), BUMPING),
            )
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(transaction_markers, "COMMIT_SECONDS", 0.05)
            monkeypatch.setattr(case.partition, "when_committed", lambda _: loop.create_future())
            monkeypatch.setattr(other, "refusal", NotLeaderOrFollower())
            await case.end()
            await until(lambda: case.log() == [b"x", True])
            monkeypatch.setattr(other, "refusal", None)
            await until(lambda: other.log.end_offset == 1)
            assert case.transaction.is_prepared
            monkeypatch.undo()
            await case.completed()

    run(test())


def test_a_coordinator_that_moves_right_after_the_decision_leaves_the_end_to_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            partition, markers = case.coordinator, case.broker.transaction_markers
            await case.end()
            case.broker.coordinators.resign(partition)
            await until(lambda: not markers._tasks)
            assert case.log() == [b"x"]
            case.broker.coordinators.lead(partition)
            await until(lambda: case.log() == [b"x", True])

    run(test())


def test_one_that_is_loaded_again_here_is_ended_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what ended it before could end the next transaction of a producer that keeps its epoch."""

    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            with monkeypatch.context() as patch:
                patch.setattr(case.partition, "refusal", NotLeaderOrFollower())
                patch.setattr(transaction_markers, "FIRST_RETRY_SECONDS", 1.0)
                await case.end()
                await asyncio.sleep(0.1)  # it has been refused, and waits
                tasks, coordinator = case.broker.transaction_markers._tasks, case.coordinator
                before = set(tasks)
                assert len(before) == 1
                case.broker.coordinators.resign(coordinator)
                case.broker.coordinators.lead(coordinator)
                await until(lambda: tasks - before)
                await until(lambda: not tasks & before)
                assert case.transaction.is_prepared
            await case.completed()
            assert case.log() == [b"x", True]

    run(test())


@pytest.mark.parametrize("error", [KafkaStorageError, NotLeaderOrFollower])
def test_an_end_that_the_coordinators_log_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError]
) -> None:
    """A full disk, or a session with the registry that is late, passes: the transaction must not hang."""

    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            await case.send(b"x")
            await case.end()
            refusals = 0
            append = case.coordinator.append_internal

            def refused(*args: Any, **options: Any) -> Any:
                nonlocal refusals
                refusals += 1
                if refusals < 3:
                    raise error
                return append(*args, **options)

            monkeypatch.setattr(case.coordinator, "append_internal", refused)
            await case.completed()
            assert refusals == 3
            assert case.log() == [b"x", True]

    run(test())


def test_a_topic_that_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(tmp_path) as case:
            topic = await case.broker.controller.create_topic(NewTopic("gone", 1, 1))
            await case.init()
            await case.send(b"x")
            gone = TopicPartition("gone", 0)
            await case.broker.transactions.write(
                case.index, lambda shard: shard.add_partitions("x", case.producer, (gone,), BUMPING)
            )
            await case.broker.controller.delete_topic(topic)
            await case.end()
            await case.completed()
            assert case.log() == [b"x", True]

    run(test())


@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_are_decided_with_the_transaction(tmp_path: Path, is_commit: bool) -> None:
    """The marker is in the log of the offsets before the group's positions move."""

    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            groups, index = case.broker.groups, case.group_index
            commit = Commit(TOPIC, 7, -1, "")
            await case.broker.transaction_admission.commit_offsets(
                "x",
                case.producer,
                index,
                5,
                lambda: groups.write(
                    index,
                    lambda shard: shard.commits.commit_in_transaction(
                        GROUP, Caller(), case.producer, [commit]
                    ),
                ),
            )
            assert case.transaction.partitions == {TopicPartition(GROUPS_TOPIC, index)}
            assert await groups.read(index, lambda shard: shard.commits.is_unstable(GROUP, TOPIC))
            await case.end(is_commit=is_commit)
            await case.completed()
            assert not await groups.read(index, lambda shard: shard.commits.is_unstable(GROUP, TOPIC))
            found = await groups.read(index, lambda shard: shard.commits.committed(GROUP, TOPIC))
            assert (found.offset if found else None) == (7 if is_commit else None)
            offsets = case.broker.replicas.leader(GROUPS_TOPIC, index)
            assert offsets.last_stable_offset == offsets.log.end_offset == 2

    run(test())
    run(reloaded(tmp_path, 7 if is_commit else None))


async def reloaded(folder: Path, expected: int | None) -> None:
    async with running(folder) as case:
        found = await case.broker.groups.read(
            case.group_index, lambda shard: shard.commits.committed(GROUP, TOPIC)
        )
        assert (found.offset if found else None) == expected


@pytest.mark.parametrize("is_resigned", [True, False])
def test_offsets_of_a_transaction_find_their_coordinator_gone(tmp_path: Path, is_resigned: bool) -> None:
    """Producers take any other answer than NOT_COORDINATOR for the end of them, and do not look further."""

    async def test() -> None:
        async with running(tmp_path) as case:
            await case.init()
            offsets = case.broker.replicas.leader(GROUPS_TOPIC, case.group_index)
            if is_resigned:
                case.broker.coordinators.resign(offsets)
            offsets.fail(NotLeaderOrFollower())
            place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=3, committed_metadata=None
            )
            topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=TOPIC.topic, partitions=[place])
            request = TxnOffsetCommitRequest(
                transactional_id="x",
                group_id=GROUP,
                producer_id=case.producer.producer_id,
                producer_epoch=case.producer.epoch,
                topics=[topic],
            )
            context = Context(case.broker, None, "PLAINTEXT", 5, "client")  # type: ignore[arg-type]
            answer = await txn_offset_commit(context, request)
            assert answer.topics[0].partitions[0].error_code == NotCoordinator.code

    run(test())


def test_a_topic_that_cannot_be_read_in_the_registry_learns_of_the_end_when_it_can(tmp_path: Path) -> None:
    """It is not known to a broker that starts meanwhile, and yet it was not deleted."""

    async def test(brokers: Brokers) -> None:
        await brokers.create(TOPIC.topic, 1, 1, min_insync_replicas="1")
        case = Case(brokers[1])
        await case.prepare()
        await case.init()
        await case.send(b"x")
        with pytest.MonkeyPatch.context() as patch:
            do_not_end(case, patch)
            await case.end()
        path = f"{tree.TOPIC_CONFIGS}/{TOPIC.topic}"
        good = (await brokers.registries[1].get(path)).data
        await brokers.registries[1].multi([Set(path, b"{")])
        await brokers.stop()
        await brokers.start()
        case = Case(brokers[1])
        index = case.index = case.broker.coordinators.partition_of(TRANSACTIONS_TOPIC, "x")
        await until(lambda: case.broker.transactions.is_active(index))
        moment = asyncio.get_running_loop().time()
        await until(lambda: case.broker.cluster_state.knows_all_since(moment))
        await asyncio.sleep(2 * transaction_markers.MAX_RETRY_SECONDS)
        assert case.transaction.is_prepared
        await brokers.registries[1].multi([Set(path, good)])
        case.broker.controller._is_unsure = True  # as after a write without an answer: it reads all again
        await until(lambda: TOPIC.topic in case.broker.metadata.topics)
        await case.completed()
        assert case.partition.last_stable_offset == case.partition.log.end_offset == 2

    run_brokers(test, tmp_path, 1, transaction_state_log_num_partitions="3", offsets_topic_num_partitions="3")
