"""Consumer groups by scenarios: what one member after the other is told (KIP-848)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.coordinator.groups.consumer_entries import member_entry
from millstream.coordinator.groups.consumer_group import ConsumerGroup, ConsumerState
from millstream.coordinator.groups.consumer_member import ConsumerMember, MemberState
from millstream.coordinator.shard import Result
from millstream.errors import NotCoordinator
from millstream.protocol.messages import ConsumerGroupHeartbeatRequest
from tests.coordinator.groups.consumer_host import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicConsumer,
    Consumer,
    ConsumerHost,
    Owned,
    settle,
)

FENCED_EPOCH = 110
UNRELEASED_INSTANCE = 111
UNKNOWN_MEMBER = 25


def all_of(topic: str, count: int) -> Owned:
    return {(topic, number) for number in range(count)}


def test_one_member_gets_everything_at_once() -> None:
    host = ConsumerHost(t=3)
    a = Consumer(host, "a", "t")
    assert a.step() == 0
    assert (a.epoch, a.reads) == (2, all_of("t", 3))  # as in Kafka: nobody was in epoch 1
    assert host.group().state is ConsumerState.STABLE


def test_a_second_member_waits_until_the_first_has_given_up() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    a.step()
    b.step()
    assert (b.epoch, b.reads) == (3, set())
    assert host.group().members["b"].state is MemberState.UNRELEASED_PARTITIONS
    # a is told what to keep, in its old epoch, and still reads everything
    a.beat()
    assert (a.epoch, len(host.named(a.told)), len(a.reads)) == (2, 2, 4)
    assert host.group().state is ConsumerState.RECONCILING
    b.step()
    assert b.reads == set()
    # it has not said yet that it gave anything up: nothing changes
    a.beat()
    b.step()
    assert (a.epoch, b.reads) == (2, set())
    a.reconcile()
    a.beat()
    assert a.epoch == 3
    b.step()
    assert b.reads | a.reads == all_of("t", 4)
    assert len(a.reads) == len(b.reads) == 2
    assert host.group().state is ConsumerState.STABLE


def test_a_member_may_name_a_topic_that_it_owns_twice() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    a.step()
    b.step()
    a.beat()
    owned = [
        ConsumerGroupHeartbeatRequest.TopicPartitions(
            topic_id=host.topics.known["t"].topic_id, partitions=[number for _, number in numbers]
        )
        for numbers in (a.owned - a.told, a.told)
    ]
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=a.epoch, topic_partitions=owned
    )
    assert host.beat(request).member_epoch == a.epoch
    assert host.group().members["a"].state is MemberState.UNREVOKED_PARTITIONS


def test_a_member_that_leaves_is_inherited() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    settle(a, b)
    assert b.leave() == 0
    a.step()
    assert a.reads == all_of("t", 4)
    assert list(host.group().members) == ["a"]
    assert b.leave() == UNKNOWN_MEMBER


def test_a_silent_member_is_dropped_and_fenced() -> None:
    host = ConsumerHost(t=2)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    settle(a, b)
    for _ in range(6):
        host.wait(SESSION_MS / 5)
        a.step()
    assert a.reads == all_of("t", 2)
    assert b.step() == UNKNOWN_MEMBER
    assert (b.epoch, b.reads) == (0, set())
    settle(a, b)
    assert len(a.reads) == len(b.reads) == 1


def test_a_member_that_does_not_give_up_in_time_is_dropped() -> None:
    host = ConsumerHost(t=2)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    a.step()
    b.step()
    a.beat()
    for _ in range(int(REBALANCE_MS / 10_000)):
        host.wait(10_000)
        a.beat()
        b.step()
    assert b.reads == all_of("t", 2)
    assert a.epoch == 0


def test_an_answer_that_was_lost_is_given_again() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    a.step()
    b.step()
    a.beat()
    a.reconcile()
    a.beat(is_lost=True)
    assert host.group().members["a"].epoch == 3
    assert a.epoch == 2
    assert a.step() == 0
    assert a.epoch == 3


def test_a_member_of_another_epoch_is_fenced() -> None:
    host = ConsumerHost(t=2)
    a = Consumer(host, "a", "t")
    a.step()
    a.epoch = 5
    assert a.step() == FENCED_EPOCH
    assert a.reads == set()
    settle(a)
    assert a.reads == all_of("t", 2)


def test_a_member_that_joins_again_gives_up_what_it_had() -> None:
    """It has forgotten its epoch, but not its member id."""
    host = ConsumerHost(t=2)
    a = Consumer(host, "a", "t")
    a.step()
    again = Consumer(host, "a", "t")
    assert again.step() == 0
    assert again.reads == all_of("t", 2)


# Subscriptions and topics


def test_members_of_different_topics() -> None:
    host = ConsumerHost(t=2, u=2)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t", "u")
    settle(a, b)
    assert a.reads == all_of("t", 2)
    assert b.reads == all_of("u", 2)


def test_another_subscription_takes_partitions_away_at_once() -> None:
    host = ConsumerHost(t=2, u=2)
    a = Consumer(host, "a", "t", "u")
    settle(a)
    a.subscribe("u")
    a.beat()
    assert host.named(a.told) == all_of("u", 2)
    settle(a)
    assert a.reads == all_of("u", 2)
    assert host.group().state is ConsumerState.STABLE


def test_topics_that_come_grow_and_go() -> None:
    host = ConsumerHost(t=1)
    a = Consumer(host, "a", "t", "later")
    settle(a)
    assert a.reads == {("t", 0)}
    host.put_topic("later", 2)
    settle(a)
    assert a.reads == {("t", 0), ("later", 0), ("later", 1)}
    host.put_topic("t", 3)
    settle(a)
    assert a.reads == all_of("t", 3) | all_of("later", 2)
    epoch = host.group().epoch
    host.put_topic("other", 3)
    assert host.group().epoch == epoch
    host.delete_topic("t")
    settle(a)
    assert a.reads == all_of("later", 2)
    assert host.group().state is ConsumerState.STABLE


def test_a_topic_that_is_made_anew_is_another_one() -> None:
    host = ConsumerHost(t=2)
    a = Consumer(host, "a", "t")
    settle(a)
    before = set(a.owned)
    host.delete_topic("t")
    host.put_topic("t", 2)
    settle(a)
    assert a.reads == all_of("t", 2)
    assert not before & a.owned


def test_a_regular_expression_meets_new_topics() -> None:
    host = ConsumerHost(abc=1, xyz=1)
    a = Consumer(host, "a", regex="a.*")
    settle(a)
    assert a.reads == {("abc", 0)}
    host.put_topic("axx", 2)
    settle(a)
    assert a.reads == {("abc", 0), ("axx", 0), ("axx", 1)}
    a.subscribe("xyz", regex="ax.*")
    settle(a)
    assert a.reads == {("xyz", 0), ("axx", 0), ("axx", 1)}
    assert set(host.group().regexes) == {"ax.*"}
    a.subscribe("xyz", regex="")
    settle(a)
    assert a.reads == {("xyz", 0)}
    assert not host.group().regexes


def test_a_regular_expression_goes_with_its_last_member() -> None:
    host = ConsumerHost(abc=2)
    a, b = Consumer(host, "a", regex="a.*"), Consumer(host, "b", regex="a.*")
    settle(a, b)
    a.leave()
    assert set(host.group().regexes) == {"a.*"}
    b.leave()
    assert not host.group().regexes
    assert host.group().state is ConsumerState.EMPTY


@pytest.mark.parametrize(("assignor", "expected"), [("range", {0, 1}), ("uniform", {0, 2})])
def test_members_choose_the_assignor(assignor: str, expected: set[int]) -> None:
    host = ConsumerHost()
    a, b = Consumer(host, "a", "t", assignor=assignor), Consumer(host, "b", "t", assignor=assignor)
    settle(a, b)
    host.put_topic("t", 4)
    settle(a, b)
    assert {number for _, number in a.reads} == expected
    assert host.shard.consumer.assignor_of(host.group()) == assignor


def test_the_state_can_be_asked_for_while_members_go() -> None:
    """Metrics are read in a thread of their own."""
    group = ConsumerGroup("g")

    class Leaving(ConsumerMember):
        def is_reconciled_to(self, epoch: int) -> bool:
            group.remove_member("b")
            return True

    for member in (Leaving("a", epoch=1), ConsumerMember("b", epoch=1)):
        group.put_member(member)
    assert group.state is ConsumerState.STABLE


def test_an_assignor_that_only_the_log_knows() -> None:
    """Another broker, with assignors of its own, may have written it."""
    host = ConsumerHost(t=4)
    a = Consumer(host, "a", "t")
    settle(a)
    wish = replace(host.group().members["a"], assignor="org.example.Assignor")
    host.apply(Result(None, [member_entry("g", wish)]))
    host.put_topic("t", 6)
    settle(a)
    assert a.reads == all_of("t", 6)
    assert host.shard.consumer.assignor_of(host.group()) == "uniform"


# Static members


def test_a_static_member_comes_back_within_its_session() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t", instance="one"), Consumer(host, "b", "t", instance="two")
    settle(a, b)
    before, epoch = a.reads, host.group().epoch
    assert a.leave(for_a_while=True) == 0
    host.wait(SESSION_MS / 2)
    b.step()
    assert len(b.reads) == 2
    again = Consumer(host, "a2", "t", instance="one")
    again.step()
    assert (again.reads, host.group().epoch) == (before, epoch)
    assert sorted(host.group().members) == ["a2", "b"]
    assert a.step() == 82  # fenced by its instance id


def test_a_static_member_that_stays_away_is_dropped() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t", instance="one"), Consumer(host, "b", "t", instance="two")
    settle(a, b)
    a.leave(for_a_while=True)
    for _ in range(6):
        host.wait(SESSION_MS / 5)
        b.step()
    assert b.reads == all_of("t", 4)
    assert set(host.group().instances) == {"two"}


def test_an_instance_id_in_use_is_not_given_to_another() -> None:
    host = ConsumerHost(t=1)
    a = Consumer(host, "a", "t", instance="one")
    settle(a)
    assert Consumer(host, "b", "t", instance="one").step() == UNRELEASED_INSTANCE
    assert a.step() == 0
    a.leave()
    assert Consumer(host, "b", "t", instance="one").step() == 0


# What is refused


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, 42),
        ({"member_id": ""}, 42),
        ({"instance_id": ""}, 42),
        ({"rack_id": ""}, 42),
        ({"member_epoch": -3}, 42),
        ({"member_epoch": -2}, 42),
        ({"rebalance_timeout_ms": -1}, 42),
        ({"topic_partitions": None}, 42),
        ({"subscribed_topic_names": None}, 42),
        ({"server_assignor": "mine"}, 112),
        ({"member_epoch": 3}, 69),
        ({"member_epoch": -1}, 69),
    ],
)
def test_requests_that_are_refused(fields: dict[str, object], code: int) -> None:
    host = ConsumerHost(t=1)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    for name, value in fields.items():
        setattr(request, name, value)
    assert host.beat(request).error_code == code
    assert not host.shard.consumer.groups
    assert not host.log


def test_version_0_is_given_a_member_id() -> None:
    host = ConsumerHost(t=1)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer = host.beat(request, version=0)
    assert answer.member_id in host.group().members


def test_a_group_is_no_larger_than_it_may_be() -> None:
    host = ConsumerHost({"group.consumer.max.size": "1"}, t=1)
    a = Consumer(host, "a", "t")
    settle(a)
    assert Consumer(host, "b", "t").step() == 81
    assert a.step() == 0
    a.leave()
    assert Consumer(host, "b", "t").step() == 0


def test_the_protocol_can_be_switched_off() -> None:
    host = ConsumerHost({"group.coordinator.rebalance.protocols": "classic"}, t=1)
    assert Consumer(host, "a", "t").step() == 35


# How often groups are assigned


def test_assignments_keep_their_distance() -> None:
    host = ConsumerHost({"group.consumer.assignment.interval.ms": "1000"}, t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    a.step()
    host.wait(200)
    b.step()
    assert (b.epoch, host.group().state) == (2, ConsumerState.ASSIGNING)
    host.wait(800)
    settle(a, b)
    assert len(a.reads) == len(b.reads) == 2


# What survives


def test_a_group_comes_back_from_the_log() -> None:
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t", instance="two")
    settle(a, b)
    host.reload(NotCoordinator())
    assert host.group().state is ConsumerState.STABLE
    before = a.reads, b.reads
    settle(a, b)
    assert (a.reads, b.reads) == before
    # and its members are missed as before
    host.wait(SESSION_MS)
    assert host.group().is_empty


def test_what_members_have_in_common_is_kept_once() -> None:
    """A thousand members may read a thousand topics."""
    host = ConsumerHost(t=4, u=4)
    consumers = [Consumer(host, name, "t", "u") for name in "abcd"]
    settle(*consumers)
    host.reload(NotCoordinator())
    group = host.group()
    held = [*group.target.values(), *(member.assigned for member in group.members.values())]
    assert len({id(topic_id) for topics in held for topic_id in topics}) == 2
    assert len({id(member.topics) for member in group.members.values()}) == 1


def test_topics_that_changed_while_nobody_looked() -> None:
    host = ConsumerHost(t=2)
    a = Consumer(host, "a", "t")
    settle(a)
    host.topics.put("t", 4)
    host.reload(NotCoordinator())
    settle(a)
    assert a.reads == all_of("t", 4)


def test_nothing_changes_when_the_log_refuses() -> None:
    host = ConsumerHost(t=2)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    settle(a)
    host.refuses = NotCoordinator()
    assert b.beat() == 16
    assert a.leave() == 16
    host.refuses = None
    assert list(host.group().members) == ["a"]
    # a did not get away, and is missed in the end
    host.wait(SESSION_MS)
    assert host.group().is_empty


def test_a_static_member_comes_back_to_a_full_group() -> None:
    host = ConsumerHost({"group.consumer.max.size": "2"}, t=4)
    a, b = (Consumer(host, name, "t", instance=name) for name in "ab")
    settle(a, b)
    b.leave(for_a_while=True)
    assert Consumer(host, "c", "t", instance="c").step() == 81
    assert Consumer(host, "b2", "t", instance="b").step() == 0
    assert sorted(host.group().members) == ["a", "b2"]
    classic = ClassicConsumer(host, "d", "t", instance="b")
    classic.join()
    assert len(host.group().members) == 2
    assert not {"b", "b2"} & set(host.group().members)


def test_a_member_id_that_cannot_be_written_down_is_refused() -> None:
    host = ConsumerHost(t=4)
    assert Consumer(host, "x" * 32_768, "t").beat() == 42
    assert Consumer(host, "x" * 32_767, "t").beat() == 0


def test_a_group_goes_by_what_it_sets_for_itself() -> None:
    host = ConsumerHost(t=4)
    host.topics.configs["g"] = {
        "consumer.session.timeout.ms": 50_000,
        "consumer.heartbeat.interval.ms": 7000,
        "consumer.assignment.interval.ms": 3000,
    }
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t", group="h")
    a.step()
    b.step()
    host.wait(SESSION_MS + 1)
    assert sorted(host.shard.consumer.groups["h"].members) == []
    assert sorted(host.group().members) == ["a"]
    c = Consumer(host, "c", "t")
    c.step()
    host.wait(2999)
    Consumer(host, "d", "t").step()
    assert host.group().state is ConsumerState.ASSIGNING
    host.wait(1)
    a.step()
    assert host.group().state is not ConsumerState.ASSIGNING
    host.wait(50_000)
    assert host.group().is_empty


def test_an_assignment_of_nothing_does_not_make_the_next_one_wait() -> None:
    host = ConsumerHost({"group.consumer.assignment.interval.ms": "1000"})
    a = Consumer(host, "a", "t")
    a.step()
    host.wait(100)
    host.put_topic("t", 4)
    a.step()
    assert len(a.reads) == 4


def test_a_member_joins_without_any_topic() -> None:
    host = ConsumerHost(t=4)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=None,
        subscribed_topic_regex="",
        topic_partitions=[],
    )
    assert host.beat(request).error_code == 0
    request.subscribed_topic_regex = None
    assert host.beat(request).error_code == 42


def test_who_has_what_is_known_from_a_log_that_is_read_in_parts() -> None:
    """What a member gave up is left out where it says something later; it is not taken for its own again."""
    host = ConsumerHost(t=4)
    a, b = Consumer(host, "a", "t"), Consumer(host, "b", "t")
    a.step()
    begun = len(host.log)
    settle(a, b)
    a.subscribe("t", "u")
    a.step()
    assert len(b.reads) == 2
    shard = host.replayed(thin_from=begun)
    list(shard.prepare())
    read = shard.consumer.groups["g"]
    assert read.members == host.group().members
    assert read.owners == host.group().owners
