"""Consumers that share the work of a group, of either protocol, on Millstream and on Apache Kafka."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from bench.apache_kafka import KafkaBroker

from millstream import AsyncConsumer, TopicPartition
from millstream.client import consumer_group
from millstream.client.cluster import Cluster
from millstream.client.group_host import Subscription
from millstream.client.group_offsets import fetch_committed
from millstream.client.groups import describe_group
from millstream.client.topics import add_partitions
from millstream.deadline import Deadline
from millstream.errors import FencedInstanceId, StaleMemberEpoch, UnknownMemberId
from millstream.protocol.messages import ConsumerGroupHeartbeatResponse, JoinGroupResponse
from millstream.testing import Broker
from tests.client.conftest import KEEP_ALL
from tests.client.consuming import PATIENCE_S, fill, new_topic, numbered, read, until

Body = Callable[[str], Coroutine[Any, Any, None]]

QUICK = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    **KEEP_ALL,
}
KINDS = ["millstream", pytest.param("kafka", marks=pytest.mark.java)]


@pytest.fixture(params=KINDS, scope="module")
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker whose groups move fast, once of each kind."""
    if request.param == "millstream":
        with Broker(config=QUICK) as broker:
            yield broker.bootstrap
    else:
        with KafkaBroker(tmp_path_factory.mktemp("kafka"), heap="400m", settings=QUICK) as kafka:
            yield kafka.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Callable[[Body], None]:
    def go(body: Body) -> None:
        uvloop.run(body(bootstrap))

    return go


def member(bootstrap: str, group: str, **options: Any) -> AsyncConsumer:
    quick: dict[str, Any] = {
        "offset_reset": "earliest",
        "heartbeat_interval_ms": 150,
        "session_timeout_ms": 6_000,
        "auto_commit_interval_ms": 200,
        "metadata_max_age_ms": 300,
    }
    return AsyncConsumer(bootstrap, group=group, **{**quick, **options})


both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@both_protocols
def test_members_share_partitions_and_take_over_from_those_who_leave(
    run: Callable[[Body], None], protocol: str
) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 4)
        everything = {TopicPartition(topic, index) for index in range(4)}
        async with member(bootstrap, f"share-{topic}", group_protocol=protocol) as first:
            first.subscribe(topic)
            await until(lambda: first.assignment == everything, first)
            async with member(bootstrap, f"share-{topic}", group_protocol=protocol) as second:
                second.subscribe(topic)
                await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2, first, second)
                assert first.assignment | second.assignment == everything
                for index in range(4):
                    await fill(bootstrap, topic, index, numbered(25))
                got: list[tuple[int, int]] = []
                while len(got) < 100:
                    for consumer in (first, second):
                        got += [(r.partition, r.offset) for r in await consumer.poll(timeout=0.1)]
                assert sorted(got) == [(p, o) for p in range(4) for o in range(25)]
            await until(lambda: first.assignment == everything, first)
            assert await first.poll(timeout=0.3) == [], "what the second read was committed as it left"
            async with Cluster(bootstrap) as cluster:
                group = await describe_group(cluster, f"share-{topic}", Deadline(30_000))
            assert (group.type, len(group.members)) == (protocol, 1)

    run(body)


@both_protocols
def test_a_rebalance_calls_back_and_cooperatively_takes_only_what_moves(
    run: Callable[[Body], None], protocol: str
) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 3)
        told: list[tuple[str, list[int]]] = []

        def tell(kind: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: told.append((kind, [each.partition for each in partitions]))

        async with member(bootstrap, f"calls-{topic}", group_protocol=protocol) as first:
            first.subscribe(topic, on_assigned=tell("+"), on_revoked=tell("-"), on_lost=tell("!"))
            await until(lambda: len(first.assignment) == 3, first)
            assert told == [("+", [0, 1, 2])]
            async with member(bootstrap, f"calls-{topic}", group_protocol=protocol) as second:
                second.subscribe(topic)
                await until(lambda: bool(second.assignment), first, second)
                moved = [each.partition for each in second.assignment]
                assert told[1:] == [("-", moved)]
            await until(lambda: len(first.assignment) == 3, first)
            assert told[2:] == [("+", moved)]
        assert told[3:] == [("-", [0, 1, 2])]

    run(body)


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_eager_assignors_take_all_and_give_anew(run: Callable[[Body], None], assignor: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 4)
        told: list[tuple[str, int]] = []
        async with member(bootstrap, f"eager-{topic}", assignors=[assignor]) as first:
            first.subscribe(
                topic,
                on_assigned=lambda partitions: told.append(("+", len(partitions))),
                on_revoked=lambda partitions: told.append(("-", len(partitions))),
            )
            await until(lambda: len(first.assignment) == 4, first)
            async with member(bootstrap, f"eager-{topic}", assignors=[assignor]) as second:
                second.subscribe(topic)
                await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2, first, second)
                assert told == [("+", 4), ("-", 4), ("+", 2)]
                indexes = sorted(each.partition for each in first.assignment)
                assert indexes in ([[0, 1], [2, 3]] if assignor == "range" else [[0, 2], [1, 3]])

    run(body)


@both_protocols
def test_commits_when_told_and_by_itself_and_goes_on_there(
    run: Callable[[Body], None], protocol: str
) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        here = TopicPartition(topic, 0)
        await fill(bootstrap, topic, 0, numbered(30))
        options: dict[str, Any] = {"group_protocol": protocol}
        async with member(bootstrap, f"commits-{topic}", auto_commit=False, **options) as consumer:
            consumer.subscribe(topic)
            assert len(await read(consumer, 1, max_records=10)) == 10
            assert await consumer.committed() == {}
            await consumer.commit()
            assert (await consumer.committed([here]))[here].offset == 10
            assert len(await read(consumer, 1, max_records=5)) == 5
            await consumer.commit_async({here: 12})
            assert (await consumer.committed([here]))[here].offset == 12
        async with member(bootstrap, f"commits-{topic}", **options) as consumer:
            consumer.subscribe(topic)
            records = await read(consumer, 1, max_records=8)
            assert [record.offset for record in records] == list(range(12, 20))
            async with asyncio.timeout(PATIENCE_S):
                while (await consumer.committed([here]))[here].offset != 20:  # it commits by itself
                    await asyncio.sleep(0.05)
                    await consumer.poll(max_records=0, timeout=0)
            await read(consumer, 1, max_records=4)
        async with member(bootstrap, f"commits-{topic}", **options) as consumer:
            consumer.subscribe(topic)
            assert (await read(consumer, 1))[0].offset == 24, "committed as it was closed"

    run(body)


def test_a_commit_within_an_iteration_covers_the_record_at_hand(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        here = TopicPartition(topic, 0)
        await fill(bootstrap, topic, 0, numbered(10))
        async with member(bootstrap, f"each-{topic}", auto_commit=False) as consumer:
            consumer.subscribe(topic)
            async for record in consumer:
                await consumer.commit()
                assert (await consumer.committed())[here].offset == record.offset + 1
                if record.offset == 4:
                    break

    run(body)


@both_protocols
def test_a_callback_may_commit_before_partitions_go(run: Callable[[Body], None], protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        for index in range(2):
            await fill(bootstrap, topic, index, numbered(5))
        group = f"hand-over-{topic}"
        async with member(bootstrap, group, auto_commit=False, group_protocol=protocol) as first:

            async def revoked(partitions: list[TopicPartition]) -> None:
                await first.commit()

            first.subscribe(topic, on_revoked=revoked)
            await read(first, 10)
            async with member(bootstrap, group, auto_commit=False, group_protocol=protocol) as second:
                second.subscribe(topic)
                await until(lambda: len(second.assignment) == 1, first, second)
                (moved,) = second.assignment
                assert await second.position(moved) == 5

    run(body)


@both_protocols
def test_a_pattern_meets_topics_that_come_later(run: Callable[[Body], None], protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        prefix = f"pattern-{protocol}"
        one = await new_topic(bootstrap, 1, prefix)
        await new_topic(bootstrap, 1, "elsewhere")
        async with member(bootstrap, f"{prefix}-{one}", group_protocol=protocol) as consumer:
            consumer.subscribe(re.compile(f"{prefix}-.*"))
            await until(lambda: consumer.assignment == {TopicPartition(one, 0)}, consumer)
            two = await new_topic(bootstrap, 2, prefix)
            wanted = {TopicPartition(one, 0), TopicPartition(two, 0), TopicPartition(two, 1)}
            await until(lambda: consumer.assignment == wanted, consumer)
            if protocol == "classic":
                assert consumer.subscription == {one, two}

    run(body)


@both_protocols
def test_partitions_that_are_added_are_read_too(run: Callable[[Body], None], protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 1)
        async with member(bootstrap, f"grows-{topic}", group_protocol=protocol) as consumer:
            consumer.subscribe(topic)
            await until(lambda: len(consumer.assignment) == 1, consumer)
            async with Cluster(bootstrap) as cluster:
                await add_partitions(cluster, topic, 3, Deadline(30_000))
            await until(lambda: len(consumer.assignment) == 3, consumer)

    run(body)


def test_a_subscription_can_change(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        one, two = await new_topic(bootstrap), await new_topic(bootstrap)
        async with member(bootstrap, f"changes-{one}") as consumer:
            consumer.subscribe(one)
            await until(lambda: consumer.assignment == {TopicPartition(one, 0)}, consumer)
            consumer.subscribe([two])
            await until(lambda: consumer.assignment == {TopicPartition(two, 0)}, consumer)
            await consumer.unsubscribe()
            assert consumer.assignment == frozenset()
            consumer.subscribe([one, two])
            await until(lambda: len(consumer.assignment) == 2, consumer)

    run(body)


@both_protocols
def test_a_static_member_comes_back_to_what_it_had(run: Callable[[Body], None], protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 4)
        group = f"static-{topic}"
        told: list[str] = []
        async with member(bootstrap, group, group_protocol=protocol, group_instance_id="one") as first:
            first.subscribe(topic, on_revoked=lambda _: told.append("-"))
            second = member(bootstrap, group, group_protocol=protocol, group_instance_id="two")
            second.subscribe(topic)
            await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2, first, second)
            had = second.assignment
            told.clear()
            await second.close()
            for _ in range(3):
                await first.poll(timeout=0.1)
            async with member(bootstrap, group, group_protocol=protocol, group_instance_id="two") as again:
                again.subscribe(topic)
                await until(lambda: again.assignment == had, first, again)
                assert told == []

    run(body)


def test_a_second_member_of_the_same_name_puts_the_first_out(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        options: dict[str, Any] = {"group_instance_id": "only"}
        async with member(bootstrap, f"fenced-{topic}", **options) as first:
            first.subscribe(topic)
            await until(lambda: bool(first.assignment), first)
            async with member(bootstrap, f"fenced-{topic}", **options) as second:
                second.subscribe(topic)
                await until(lambda: bool(second.assignment), second)
                with pytest.raises(FencedInstanceId):
                    await until(lambda: False, first)
                with pytest.raises(FencedInstanceId):
                    await first.poll()

    run(body)


@both_protocols
def test_who_asks_for_no_records_for_too_long_leaves_and_comes_back(
    run: Callable[[Body], None], protocol: str
) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        told: list[str] = []
        options: dict[str, Any] = {
            "group_protocol": protocol,
            "max_poll_interval_ms": 1_000,
            "auto_commit": False,
        }
        async with (
            member(bootstrap, f"slow-{topic}", **options) as slow,
            member(bootstrap, f"slow-{topic}", **options) as keen,
        ):
            slow.subscribe(
                topic, on_lost=lambda _: told.append("lost"), on_assigned=lambda _: told.append("assigned")
            )
            keen.subscribe(topic)
            await until(lambda: len(slow.assignment) == 1 and len(keen.assignment) == 1, slow, keen)
            told.clear()
            await until(lambda: len(keen.assignment) == 2, keen)
            with pytest.raises((UnknownMemberId, StaleMemberEpoch)):
                await slow.commit({TopicPartition(topic, 0): 1}, timeout=1)
            await until(lambda: len(slow.assignment) == 1 and len(keen.assignment) == 1, slow, keen)
            assert told == ["lost", "assigned"]

    run(body)


def test_who_is_put_out_while_it_is_to_give_up_its_partitions_reads_again(
    run: Callable[[Body], None],
) -> None:
    """An eager member whose caller works for too long during a rebalance."""

    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        options: dict[str, Any] = {"assignors": ("range",), "max_poll_interval_ms": 1500}
        async with member(bootstrap, f"group-{topic}", **options) as slow:
            slow.subscribe(topic)
            await until(lambda: len(slow.assignment) == 2, slow)
            options["max_poll_interval_ms"] = 60_000
            async with member(bootstrap, f"group-{topic}", **options) as other:
                other.subscribe(topic)
                await until(lambda: len(other.assignment) == 2, other)  # `slow` is not polled
                both = [slow, other]
                await until(lambda: [len(one.assignment) for one in both] == [1, 1], *both)

    run(body)


def test_a_member_that_waits_for_records_is_not_slow(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        told: list[str] = []
        async with member(bootstrap, f"waits-{topic}", max_poll_interval_ms=1_000) as consumer:
            consumer.subscribe(topic, on_lost=lambda _: told.append("lost"))
            task = asyncio.ensure_future(consumer.__anext__())
            await asyncio.sleep(2)
            await fill(bootstrap, topic, 0, [b"at last"])
            assert (await task).value == b"at last"
            assert told == []

    run(body)


def test_groups_may_assign_by_hand_and_commit(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await fill(bootstrap, topic, 0, numbered(10))
        async with member(bootstrap, f"hand-{topic}") as consumer:
            consumer.assign([(topic, 0)])
            await read(consumer, 1, max_records=6)
        async with member(bootstrap, f"hand-{topic}") as consumer:
            consumer.assign([(topic, 0)])
            assert await consumer.position((topic, 0)) == 6
            assert consumer.group_metadata.group == f"hand-{topic}"

    run(body)


def test_an_assignment_that_is_replaced_by_hand_is_committed(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        await fill(bootstrap, topic, 0, numbered(10))
        async with member(bootstrap, f"replaced-{topic}", auto_commit_interval_ms=300_000) as consumer:
            consumer.assign([first])
            await read(consumer, 1, max_records=6)
            consumer.assign([second])
        async with member(bootstrap, f"replaced-{topic}") as consumer:
            assert (await consumer.committed([first]))[first].offset == 6

    run(body)


def test_a_position_that_does_not_change_is_committed_again_now_and_then(
    run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers forget what nobody in a group has committed for long."""

    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        place = TopicPartition(topic, 0)
        await fill(bootstrap, topic, 0, numbered(10))
        async with (
            member(bootstrap, f"again-{topic}", auto_commit_interval_ms=50) as consumer,
            member(bootstrap, f"again-{topic}", auto_commit=False) as other,
        ):

            async def committed() -> int:
                found = await other.committed([place])
                return found[place].offset if place in found else -1

            async def until_committed() -> None:
                async with asyncio.timeout(PATIENCE_S):
                    while await committed() != 10:
                        await consumer.poll(timeout=0.05)

            consumer.assign([place])
            await read(consumer, 10)
            await until_committed()
            await other.commit({place: 3})
            for _ in range(10):
                await consumer.poll(timeout=0.1)
            assert await committed() == 3, "not at each interval"
            monkeypatch.setattr(consumer_group, "RENEWAL_S", 0.5)
            await until_committed()

    run(body)


def test_a_member_knows_what_it_has_though_its_topic_is_not_told_for_a_while(
    run: Callable[[Body], None],
) -> None:
    """A broker's answer may lack a topic; what a member does not say that it has, others are given."""

    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        async with member(bootstrap, f"known-{topic}", group_protocol="consumer") as consumer:
            consumer.subscribe(topic)
            await until(lambda: len(consumer.assignment) == 2, consumer)
            membership: Any = consumer._group._membership  # type: ignore[union-attr]
            (owned,) = membership._owned()
            del consumer._cluster.metadata.topics[topic]
            assert membership._owned() == [owned]
            assignment = ConsumerGroupHeartbeatResponse.Assignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponse.TopicPartitions(
                        topic_id=owned.topic_id, partitions=owned.partitions
                    )
                ]
            )
            membership._subscription = Subscription(frozenset(["of-another-name"]))
            assert await membership._named(assignment) == consumer.assignment
            membership._subscription = Subscription(frozenset([topic]))

    run(body)


def test_closing_while_the_group_waits_for_another_member(run: Callable[[Body], None]) -> None:
    """A JoinGroup is answered when the slowest member has come: neither commits nor leaving wait for that."""

    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        name = f"closing-{topic}"
        for index in range(2):
            await fill(bootstrap, topic, index, numbered(10))
        first = member(bootstrap, name, auto_commit_interval_ms=300_000)
        async with (
            member(bootstrap, name) as second,
            member(bootstrap, name) as third,
            Cluster(bootstrap) as it,
        ):
            first.subscribe(topic)
            await read(first, 20)
            second.subscribe(topic)  # and never polls: it takes no partitions on, and joins no more
            await until(lambda: len(first.assignment) == 1, first)
            who = first.group_metadata.member_id

            async def members() -> tuple[str, set[str]]:
                group = await describe_group(it, name, Deadline(30_000))
                return group.state, {each.member_id for each in group.members}

            async with asyncio.timeout(30):
                while (await members())[0] != "Stable":
                    await asyncio.sleep(0.02)
                third.subscribe(topic)
                while not _joins(first):
                    await asyncio.sleep(0.02)
                assert (await members())[0] == "PreparingRebalance"
                (kept,) = first.assignment
                first.seek(kept, 3)
                await asyncio.wait_for(first.close(timeout=300), 15)
                assert who not in (await members())[1]
                assert (await fetch_committed(it, name, Deadline(30_000)))[kept].offset == 3

    run(body)


def _joins(consumer: AsyncConsumer) -> bool:
    """Whether a JoinGroup, and no short request, is out."""
    group: Any = consumer._group
    waiting = [
        each.response
        for task in consumer._coordinators._connections.values()
        if task.done()
        for each in task.result()._waiting
    ]
    return group is not None and JoinGroupResponse in waiting
