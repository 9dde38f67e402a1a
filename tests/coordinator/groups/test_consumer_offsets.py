"""Offsets of consumer groups: who commits and fetches, how they expire, what goes with a group."""

from __future__ import annotations

import pytest

from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.shard import Producer
from millstream.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    NotCoordinator,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from millstream.model import TopicPartition
from tests.coordinator.groups.consumer_host import SESSION_MS, Consumer, ConsumerHost, settle

HERE, THERE = TopicPartition("t", 0), TopicPartition("u", 0)
PRODUCER = Producer(7, 0)
DAY_MS = 24 * 3600 * 1000


def commit(host: ConsumerHost, caller: Caller, *partitions: TopicPartition, version: int = 9) -> object:
    commits = [Commit(partition, 5, -1, "") for partition in partitions]
    return host.apply(host.shard.commits.commit("g", caller, commits, version=version))


def commit_in_transaction(host: ConsumerHost, caller: Caller) -> object:
    commits = [Commit(HERE, 5, -1, "")]
    return host.apply(host.shard.commits.commit_in_transaction("g", caller, PRODUCER, commits))


def test_a_member_commits_in_its_epoch() -> None:
    host = ConsumerHost(t=1)
    a = Consumer(host, "a", "t")
    settle(a)
    assert commit(host, Caller(2, "a"), HERE) == {}
    for caller, error in (
        (Caller(3, "a"), StaleMemberEpoch),
        (Caller(-1, "a"), StaleMemberEpoch),
        (Caller(2, "b"), UnknownMemberId),
        (Caller(), UnknownMemberId),
    ):
        with pytest.raises(error):
            commit(host, caller, HERE)
    with pytest.raises(UnsupportedVersion):
        commit(host, Caller(2, "a"), HERE, version=8)
    host.shard.commits.check_fetch("g", "a", 2)
    host.shard.commits.check_fetch("g", None, -1)
    with pytest.raises(StaleMemberEpoch):
        host.shard.commits.check_fetch("g", "a", 3)
    with pytest.raises(UnknownMemberId):
        host.shard.commits.check_fetch("g", "b", 2)
    a.leave()
    assert commit(host, Caller(), HERE) == {}
    with pytest.raises(UnknownMemberId):
        commit(host, Caller(2, "a"), HERE)


def test_a_late_commit_counts_for_what_the_member_had() -> None:
    """KIP-1251: it has not heard of its newest epoch yet."""
    host = ConsumerHost(t=1, u=1)
    a = Consumer(host, "a", "t")
    settle(a)
    a.subscribe("t", "u")
    settle(a)
    assert host.group().members["a"].epoch == 3
    assert commit(host, Caller(2, "a"), HERE, THERE) == {THERE: StaleMemberEpoch.code}
    found = host.shard.commits.committed("g", HERE)
    assert found is not None
    assert found.offset == 5
    assert host.shard.commits.committed("g", THERE) is None


def test_commits_in_transactions() -> None:
    host = ConsumerHost(t=1)
    a = Consumer(host, "a", "t")
    settle(a)
    with pytest.raises(IllegalGeneration):
        commit_in_transaction(host, Caller(3, "a"))
    with pytest.raises(UnknownMemberId):
        commit_in_transaction(host, Caller(2, "b"))
    assert commit_in_transaction(host, Caller()) == {}  # an old producer, which tells nothing of itself
    assert commit_in_transaction(host, Caller(2, "a")) == {}
    host.end_transaction(PRODUCER, is_commit=True)
    assert host.shard.commits.committed("g", HERE) is not None


def test_a_group_is_deleted_with_everything() -> None:
    host = ConsumerHost(t=1)
    a = Consumer(host, "a", regex="t")
    settle(a)
    commit(host, Caller(2, "a"), HERE)
    with pytest.raises(NonEmptyGroup):
        host.shard.delete_group("g")
    a.leave()
    host.apply(host.shard.delete_group("g"))
    assert host.shard.find("g") is None
    assert not list(host.replayed())
    with pytest.raises(GroupIdNotFound):
        host.shard.delete_group("g")


def test_offsets_expire_when_nobody_reads_the_topic() -> None:
    host = ConsumerHost({"offsets.retention.minutes": str(24 * 60)}, t=1, u=1)
    a = Consumer(host, "a", "t", "u")
    settle(a)
    commit(host, Caller(2, "a"), HERE, THERE)
    a.subscribe("t")
    settle(a)
    for _ in range(2 * DAY_MS // SESSION_MS + 40):
        host.wait(SESSION_MS - 1)
        assert a.step() == 0
    assert host.shard.commits.committed("g", HERE) is not None
    assert host.shard.commits.committed("g", THERE) is None
    # and all of it, with the group, when it has no members any more
    a.leave()
    host.wait(2 * DAY_MS)
    assert host.shard.find("g") is None
    assert not list(host.replayed())


def test_offsets_age_from_when_the_group_became_empty() -> None:
    """A group that had nothing to commit for longer than the retention keeps its place over a restart of
    its members."""
    config = {"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "60000"}
    host = ConsumerHost(config, t=4)
    c = Consumer(host, "c", "t")
    c.step()
    commit = Commit(TopicPartition("t", 0), 5, -1, "")
    host.apply(host.shard.commits.commit("g", Caller(c.epoch, "c"), [commit]))
    for _ in range(40):
        host.wait(30_000)
        assert c.step() == 0
    assert c.leave() == 0
    host.wait(599_000)
    assert host.shard.offsets.count("g") == 1
    host.reload(NotCoordinator())  # a coordinator that has not seen it become empty gives it the whole time
    host.wait(599_000)
    assert host.shard.offsets.count("g") == 1
    host.wait(61_000)
    assert host.shard.find("g") is None
