"""Groups of librdkafka's consumers, with eager and with cooperative rebalances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat.members import QUICK, DoomedMember, Member, send
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import BrokerProcess, until

TIMEOUT_S = 30.0
STRATEGIES = ("range", "cooperative-sticky")


def values(count: int, mark: str = "v") -> list[bytes]:
    return [f"{mark}{number}".encode() for number in range(count)]


def shares(members: list[Member]) -> list[int]:
    """How many partitions each member reads, the fewest first."""
    return sorted(len(member.assigned) for member in members)


def total(members: list[Member]) -> Counter[bytes]:
    return sum((member.values for member in members), Counter())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_group_shares_the_records_and_the_surplus_is_idle(
    group_bootstrap: str, new_name: Name, strategy: str
) -> None:
    topic, group = create_topic(group_bootstrap, new_name("shared"), 3), new_name("group")
    sent = values(600)
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                Member(group_bootstrap, group, [topic], partition_assignment_strategy=strategy)
            )
            for _ in range(4)
        ]
        until(lambda: shares(members) == [0, 1, 1, 1], TIMEOUT_S, "an assignment")
        send(group_bootstrap, topic, sent, 3)
        until(lambda: len(total(members)) == 600, TIMEOUT_S, "all records")
        assert total(members) == Counter(sent)
        assert sorted(sum(member.values.values()) for member in members) == [0, 200, 200, 200]


def test_every_group_gets_everything(group_bootstrap: str, new_name: Name) -> None:
    topic = create_topic(group_bootstrap, new_name("all"), 2)
    sent = values(300)
    send(group_bootstrap, topic, sent, 2)
    with ExitStack() as stack:
        members = [stack.enter_context(Member(group_bootstrap, new_name("group"), [topic])) for _ in range(5)]
        for member in members:
            until(lambda: all(len(each.values) == 300 for each in members), TIMEOUT_S, "all records")
            assert member.values == Counter(sent)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_come_leave_and_die(
    group_bootstrap: str, new_name: Name, tmp_path: Path, strategy: str
) -> None:
    topic, group = create_topic(group_bootstrap, new_name("life"), 6), new_name("group")
    settings = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 100}
    with Member(group_bootstrap, group, [topic], **settings) as first:
        until(lambda: len(first.assigned) == 6, TIMEOUT_S, "all partitions")
        with Member(group_bootstrap, group, [topic], **settings) as second:
            until(lambda: shares([first, second]) == [3, 3], TIMEOUT_S, "half each")
            send(group_bootstrap, topic, values(60, "a"), 6)
            until(lambda: len(total([first, second])) == 60, TIMEOUT_S, "the first records")
        until(lambda: len(first.assigned) == 6, TIMEOUT_S, "all partitions after one left")
        doomed = DoomedMember(group_bootstrap, group, topic, tmp_path / "doomed", **settings)
        try:
            until(lambda: doomed.is_assigned and len(first.assigned) == 3, TIMEOUT_S, "half each again")
        finally:
            doomed.kill()
        until(lambda: len(first.assigned) == 6, TIMEOUT_S, "all partitions after one died")
        send(group_bootstrap, topic, values(60, "b"), 6)
        until(
            lambda: len([v for v in first.values if v.startswith(b"b")]) == 60, TIMEOUT_S, "the last records"
        )
        assert set(total([first, second]).values()) == {1}


def test_static_members_come_back_without_a_rebalance(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("static"), 4), new_name("group")
    # closing a static member does not take it out of the group: its session has to last
    settings = {"session_timeout_ms": 10_000}
    with Member(group_bootstrap, group, [topic], group_instance_id="one", **settings) as one:
        with Member(group_bootstrap, group, [topic], group_instance_id="two", **settings) as two:
            until(lambda: shares([one, two]) == [2, 2], TIMEOUT_S, "half each")
            before, assignments = two.assigned, one.assignments
        with Member(group_bootstrap, group, [topic], group_instance_id="two", **settings) as again:
            until(lambda: len(again.assigned) == 2, TIMEOUT_S, "the old partitions")
            assert again.assigned == before
            assert one.assignments == assignments
            with Member(group_bootstrap, group, [topic], group_instance_id="two", **settings) as twin:
                until(lambda: again.error is not None, TIMEOUT_S, "the former one is fenced")
                assert "fenced by other consumer" in str(again.error)
                until(lambda: twin.assigned == before, TIMEOUT_S, "the partitions pass on")


def test_a_pattern_meets_a_new_topic(group_bootstrap: str, new_name: Name) -> None:
    mark = new_name("pattern")
    first = create_topic(group_bootstrap, f"{mark}.a", 1)
    with Member(group_bootstrap, new_name("group"), [f"^{mark}\\..*"]) as member:
        until(lambda: member.assigned == [(first, 0)], TIMEOUT_S, "the first topic")
        second = create_topic(group_bootstrap, f"{mark}.b", 2)
        until(lambda: len(member.assigned) == 3, TIMEOUT_S, "the second topic")
        send(group_bootstrap, second, values(10), 2)
        until(lambda: len(member.values) == 10, TIMEOUT_S, "its records")


def test_fifty_members(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("fifty"), 60), new_name("group")
    consumers = [
        Consumer(
            {
                "bootstrap.servers": group_bootstrap,
                "group.id": group,
                **QUICK,
                "session.timeout.ms": 10_000,
                "topic.metadata.refresh.interval.ms": 60_000,
            }
        )
        for _ in range(50)
    ]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        until(lambda: balanced(consumers), 60, "60 partitions among 50 members")
        admin = AdminClient({"bootstrap.servers": group_bootstrap})
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert described.state == ConsumerGroupState.STABLE
        assert len(described.members) == 50
        sent = values(600)
        send(group_bootstrap, topic, sent, 60)
        got: Counter[bytes] = Counter()

        def all_read() -> bool:
            for consumer in consumers:
                got.update(
                    message.value() for message in consumer.consume(100, timeout=0) if not message.error()
                )
            return len(got) == 600

        until(all_read, TIMEOUT_S, "all records")
        assert got == Counter(sent)
    finally:
        for consumer in consumers:
            consumer.close()


def balanced(consumers: list[Consumer]) -> bool:
    for consumer in consumers:
        consumer.poll(0)
    counts = [len(consumer.assignment()) for consumer in consumers]
    return sum(counts) == 60 and max(counts) == 2 and min(counts) == 1


# Offsets


def test_offsets_notes_and_a_group_that_does_not_exist(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("offsets"), 3), new_name("group")
    partitions = [TopicPartition(topic, number) for number in range(3)]
    with closing(Consumer({"bootstrap.servers": group_bootstrap, "group.id": group})) as consumer:
        assert [each.offset for each in consumer.committed(partitions, TIMEOUT_S)] == [-1001] * 3
        commits = [TopicPartition(topic, 0, 5, metadata="a note: ünïcode"), TopicPartition(topic, 2, 7)]
        consumer.commit(offsets=commits, asynchronous=False)
        found = consumer.committed(partitions, TIMEOUT_S)
        assert [each.offset for each in found] == [5, -1001, 7]
        assert found[0].metadata == "a note: ünïcode"
        with pytest.raises(KafkaException) as caught:
            consumer.commit(offsets=[TopicPartition(topic, 1, 1, metadata="x" * 5000)], asynchronous=False)
        assert caught.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE


def test_an_admin_looks_at_groups_and_changes_them(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("admin"), 2), new_name("group")
    admin = AdminClient({"bootstrap.servers": group_bootstrap})

    def result(futures: dict[str, Any]) -> Any:
        return futures[group].result(TIMEOUT_S)

    def offsets() -> list[int]:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, n) for n in range(2)])
        listed = result(admin.list_consumer_group_offsets([asked], require_stable=True))
        return [each.offset for each in listed.topic_partitions]

    def move(offset: int) -> int | None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
        (moved,) = result(admin.alter_consumer_group_offsets([wanted])).topic_partitions
        return None if moved.error is None else int(moved.error.code())

    def listed(state: ConsumerGroupState) -> list[Any]:
        found = admin.list_consumer_groups(states={state}).result(TIMEOUT_S)
        assert not found.errors
        return [each for each in found.valid if each.group_id == group]

    assert move(3) is None  # nobody is there: a simple group
    assert offsets() == [3, -1001]
    assert listed(ConsumerGroupState.EMPTY)[0].is_simple_consumer_group
    with Member(group_bootstrap, group, [topic], client_id="somebody", enable_auto_commit=False) as member:
        until(lambda: len(member.assigned) == 2, TIMEOUT_S, "an assignment")
        described = result(admin.describe_consumer_groups([group]))
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        (shown,) = described.members
        assert (shown.client_id, shown.host) == ("somebody", "/127.0.0.1")
        assigned = [(each.topic, each.partition) for each in shown.assignment.topic_partitions]
        assert sorted(assigned) == [(topic, 0), (topic, 1)]
        assert listed(ConsumerGroupState.STABLE)
        assert not listed(ConsumerGroupState.EMPTY)
        assert move(9) == KafkaError.UNKNOWN_MEMBER_ID
        with pytest.raises(KafkaException) as caught:
            result(admin.delete_consumer_groups([group]))
        assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    assert move(9) is None
    assert offsets() == [9, -1001]
    result(admin.delete_consumer_groups([group]))
    assert offsets() == [-1001, -1001]
    with pytest.raises(KafkaException) as caught:
        result(admin.delete_consumer_groups([group]))
    assert caught.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_and_members_survive_a_kill_of_the_broker(
    broker_process: Callable[..., BrokerProcess], new_name: Name
) -> None:
    """What was acknowledged a moment before is there, and members go on where they were."""
    broker = broker_process(group_initial_rebalance_delay_ms="0", group_min_session_timeout_ms="500").start()
    topic, group = create_topic(broker.bootstrap, new_name("killed"), 2), new_name("group")
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": f"{group}-simple",
        "reconnect.backoff.max.ms": 100,
    }
    member = Member(
        broker.bootstrap,
        group,
        [topic],
        session_timeout_ms=20_000,
        auto_commit_interval_ms=50,
        reconnect_backoff_max_ms=100,
    )
    with closing(Consumer(settings)) as consumer, member:
        until(lambda: len(member.assigned) == 2, TIMEOUT_S, "an assignment")
        rounds = member.assignments
        for round_number in range(3):
            for offset in range(round_number * 50, round_number * 50 + 20):
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            broker.kill()
            broker.start()
            (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
            assert found.offset == round_number * 50 + 19
            send(broker.bootstrap, topic, values(20, f"{round_number}."), 2)
            count = 20 * (round_number + 1)
            until(lambda count=count: len(member.values) == count, TIMEOUT_S, "the records")  # type: ignore[misc]
        assert set(member.values.values()) == {1}
        assert member.assignments == rounds  # its place in the group was written down
