"""Groups whose clients change over from the classic to the consumer protocol while they run, and back."""

from __future__ import annotations

import pytest

from millstream.coordinator.entry_format import number_of
from millstream.coordinator.groups.classic_group import State
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.groups.consumer_group import ConsumerState
from millstream.coordinator.groups.member import Client
from millstream.errors import IllegalGeneration, NotCoordinator
from millstream.model import TopicPartition
from millstream.protocol.messages import JoinGroupRequest
from tests.coordinator.groups.consumer_host import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicConsumer,
    Consumer,
    ConsumerHost,
    Owned,
    settle,
)


def all_of(topic: str, count: int) -> Owned:
    return {(topic, number) for number in range(count)}


def classic_group(host: ConsumerHost, *consumers: ClassicConsumer) -> None:
    """Bring classic consumers to a stable group."""
    for consumer in consumers:
        consumer.join()
    settle(*consumers, steps=20)
    assert host.shard.groups["g"].state is State.STABLE
    assert all(consumer.generation >= 0 for consumer in consumers)


def share(*consumers: ClassicConsumer | Consumer) -> Owned:
    """What all of them read; nothing is read by two."""
    total: Owned = set()
    for consumer in consumers:
        assert not total & consumer.reads
        total |= consumer.reads
    return total


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_new_member_makes_a_classic_group_a_consumer_group(is_eager: bool) -> None:
    host = ConsumerHost(t=4)
    a, b = (ClassicConsumer(host, name, "t", is_eager=is_eager) for name in "ab")
    classic_group(host, a, b)
    assert share(a, b) == all_of("t", 4)
    c = Consumer(host, "c", "t")
    assert c.step() == 0
    assert not host.shard.groups
    group = host.group()
    assert group.members[a.member_id].is_classic
    assert not group.members["c"].is_classic
    assert share(a, b, c) == all_of("t", 4)
    settle(a, b, c)
    assert group.state is ConsumerState.STABLE
    assert share(a, b, c) == all_of("t", 4)
    assert sorted(len(each.reads) for each in (a, b, c)) == [1, 1, 2]


@pytest.mark.parametrize("is_eager", [True, False])
def test_all_change_over_and_back(is_eager: bool) -> None:
    host = ConsumerHost(t=4)
    a, b = (ClassicConsumer(host, name, "t", is_eager=is_eager) for name in "ab")
    classic_group(host, a, b)
    c = Consumer(host, "c", "t")
    settle(a, b, c)
    a.leave()
    settle(b, c)
    assert share(b, c) == all_of("t", 4)
    d = Consumer(host, "d", "t")
    b.leave()
    settle(c, d)
    assert share(c, d) == all_of("t", 4)
    assert not any(member.is_classic for member in host.group().members.values())
    # and back: the last one of the new protocol leaves a classic group behind
    e, f = (ClassicConsumer(host, name, "t", is_eager=is_eager) for name in "ef")
    settle(c, d, e)
    assert share(c, d, e) == all_of("t", 4)
    c.leave()
    settle(d, e, f)
    assert share(d, e, f) == all_of("t", 4)
    d.leave()
    assert not host.shard.consumer.groups
    assert host.shard.groups["g"].state is State.PREPARING
    for consumer in (e, f):
        consumer.beat()
    classic_group(host, e, f)
    assert share(e, f) == all_of("t", 4)


def test_the_change_survives() -> None:
    host = ConsumerHost(t=4)
    a = ClassicConsumer(host, "a", "t")
    classic_group(host, a)
    c = Consumer(host, "c", "t")
    settle(a, c)
    host.reload(NotCoordinator())
    assert not host.shard.groups
    assert set(host.group().members) == {a.member_id, "c"}
    settle(a, c)
    assert share(a, c) == all_of("t", 4)
    c.leave()
    host.reload(NotCoordinator())
    assert not host.shard.consumer.groups
    assert set(host.shard.groups["g"].members) == {a.member_id}
    classic_group(host, a)
    assert share(a) == all_of("t", 4)


def test_a_classic_member_joins_a_consumer_group() -> None:
    host = ConsumerHost(t=4)
    c = Consumer(host, "c", "t")
    settle(c)
    a = ClassicConsumer(host, "a", "t")
    settle(a, c)
    assert share(a, c) == all_of("t", 4)
    assert len(a.reads) == len(c.reads) == 2
    host.put_topic("t", 6)
    settle(a, c)
    assert share(a, c) == all_of("t", 6)


def test_an_empty_group_takes_whoever_comes() -> None:
    host = ConsumerHost(t=2)
    c = Consumer(host, "c", "t")
    settle(c)
    c.leave()
    a = ClassicConsumer(host, "a", "t")
    classic_group(host, a)
    assert not host.shard.consumer.groups
    a.leave()
    assert host.shard.groups["g"].is_empty
    settle(c)
    assert not host.shard.groups
    assert c.reads == all_of("t", 2)
    assert [number_of(entry.key) for entry, _ in host.log].count(2) >= 3


def test_a_static_member_changes_its_protocol() -> None:
    host = ConsumerHost(t=4)
    a, b = (ClassicConsumer(host, name, "t", instance=name) for name in "ab")
    classic_group(host, a, b)
    before = a.reads
    c = Consumer(host, "c", "t", instance="a")  # without that the classic one has left
    c.step()
    assert c.reads == before
    assert a.beat() == 82
    settle(b, c)
    assert share(b, c) == all_of("t", 4)
    # back again: the last member of the new protocol is replaced, so that the group is classic
    d = ClassicConsumer(host, "d", "t", instance="a")
    d.join()
    assert d.joining is not None
    assert d.joining.result().error_code == 0
    assert not host.shard.consumer.groups
    assert set(host.shard.groups["g"].instances) == {"a", "b"}
    assert c.step() == 69
    classic_group(host, d, b)
    assert share(b, d) == all_of("t", 4)


@pytest.mark.parametrize("policy", ["disabled", "DOWNGRADE"])
def test_an_upgrade_that_is_not_allowed(policy: str) -> None:
    host = ConsumerHost({"group.consumer.migration.policy": policy}, t=4)
    a = ClassicConsumer(host, "a", "t")
    classic_group(host, a)
    assert Consumer(host, "c", "t").step() == 69
    assert a.beat() == 0


@pytest.mark.parametrize("policy", ["disabled", "UPGRADE"])
def test_a_downgrade_that_is_not_allowed(policy: str) -> None:
    """The classic members stay in a consumer group, and are served."""
    host = ConsumerHost({"group.consumer.migration.policy": policy}, t=4)
    c = Consumer(host, "c", "t")
    a = ClassicConsumer(host, "a", "t")
    settle(c, a)
    c.leave()
    settle(a)
    assert list(host.group().members) == [a.member_id]
    assert a.reads == all_of("t", 4)


def test_groups_that_are_not_of_consumers_stay_classic() -> None:
    host = ConsumerHost(t=1)
    join = host.join("g", instance="x", protocol_type="connect")
    host.settle("g", [join])
    assert Consumer(host, "c", "t").step() == 69
    assert host.heartbeat("g", join.result().member_id, 1, "x") == 0


def test_those_who_wait_in_a_classic_group_join_again() -> None:
    host = ConsumerHost(t=4)
    a, b = (ClassicConsumer(host, name, "t") for name in "ab")
    classic_group(host, a)
    b.join()
    assert b.joining is not None
    assert not b.joining.is_done
    c = Consumer(host, "c", "t")
    c.step()
    member_id = b.member_id
    assert b.joining.result().error_code == 14  # upon which every client asks again, as who it is
    b.step()
    assert b.member_id == member_id
    settle(a, b, c, steps=20)
    assert share(a, b, c) == all_of("t", 4)


def test_a_classic_member_that_names_its_protocol_twice_can_go_back() -> None:
    host = ConsumerHost(t=4)
    c = Consumer(host, "c", "t")
    settle(c)
    subscription = ClassicConsumer(host, "a", "t").subscription()
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative-sticky", metadata=subscription)
            for _ in range(2)
        ],
    )
    host.apply(host.shard.join(request, Client(3, "a", "/127.0.0.1")))
    c.leave()
    assert host.shard.groups["g"].protocol_name == "cooperative-sticky"


def test_classic_members_are_missed() -> None:
    host = ConsumerHost(t=4)
    a, c = ClassicConsumer(host, "a", "t"), Consumer(host, "c", "t")
    settle(c, a)
    for _ in range(6):
        host.wait(SESSION_MS / 5)
        c.step()
    assert c.reads == all_of("t", 4)
    assert list(host.group().members) == ["c"]


def test_a_classic_member_that_does_not_join_again_is_dropped() -> None:
    host = ConsumerHost(t=4)
    a, c = ClassicConsumer(host, "a", "t"), Consumer(host, "c", "t")
    settle(c, a)
    b = Consumer(host, "b", "t")
    for _ in range(int(REBALANCE_MS / 10_000) + 1):
        host.heartbeat("g", a.member_id, a.generation)
        host.wait(10_000)
        b.step()
        c.step()
    assert a.member_id not in host.group().members
    settle(b, c)
    assert share(b, c) == all_of("t", 4)


def test_classic_members_are_left_alone_until_an_assignment_is_due() -> None:
    """They would only join in vain, over and over."""
    host = ConsumerHost({"group.consumer.assignment.interval.ms": "1000"}, t=4)
    c, a = Consumer(host, "c", "t"), ClassicConsumer(host, "a", "t")
    for _ in range(8):
        host.wait(1000)
        settle(c, a, steps=2)
    assert share(a, c) == all_of("t", 4)
    b = Consumer(host, "b", "t")
    host.wait(1000)
    b.step()
    d = Consumer(host, "d", "t")
    d.step()
    assert host.group().state is ConsumerState.ASSIGNING
    settle(a, b, c)  # a joins again for b's sake
    assert (a.joining, a.syncing) == (None, None)
    assert a.beat() == 0
    host.wait(1000)
    assert a.beat() == 27
    settle(a, b, c, d)
    assert share(a, b, c, d) == all_of("t", 4)
    assert len(a.reads) == 1


def test_classic_members_commit_in_their_generation() -> None:
    host = ConsumerHost(t=4)
    a, c = ClassicConsumer(host, "a", "t"), Consumer(host, "c", "t")
    settle(c, a)
    commits = [Commit(TopicPartition("t", 0), 5, -1, "")]
    result = host.shard.commits.commit("g", Caller(a.generation, a.member_id), commits, version=7)
    assert result.response == {}
    with pytest.raises(IllegalGeneration):
        host.shard.commits.commit("g", Caller(a.generation - 1, a.member_id), commits, version=7)


def test_an_admin_lets_members_go() -> None:
    """By instance id alone, whichever protocol the member speaks."""
    host = ConsumerHost(t=4)
    a = ClassicConsumer(host, "a", "t", instance="x")
    b, c = Consumer(host, "b", "t", instance="y"), Consumer(host, "c", "t")
    settle(c, b, a)
    answer = host.leave("g", ("", "x"), ("", "y"), ("", "z"), ("c", None))
    assert [member.error_code for member in answer.members] == [0, 0, 25, 25]
    settle(c)
    assert c.reads == all_of("t", 4)


def test_a_classic_member_comes_into_a_consumer_group_that_is_empty() -> None:
    """The group's tombstones, which its join writes, must not take the new classic group with them."""
    host = ConsumerHost(t=4)
    c = Consumer(host, "c", "t")
    settle(c)
    c.leave()
    assert host.group().is_empty
    member_id, joined = host.enter("g")
    assert member_id
    host.settle("g", [joined])
    assert not host.shard.consumer.groups
    c.step()
    c.leave()
    host.leave("g", (member_id, None))


def test_a_static_classic_member_comes_into_a_consumer_group_that_is_empty() -> None:
    host = ConsumerHost(t=4)
    c = Consumer(host, "c", "t")
    settle(c)
    c.leave()
    host.settle("g", [host.join("g", instance="x")])
    assert not host.shard.consumer.groups
