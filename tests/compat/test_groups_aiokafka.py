"""Groups of aiokafka's consumers, which speak the oldest versions; and five hundred groups at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.compat.topics import create_topic
from tests.conftest import Name

TIMEOUT_S = 60.0
GROUPS = 500
AT_ONCE = 100
"""How many of the groups' members are alive at a time: each has three connections."""


def consumer(bootstrap: str, group: str, *topics: str, **settings: Any) -> AIOKafkaConsumer:
    quick: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 5000,
        "heartbeat_interval_ms": 200,
        "fetch_max_wait_ms": 50,
        "metadata_max_age_ms": 1000,
    }
    return AIOKafkaConsumer(*topics, **{**quick, **settings})


async def send(bootstrap: str, topic: str, count: int, partitions: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        sent = [await producer.send(topic, b"%d" % n, partition=n % partitions) for n in range(count)]
        await asyncio.gather(*sent)


class Rounds(ConsumerRebalanceListener):
    """Counts rebalances."""

    def __init__(self) -> None:
        self.assigned = 0

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to be done."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += 1


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
)
def test_a_group_shares_and_members_come_and_go(group_bootstrap: str, new_name: Name, assignor: type) -> None:
    topic, group = create_topic(group_bootstrap, new_name("aio"), 4), new_name("group")

    async def story() -> None:
        got: Counter[bytes] = Counter()
        settings = {"partition_assignment_strategy": [assignor]}

        async def read(reader: AIOKafkaConsumer) -> None:
            async for message in reader:
                got[message.value] += 1

        async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
            first = consumer(group_bootstrap, group, topic, **settings)
            await first.start()
            stack.push_async_callback(first.stop)
            assert len(first.assignment()) == 4
            second = consumer(group_bootstrap, group, topic, **settings)
            await second.start()
            tasks = [asyncio.create_task(read(reader)) for reader in (first, second)]
            while [len(first.assignment()), len(second.assignment())] != [2, 2]:
                await asyncio.sleep(0.02)
            await send(group_bootstrap, topic, 200, 4)
            while len(got) < 200:
                await asyncio.sleep(0.02)
            assert set(got.values()) == {1}
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)
            await second.stop()  # leaves, and commits what it read
            while len(first.assignment()) != 4:
                await asyncio.sleep(0.02)
            await first.commit()
            committed = [await first.committed(TopicPartition(topic, n)) for n in range(4)]
            assert committed == [50] * 4
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)

    asyncio.run(story())


def test_a_static_member_comes_back_without_a_rebalance(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("aio-static"), 2), new_name("group")

    async def story() -> None:
        rounds = Rounds()
        async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
            first = consumer(group_bootstrap, group, group_instance_id="one", session_timeout_ms=30_000)
            first.subscribe([topic], listener=rounds)
            await first.start()
            stack.push_async_callback(first.stop)
            second = consumer(
                group_bootstrap, group, topic, group_instance_id="two", session_timeout_ms=30_000
            )
            await second.start()
            while [len(first.assignment()), len(second.assignment()), rounds.assigned] != [1, 1, 2]:
                await asyncio.sleep(0.02)
            had = second.assignment()
            await second.stop()
            again = consumer(
                group_bootstrap, group, topic, group_instance_id="two", session_timeout_ms=30_000
            )
            await again.start()
            stack.push_async_callback(again.stop)
            assert again.assignment() == had
            assert rounds.assigned == 2

    asyncio.run(story())


def test_five_hundred_groups_get_everything_each(group_bootstrap: str, new_name: Name) -> None:
    topic, mark = create_topic(group_bootstrap, new_name("many"), 1), new_name("group")

    async def one(number: int, turns: asyncio.Semaphore) -> int:
        async with turns:
            reader = consumer(group_bootstrap, f"{mark}-{number}", topic, enable_auto_commit=False)
            async with reader:
                values: list[bytes] = []
                while len(values) < 10:
                    for messages in (await reader.getmany(timeout_ms=1000)).values():
                        values += [message.value for message in messages]
                assert values == [b"%d" % n for n in range(10)]
                await reader.commit()
                committed: int = await reader.committed(TopicPartition(topic, 0))
                return committed

    async def story() -> None:
        await send(group_bootstrap, topic, 10, 1)
        turns = asyncio.Semaphore(AT_ONCE)
        async with asyncio.timeout(TIMEOUT_S * 2):
            committed = await asyncio.gather(*(one(number, turns) for number in range(GROUPS)))
        assert committed == [10] * GROUPS
        admin = AIOKafkaAdminClient(bootstrap_servers=group_bootstrap)
        await admin.start()
        try:
            listed = {name for name, _ in await admin.list_consumer_groups()}
        finally:
            await admin.close()
        assert {f"{mark}-{number}" for number in range(GROUPS)} <= listed

    asyncio.run(story())
