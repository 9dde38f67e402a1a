"""Internal topics are what the coordinators need, whoever was the first to ask for one, and stay so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.handlers.metadata import metadata
from millstream.broker.handlers.topics import create_partitions
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.errors import InvalidPartitions
from millstream.model import TopicPartition
from millstream.protocol.messages import CreatePartitionsRequest, MetadataRequest

Wanted = MetadataRequest.MetadataRequestTopic
PLACE = TopicPartition("t", 0)


def with_broker(folder: Path, test: Callable[[Broker], Awaitable[None]], **options: str) -> None:
    async def main() -> None:
        config = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(folder),
            "num.partitions": "1",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "4",
        }
        async with Broker(BrokerConfig(config | options)) as broker:
            await test(broker)

    asyncio.run(asyncio.wait_for(main(), 30))


def context(broker: Broker, version: int) -> Context:
    return Context(broker, None, "PLAINTEXT", version, "client")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "count"), [(GROUPS_TOPIC, 3), (TRANSACTIONS_TOPIC, 4)])
def test_a_consumer_asks_before_there_is_a_group(tmp_path: Path, name: str, count: int) -> None:
    """One made like any other topic would lose what was committed when its records are old enough."""

    async def test(broker: Broker) -> None:
        request = MetadataRequest(topics=[Wanted(name=name)], allow_auto_topic_creation=True)
        (found,) = (await metadata(context(broker, 12), request)).topics
        assert (found.error_code, found.is_internal, len(found.partitions)) == (0, True, count)
        assert broker.metadata.topic(name).overrides["cleanup.policy"] == "compact"

    with_broker(tmp_path, test)


def test_groups_stay_where_they_are(tmp_path: Path) -> None:
    """With more partitions they would be looked for in others, and be found without their offsets."""

    async def test(broker: Broker) -> None:
        await broker.coordinators.topic(GROUPS_TOPIC)
        index = broker.coordinators.partition_of(GROUPS_TOPIC, "g")
        while not broker.groups.is_active(index):
            await asyncio.sleep(0.001)
        commits = [Commit(PLACE, 5, -1, "")]
        await broker.groups.write(index, lambda shard: shard.commits.commit("g", Caller(), commits))
        wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=GROUPS_TOPIC, count=50)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=1000, validate_only=False)
        (result,) = (await create_partitions(context(broker, 3), request)).results
        assert result.error_code == InvalidPartitions.code
        index = broker.coordinators.partition_of(GROUPS_TOPIC, "g")
        found = await broker.groups.read(index, lambda shard: shard.commits.committed("g", PLACE))
        assert (None if found is None else found.offset) == 5

    with_broker(tmp_path, test)
