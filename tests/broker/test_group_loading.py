"""What members of a group are told while their coordinator is being loaded, or cannot answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from millstream.broker.coordinators import GROUPS_TOPIC
from millstream.broker.handlers import groups
from millstream.broker.handlers.group_offsets import offset_fetch
from millstream.broker.internal_log import PartitionLog
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.coordinator.internal_log import LoadedBatch
from millstream.errors import CoordinatorLoadInProgress, NotCoordinator, RebalanceInProgress
from millstream.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

T = TypeVar("T")

PATIENCE_S = 20.0


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():
            await asyncio.sleep(0.005)


def context(broker: Broker, version: int) -> Context:
    class Peer:
        peer = "127.0.0.1"

    return Context(broker, Peer(), "PLAINTEXT", version, "client")  # type: ignore[arg-type]


async def answer(given: T | Awaitable[T]) -> T:
    return await given if isinstance(given, Awaitable) else given


@asynccontextmanager
async def running(folder: Path, **options: str) -> AsyncIterator[Broker]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder),
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
    }
    config |= {name.replace("_", "."): value for name, value in options.items()}
    async with Broker(BrokerConfig(config)) as broker:
        await broker.controller.create_topic(NewTopic("t", 1, 1))
        await broker.coordinators.topic(GROUPS_TOPIC)
        await until(lambda: broker.groups.is_active(0))
        yield broker


@asynccontextmanager
async def loading(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Within this the groups' only partition is being loaded, as after a move."""
    may_read = asyncio.Event()
    read = PartitionLog.read

    async def held(self: PartitionLog, offset: int) -> tuple[list[LoadedBatch], int]:
        await may_read.wait()
        return await read(self, offset)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "read", held)
        partition = broker.replicas.leader(GROUPS_TOPIC, 0)
        broker.coordinators.resign(partition)
        broker.coordinators.lead(partition)
        yield
        assert not broker.groups.is_active(0)
        may_read.set()
        await until(lambda: broker.groups.is_active(0))


def test_nobody_is_told_of_the_loading_who_does_not_expect_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker:
            ctx = context(broker, 4)
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
            sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
            join = JoinGroupRequest(
                group_id="g", session_timeout_ms=6000, member_id="m", protocol_type="consumer", protocols=[]
            )
            async with loading(broker, monkeypatch):
                assert (await answer(groups.heartbeat(ctx, beat))).error_code == 0
                assert (await groups.sync_group(ctx, sync)).error_code == RebalanceInProgress.code
                assert (await groups.join_group(ctx, join)).error_code == CoordinatorLoadInProgress.code

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_member_goes_on_when_its_coordinator_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka's consumers give up when a heartbeat's answer speaks of loading."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            bootstrap = f"127.0.0.1:{broker.port}"
            consumer = AIOKafkaConsumer(
                "t",
                bootstrap_servers=bootstrap,
                group_id="g",
                auto_offset_reset="earliest",
                heartbeat_interval_ms=20,
            )
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer, consumer:
                await producer.send_and_wait("t", b"before")
                assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"before"
                async with loading(broker, monkeypatch):
                    beats = broker.metrics.request_seconds.labels("Heartbeat")
                    count = beats.count
                    await until(lambda: beats.count > count + 2)
                await producer.send_and_wait("t", b"after")
                assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"after"
                await consumer.commit()

    asyncio.run(asyncio.wait_for(main(), 60))


async def positions(broker: Broker, version: int) -> tuple[int, list[tuple[str, int, int, int]]]:
    """The group's error, and topic, partition, offset and error of what is told of it."""
    one, many = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestTopics
    if version < 8:
        asked = [one(name="t", partition_indexes=[0, 7, 0]), one(name="u", partition_indexes=[1])]
        response = await offset_fetch(
            context(broker, version), OffsetFetchRequest(group_id="g", topics=asked)
        )
        return response.error_code, [
            (topic.name, each.partition_index, each.committed_offset, each.error_code)
            for topic in response.topics
            for each in topic.partitions
        ]
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", topics=[many(name="t", partition_indexes=[0])]
    )
    (found,) = (await offset_fetch(context(broker, version), OffsetFetchRequest(groups=[group]))).groups
    return found.error_code, [
        (topic.name, each.partition_index, each.committed_offset, each.error_code)
        for topic in found.topics
        for each in topic.partitions
    ]


def test_a_groups_error_is_told_where_clients_of_each_version_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, loading(broker, monkeypatch):
            code = CoordinatorLoadInProgress.code
            for version in range(1, 8):
                told = [("t", 0, -1, code), ("t", 7, -1, code), ("u", 1, -1, code)]
                assert await positions(broker, version) == (code, told)
            for version in (8, 9):
                assert await positions(broker, version) == (code, [])
            everything = OffsetFetchRequest(group_id="g", topics=None)
            response = await offset_fetch(context(broker, 7), everything)
            assert (response.error_code, response.topics) == (code, [])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_nobody_who_asks_while_its_coordinator_is_loaded_takes_its_group_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka's consumers look at the partitions alone, and begin where `auto_offset_reset` says."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            place = TopicPartition("t", 0)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=f"127.0.0.1:{broker.port}", group_id="g", enable_auto_commit=False
            )
            async with consumer:
                consumer.assign([place])
                await consumer.commit({place: 5})
                async with loading(broker, monkeypatch):
                    asked = broker.metrics.request_seconds.labels("OffsetFetch")
                    count = asked.count
                    committed = asyncio.ensure_future(consumer.committed(place))
                    await until(lambda: asked.count > count)
                assert await asyncio.wait_for(committed, PATIENCE_S) == 5

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_asks_for_positions_is_never_told_that_there_is_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's consumers before 3.9, and aiokafka's, give up then; upon NOT_COORDINATOR they look for it."""

    def never(_: PartitionLog, next_offset: int) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with running(tmp_path, offsets_commit_timeout_ms="50") as broker:
            code = NotCoordinator.code
            with monkeypatch.context() as patch:
                patch.setattr(PartitionLog, "when_committed", never)
                assert await positions(broker, 1) == (
                    code,
                    [("t", 0, -1, code), ("t", 7, -1, code), ("u", 1, -1, code)],
                )
                assert await positions(broker, 9) == (code, [])
            with monkeypatch.context() as patch:
                patch.delitem(broker.metadata.topics, GROUPS_TOPIC)
                assert await positions(broker, 9) == (code, [])
            assert await positions(broker, 9) == (0, [("t", 0, -1, 0)])

    asyncio.run(asyncio.wait_for(main(), 60))
