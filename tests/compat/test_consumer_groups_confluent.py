"""The consumer protocol (KIP-848) with librdkafka's consumers, also beside those of the classic protocol.

When members come or go soon after records were read, librdkafka 2.16 may read partitions that it keeps again
from where they were last committed (with Apache Kafka as well), so that records are looked for at least once
there.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.behaviour.groups.test_group_configs import SESSION, SET, alter
from tests.compat.conftest import CONSUMER_OPTIONS
from tests.compat.members import DoomedMember, Member, client_settings, send
from tests.compat.topics import create_topic
from tests.conftest import OUTSIDE, Name
from tests.processes import BrokerProcess, until
from tests.wire import Wire

TIMEOUT_S = 30.0

NEW = {
    "group_protocol": "consumer",
    "session_timeout_ms": None,
    "heartbeat_interval_ms": None,
    "auto_commit_interval_ms": 100,
}
"""Members of the new protocol leave time-outs to the broker."""

CLASSIC = {"group_protocol": "classic", "auto_commit_interval_ms": 100}


@pytest.fixture(scope="module")
def bootstrap(consumer_bootstrap: str) -> str:
    return consumer_bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def values(count: int, mark: str = "v") -> list[bytes]:
    return [f"{mark}{number}".encode() for number in range(count)]


def shares(*members: Member) -> list[int]:
    """How many partitions each member reads, the fewest first."""
    return sorted(len(member.assigned) for member in members)


def total(*members: Member) -> Counter[bytes]:
    return sum((member.values for member in members), Counter())


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_group_shares_the_records_and_the_surplus_is_idle(
    bootstrap: str, new_name: Name, assignor: str
) -> None:
    topic, group = create_topic(bootstrap, new_name("shared"), 3), new_name("group")
    sent = values(600)
    with ExitStack() as stack:
        members = [
            stack.enter_context(Member(bootstrap, group, [topic], group_remote_assignor=assignor, **NEW))
            for _ in range(4)
        ]
        until(lambda: shares(*members) == [0, 1, 1, 1], TIMEOUT_S, "an assignment")
        send(bootstrap, topic, sent, 3)
        until(lambda: len(total(*members)) == 600, TIMEOUT_S, "all records")
        assert total(*members) == Counter(sent)
        assert sorted(sum(member.values.values()) for member in members) == [0, 200, 200, 200]


def test_members_come_leave_and_die(bootstrap: str, new_name: Name, tmp_path: Path) -> None:
    topic, group = create_topic(bootstrap, new_name("life"), 6), new_name("group")
    with Member(bootstrap, group, [topic], **NEW) as first:
        until(lambda: len(first.assigned) == 6, TIMEOUT_S, "all partitions")
        with Member(bootstrap, group, [topic], **NEW) as second:
            until(lambda: shares(first, second) == [3, 3], TIMEOUT_S, "half each")
            kept = set(first.assigned)
            send(bootstrap, topic, values(60, "a"), 6)
            until(lambda: len(total(first, second)) == 60, TIMEOUT_S, "the first records")
            with Member(bootstrap, group, [topic], **NEW) as third:
                until(lambda: shares(first, second, third) == [2, 2, 2], TIMEOUT_S, "a third each")
                assert set(first.assigned) < kept  # what it keeps it had before
        until(lambda: len(first.assigned) == 6, TIMEOUT_S, "all partitions after two left")
        doomed = DoomedMember(bootstrap, group, topic, tmp_path / "doomed", **NEW)
        try:
            until(lambda: doomed.is_assigned and len(first.assigned) == 3, TIMEOUT_S, "half each again")
        finally:
            doomed.kill()
        until(lambda: len(first.assigned) == 6, TIMEOUT_S, "all partitions after one died")
        send(bootstrap, topic, values(60, "b"), 6)
        until(
            lambda: len([v for v in first.values if v.startswith(b"b")]) == 60, TIMEOUT_S, "the last records"
        )
        assert set(total(first, second, third)) == {*values(60, "a"), *values(60, "b")}


def test_static_members_come_back_without_a_rebalance(
    bootstrap: str, new_name: Name, admin: AdminClient
) -> None:
    topic, group = create_topic(bootstrap, new_name("static"), 4), new_name("group")
    with Wire(bootstrap) as wire:  # its session has to last until it is back, also on a slow machine
        assert alter(wire, group, (SESSION, SET, "6000")) == 0
    with Member(bootstrap, group, [topic], group_instance_id="one", **NEW) as one:
        with Member(bootstrap, group, [topic], group_instance_id="two", **NEW) as two:
            until(lambda: shares(one, two) == [2, 2], TIMEOUT_S, "half each")
            before, assignments = two.assigned, one.assignments
        with Member(bootstrap, group, [topic], group_instance_id="two", **NEW) as again:
            until(lambda: len(again.assigned) == 2, TIMEOUT_S, "the old partitions")
            assert again.assigned == before
            assert one.assignments == assignments
            described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
            assert sorted(member.group_instance_id for member in described.members) == ["one", "two"]
        until(lambda: len(one.assigned) == 4, TIMEOUT_S, "all partitions when its session is over")


def test_an_instance_id_in_use_is_refused(bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(bootstrap, new_name("twice"), 1), new_name("group")
    with Member(bootstrap, group, [topic], group_instance_id="one", **NEW) as one:
        until(lambda: len(one.assigned) == 1, TIMEOUT_S, "its partition")
        with Member(bootstrap, group, [topic], group_instance_id="one", **NEW) as other:
            until(lambda: other.error is not None, TIMEOUT_S, "a fatal error")
        assert len(one.assigned) == 1


def test_a_regular_expression_meets_new_topics(bootstrap: str, new_name: Name, admin: AdminClient) -> None:
    prefix, group = new_name("pattern"), new_name("group")
    first = create_topic(bootstrap, f"{prefix}-first", 2)
    create_topic(bootstrap, f"other-{prefix}", 2)
    with (
        Member(bootstrap, group, [f"^{prefix}-.*"], **NEW) as one,
        Member(bootstrap, group, [f"^{prefix}-.*"], **NEW) as two,
    ):
        until(lambda: shares(one, two) == [1, 1], TIMEOUT_S, "a partition each")
        later = create_topic(bootstrap, f"{prefix}-later", 2)
        until(lambda: shares(one, two) == [2, 2], TIMEOUT_S, "the new topic's partitions")
        send(bootstrap, later, values(20), 2)
        until(lambda: len(total(one, two)) == 20, TIMEOUT_S, "its records")
        for future in admin.delete_topics([later]).values():
            future.result(TIMEOUT_S)
        until(lambda: shares(one, two) == [1, 1], TIMEOUT_S, "the first topic alone")
        assert {topic for topic, _ in one.assigned + two.assigned} == {first}


def test_a_pattern_that_is_none(bootstrap: str, new_name: Name) -> None:
    """librdkafka looks at patterns itself, but not as RE2 does."""
    consumer = Consumer(client_settings(bootstrap, new_name("group"), **NEW))
    consumer.subscribe(["^a{1,1001}"])
    errors: list[KafkaError] = []

    def fails() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            errors.append(message.error())
        return bool(errors)

    try:
        until(fails, TIMEOUT_S, "an error")
    finally:
        consumer.close()
    assert errors[0].code() == KafkaError._FATAL
    assert "regular expression is not valid" in errors[0].str()


def test_partitions_that_are_added(bootstrap: str, new_name: Name, admin: AdminClient) -> None:
    topic, group = create_topic(bootstrap, new_name("grows"), 1), new_name("group")
    with Member(bootstrap, group, [topic], **NEW) as one, Member(bootstrap, group, [topic], **NEW) as two:
        until(lambda: shares(one, two) == [0, 1], TIMEOUT_S, "the partition")
        for future in admin.create_partitions([NewPartitions(topic, 4)]).values():
            future.result(TIMEOUT_S)
        until(lambda: shares(one, two) == [2, 2], TIMEOUT_S, "two each")


def is_stable(admin: AdminClient, group: str) -> bool:
    try:
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    except KafkaException:
        return False
    return bool(described.state == ConsumerGroupState.STABLE)


def test_a_topic_that_comes_later(bootstrap: str, new_name: Name, admin: AdminClient) -> None:
    topic, group = new_name("later"), new_name("group")
    with Member(bootstrap, group, [topic], allow_auto_create_topics=False, **NEW) as one:
        until(lambda: is_stable(admin, group), TIMEOUT_S, "a group without partitions")
        create_topic(bootstrap, topic, 2)
        until(lambda: len(one.assigned) == 2, TIMEOUT_S, "the partitions")


def test_offsets_are_committed_and_found_again(bootstrap: str, new_name: Name, admin: AdminClient) -> None:
    topic, group = create_topic(bootstrap, new_name("offsets"), 2), new_name("group")
    send(bootstrap, topic, values(40), 2)
    settings = {**NEW, "enable_auto_commit": False}
    place = TopicPartition(topic, 0, 7, metadata="seven")
    consumer = Consumer(client_settings(bootstrap, group, **settings))
    try:
        consumer.subscribe([topic])
        until(lambda: consumer.consume(1, 0.2) and len(consumer.assignment()) == 2, TIMEOUT_S, "a record")
        committed = consumer.commit(offsets=[place], asynchronous=False)
        assert committed[0].error is None
        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], TIMEOUT_S)
        assert [(each.offset, each.metadata) for each in found] == [(7, "seven"), (-1001, None)]
        # nobody else may commit while the group has members
        outside = Consumer(client_settings(bootstrap, group, **CLASSIC))
        try:
            with pytest.raises(KafkaException) as refused:
                outside.commit(offsets=[place], asynchronous=False)
            assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        finally:
            outside.close()
        with pytest.raises(KafkaException) as occupied:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        assert occupied.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    finally:
        consumer.close()
    with Member(bootstrap, group, [topic], **settings) as after:
        until(lambda: sum(after.values.values()) == 13 + 20, TIMEOUT_S, "the records after the commit")
    until(
        lambda: (
            admin.describe_consumer_groups([group])[group].result(TIMEOUT_S).state == ConsumerGroupState.EMPTY
        ),
        TIMEOUT_S,
        "an empty group",
    )
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    listed = admin.list_consumer_groups().result(TIMEOUT_S).valid
    assert group not in [each.group_id for each in listed]


def test_admins_see_the_group(bootstrap: str, new_name: Name, admin: AdminClient) -> None:
    topic, group = create_topic(bootstrap, new_name("admin"), 2), new_name("group")
    with Member(bootstrap, group, [topic], client_id="me", **NEW) as one:
        until(lambda: len(one.assigned) == 2, TIMEOUT_S, "its partitions")
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(TIMEOUT_S).valid
        found = next(each for each in listed if each.group_id == group)
        assert (found.type, found.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
        classic = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(TIMEOUT_S).valid
        assert group not in [each.group_id for each in classic]
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert described.type == ConsumerGroupType.CONSUMER
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "uniform"
        (member,) = described.members
        assert member.client_id == "me"
        assigned = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
        assert assigned == {(topic, 0), (topic, 1)}
        meant = {(each.topic, each.partition) for each in member.target_assignment.topic_partitions}
        assert meant == assigned


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_it_runs(
    bootstrap: str, new_name: Name, admin: AdminClient, strategy: str
) -> None:
    """Member after member goes over to the new protocol, and back; no record is lost."""
    topic, group = create_topic(bootstrap, new_name("moves"), 4), new_name("group")
    classic = {**CLASSIC, "partition_assignment_strategy": strategy}
    sent: list[bytes] = []
    everyone: list[Member] = []

    def new(**settings: Any) -> Member:
        everyone.append(Member(bootstrap, group, [topic], **settings))
        return everyone[-1]

    def check(kind: ConsumerGroupType, mark: str) -> None:
        more = values(40, mark)
        send(bootstrap, topic, more, 4)
        sent.extend(more)
        until(lambda: len(total(*everyone)) == len(sent), TIMEOUT_S, f"all records of {mark}")
        assert admin.describe_consumer_groups([group])[group].result(TIMEOUT_S).type == kind

    with ExitStack() as stack:
        old = [stack.enter_context(new(**classic)) for _ in range(2)]
        until(lambda: shares(*old) == [2, 2], TIMEOUT_S, "half each")
        check(ConsumerGroupType.CLASSIC, "a")
        first = stack.enter_context(new(**NEW))
        until(lambda: shares(*old, first) == [1, 1, 2], TIMEOUT_S, "all three in a consumer group")
        check(ConsumerGroupType.CONSUMER, "b")
        old[0].leave()
        second = stack.enter_context(new(**NEW))
        until(lambda: shares(old[1], first, second) == [1, 1, 2], TIMEOUT_S, "one classic member")
        old[1].leave()
        until(lambda: shares(first, second) == [2, 2], TIMEOUT_S, "only new members")
        check(ConsumerGroupType.CONSUMER, "c")
        back = stack.enter_context(new(**classic))
        until(lambda: shares(first, second, back) == [1, 1, 2], TIMEOUT_S, "a classic member again")
        first.leave()
        second.leave()
        until(lambda: len(back.assigned) == 4, TIMEOUT_S, "a classic group again")
        check(ConsumerGroupType.CLASSIC, "d")
    assert set(total(*everyone)) == set(sent)


def test_the_broker_is_killed(new_name: Name, tmp_path: Path) -> None:
    """Members go on with what they have; what they committed is there."""
    if OUTSIDE:
        pytest.skip("the broker is not ours to kill")
    with BrokerProcess(tmp_path / "data", options=CONSUMER_OPTIONS) as mine:
        topic, group = create_topic(mine.bootstrap, new_name("killed"), 4), new_name("group")
        with (
            Member(mine.bootstrap, group, [topic], **NEW) as one,
            Member(mine.bootstrap, group, [topic], **NEW) as two,
        ):
            until(lambda: shares(one, two) == [2, 2], TIMEOUT_S, "half each")
            send(mine.bootstrap, topic, values(40, "a"), 4)
            until(lambda: len(total(one, two)) == 40, TIMEOUT_S, "the records")
            before = one.assigned, two.assigned
            mine.kill()
            mine.start()
            send(mine.bootstrap, topic, values(40, "b"), 4)
            until(lambda: len(total(one, two)) == 80, TIMEOUT_S, "the records after it")
            assert (one.assigned, two.assigned) == before
