"""Topics, configurations and offsets, on Millstream and on Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.client.cluster import Cluster
from millstream.client.configs import Change, Resource, alter_configs, describe_configs
from millstream.client.errors import NoSuchTopic
from millstream.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Found, list_offsets
from millstream.client.record_deletion import delete_records
from millstream.client.topics import add_partitions, create_topic, delete_topic
from millstream.deadline import Deadline
from millstream.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    KafkaError,
    OffsetOutOfRange,
    TopicAlreadyExists,
)
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.batch import encode_batch
from millstream.protocol.record import Record
from tests.client.conftest import Work
from tests.client.raw import produce
from tests.conftest import Name

Run = Callable[[Work], Any]


def test_create_and_delete(with_cluster: Run, new_name: Name) -> None:
    name = new_name("made")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        created = await create_topic(cluster, name, deadline, partitions=3, configs={"retention.ms": "1000"})
        assert (created.name, created.partitions, created.replication_factor) == (name, 3, 1)
        topic = await cluster.topic(name, deadline)
        assert topic.id == created.id != NO_UUID
        assert sorted(topic.partitions) == [0, 1, 2]
        assert all(p.leader in cluster.metadata.nodes for p in topic.partitions.values())
        with pytest.raises(TopicAlreadyExists, match=name):
            await create_topic(cluster, name, deadline)
        await delete_topic(cluster, name, deadline)
        assert name not in (await cluster.refresh(None, deadline)).topics
        with pytest.raises(NoSuchTopic):
            await delete_topic(cluster, name, deadline)

    with_cluster(work)


def test_the_broker_decides_what_is_not_said(with_cluster: Run, new_name: Name) -> None:
    async def work(cluster: Cluster, deadline: Deadline) -> None:
        created = await create_topic(cluster, new_name("default"), deadline)
        assert (created.partitions, created.replication_factor) == (1, 1)

    with_cluster(work)


def test_checking_only_changes_nothing(with_cluster: Run, new_name: Name) -> None:
    name = new_name("checked")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2, validate_only=True)
        assert name not in (await cluster.refresh(None, deadline)).topics
        await create_topic(cluster, name, deadline, partitions=2)
        await add_partitions(cluster, name, 5, deadline, validate_only=True)
        changes = [("retention.ms", Change.SET, "5000")]
        await alter_configs(cluster, Resource.TOPIC, name, changes, deadline, validate_only=True)
        topic = (await cluster.refresh([name], deadline)).topic(name)
        assert len(topic.partitions) == 2
        found = await describe_configs(cluster, Resource.TOPIC, name, deadline, keys=["retention.ms"])
        assert found[0].source != "topic"

    with_cluster(work)


def test_assigned_replicas(with_cluster: Run, new_name: Name) -> None:
    async def work(cluster: Cluster, deadline: Deadline) -> None:
        node = (await cluster.refresh([], deadline)).controller_id
        name = new_name("assigned")
        await create_topic(cluster, name, deadline, assignment={0: [node], 1: [node]})
        topic = await cluster.topic(name, deadline)
        assert [p.replicas for p in topic.partitions.values()] == [(node,), (node,)]

    with_cluster(work)


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("no spaces", {}, InvalidTopic),
        ("zero", {"partitions": 0}, InvalidPartitions),
        ("many", {"replication_factor": 9}, InvalidReplicationFactor),
        ("misspelt", {"configs": {"retention.sm": "1"}}, InvalidConfig),
    ],
)
def test_what_cannot_be_created(with_cluster: Run, name: str, options: Any, error: type[KafkaError]) -> None:
    async def work(cluster: Cluster, deadline: Deadline) -> None:
        with pytest.raises(error, match=f"topic {name}: "):
            await create_topic(cluster, name, deadline, **options)

    with_cluster(work)


def test_more_partitions(with_cluster: Run, new_name: Name) -> None:
    name = new_name("grown")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2)
        await add_partitions(cluster, name, 4, deadline)
        assert len((await cluster.topic(name, deadline)).partitions) == 4
        with pytest.raises(InvalidPartitions):
            await add_partitions(cluster, name, 3, deadline)
        with pytest.raises(NoSuchTopic):
            await add_partitions(cluster, new_name("absent"), 3, deadline)

    with_cluster(work)


def test_configurations(with_cluster: Run, new_name: Name) -> None:
    name = new_name("configured")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, configs={"cleanup.policy": "compact"})

        async def shows(roll: str, policies: set[str], source: str) -> None:
            """Brokers of a cluster learn of a change a moment after it was answered."""
            while True:
                found = await describe_configs(cluster, Resource.TOPIC, name, deadline)
                values = {config.name: (config.value or "", config.source) for config in found}
                is_there = values["segment.ms"] == (roll, source)
                if is_there and set(values["cleanup.policy"][0].split(",")) == policies:
                    assert values["cleanup.policy"][1] == "topic"
                    return
                assert not deadline.has_passed, values["cleanup.policy"]
                await asyncio.sleep(0.01)

        await shows("604800000", {"compact"}, "default")
        changes: list[tuple[str, Change, str | None]] = [
            ("segment.ms", Change.SET, "1234"),
            ("cleanup.policy", Change.APPEND, "delete"),
        ]
        await alter_configs(cluster, Resource.TOPIC, name, changes, deadline)
        await shows("1234", {"compact", "delete"}, "topic")
        changes = [("segment.ms", Change.DELETE, None), ("cleanup.policy", Change.SUBTRACT, "compact")]
        await alter_configs(cluster, Resource.TOPIC, name, changes, deadline)
        await shows("604800000", {"delete"}, "default")
        changes = [("segment.ms", Change.SET, "soon")]
        with pytest.raises(InvalidConfig):
            await alter_configs(cluster, Resource.TOPIC, name, changes, deadline)
        with pytest.raises(NoSuchTopic, match="absent"):
            await describe_configs(cluster, Resource.TOPIC, new_name("absent"), deadline)

    with_cluster(work)


def test_a_brokers_configuration(with_cluster: Run) -> None:
    async def work(cluster: Cluster, deadline: Deadline) -> None:
        node = (await cluster.refresh([], deadline)).controller_id
        found = await describe_configs(cluster, Resource.BROKER, str(node), deadline)
        configs = {config.name: config for config in found}
        assert configs["num.partitions"].value == "1"
        assert configs["num.partitions"].kind == "int"
        assert configs["log.retention.ms"].doc

    with_cluster(work)


def test_offsets(with_cluster: Run, new_name: Name) -> None:
    name = new_name("offsets")
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    base_ms = 1_780_000_000_000

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2)
        for number in range(4):
            record = Record(value=b"v", timestamp=base_ms + number * 1000)
            produced = await produce(cluster, first, encode_batch([record]), deadline)
            assert produced == number

        async def offsets(time_ms: int) -> tuple[int, int]:
            found = await list_offsets(cluster, {first: time_ms, second: time_ms}, deadline)
            return found[first].offset, found[second].offset

        assert await offsets(EARLIEST) == (0, 0)
        assert await offsets(LATEST) == (4, 0)
        assert await offsets(base_ms - 1) == (0, -1)
        assert await offsets(base_ms + 1001) == (2, -1)
        assert await offsets(base_ms + 3001) == (-1, -1)
        found = await list_offsets(cluster, {first: MAX_TIMESTAMP}, deadline)
        assert (found[first].offset, found[first].timestamp_ms) == (3, base_ms + 3000)
        assert isinstance(found[first], Found)
        with pytest.raises(NoSuchTopic, match="partitions 0 to 1, not 9"):
            await list_offsets(cluster, {TopicPartition(name, 9): LATEST}, deadline)

    with_cluster(work)


def test_deleting_records(with_cluster: Run, new_name: Name) -> None:
    name = new_name("trimmed")
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2)
        records = [Record(value=b"v", timestamp=1_780_000_000_000) for _ in range(5)]
        await produce(cluster, first, encode_batch(records), deadline)
        results = await delete_records(cluster, {first: 3, second: 7}, deadline)
        assert results[first] == 3
        assert isinstance(results[second], OffsetOutOfRange)
        assert (await list_offsets(cluster, {first: EARLIEST}, deadline))[first].offset == 3
        assert await delete_records(cluster, {first: -1}, deadline) == {first: 5}

    with_cluster(work)
