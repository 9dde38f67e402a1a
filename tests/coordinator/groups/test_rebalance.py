"""SyncGroup, Heartbeat, LeaveGroup and the time-outs of the classic protocol."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.coordinator.group_entries import GroupMetadataKey
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Entry
from millstream.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.coordinator.groups.host import Host, error_of


def stable(host: Host, count: int = 2, group: str = "g", **options: Any) -> list[str]:
    """A stable group; its members, the leader first."""
    joins = [host.enter(group, **options)[1] for _ in range(count)]
    host.settle(group, joins)
    leader = joins[0].result().leader
    ids = [join.result().member_id for join in joins]
    return sorted(ids, key=lambda member_id: member_id != leader)


def state(host: Host, group: str = "g") -> str:
    return host.shard.groups[group].state.value


def test_assignments_reach_their_members() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(3)]
    assert len(host.settle("g", joins)) == 3
    assert state(host) == "Stable"
    assert len(host.log) == 1  # the only thing worth writing is the assignment


def test_a_member_left_out_of_the_assignment_gets_nothing() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(2)]
    host.run_timers()
    leader = joins[0].result().leader
    other = next(join.result().member_id for join in joins if join.result().member_id != leader)
    waiting = host.sync("g", other, 1)
    host.sync("g", leader, 1, {leader: b"all", "nobody": b"?"})
    assert waiting.result().assignment == b""


def test_sync_checks_member_generation_and_protocol() -> None:
    host = Host()
    member_id, join = host.enter("g")
    host.run_timers()
    assert join.is_done
    assert error_of(host.sync("g", "who", 1)) == UnknownMemberId.code
    assert error_of(host.sync("nowhere", member_id, 1)) == UnknownMemberId.code
    assert error_of(host.sync("g", member_id, 2)) == IllegalGeneration.code
    assert error_of(host.sync("g", member_id, 1, protocol_type="x")) == InconsistentGroupProtocol.code
    assert error_of(host.sync("g", member_id, 1, protocol_name="x")) == InconsistentGroupProtocol.code
    sync = host.sync("g", member_id, 1, {}, protocol_type="consumer", protocol_name="range")
    assert error_of(sync) == 0


def test_a_sync_that_is_repeated_gets_the_assignment_again() -> None:
    host = Host()
    leader, follower = stable(host)
    assert host.sync("g", follower, 1).result().assignment == follower.encode()
    assert host.sync("g", leader, 1, {follower: b"too late"}).result().assignment == leader.encode()


def test_a_newcomer_sends_those_who_wait_for_an_assignment_back_to_join() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(2)]
    host.run_timers()
    leader = joins[0].result().leader
    other = next(join.result().member_id for join in joins if join.result().member_id != leader)
    waiting = host.sync("g", other, 1)
    newcomer, third = host.enter("g")
    assert error_of(waiting) == RebalanceInProgress.code
    # a leader that was on its way with the old assignment is not unknown, and neither is anybody else
    assert error_of(host.sync("g", leader, 1, {})) == RebalanceInProgress.code
    assert host.heartbeat("g", leader, 1) == RebalanceInProgress.code
    again = [host.join("g", leader), host.join("g", other), third]
    host.settle("g", again)
    assert {join.result().generation_id for join in again} == {2}
    assert newcomer in host.shard.groups["g"].members


def test_heartbeats() -> None:
    host = Host()
    leader, follower = stable(host)
    assert host.heartbeat("g", leader, 1) == 0
    assert host.heartbeat("g", leader, 0) == IllegalGeneration.code
    assert host.heartbeat("g", "who", 1) == UnknownMemberId.code
    assert host.heartbeat("nowhere", leader, 1) == UnknownMemberId.code
    host.join("g", leader)
    assert host.heartbeat("g", follower, 1) == RebalanceInProgress.code


def test_a_silent_member_is_dropped_and_the_rest_share_anew() -> None:
    host = Host()
    leader, follower = stable(host, session_ms=10_000)
    for _ in range(4):
        host.wait(4000)
        host.heartbeat("g", leader, 1)
    assert host.heartbeat("g", follower, 1) == UnknownMemberId.code
    assert state(host) == "PreparingRebalance"
    again = host.join("g", leader)
    assert again.result().generation_id == 2


def test_heartbeats_keep_a_member_to_the_very_end_of_its_session() -> None:
    host = Host()
    (only,) = stable(host, 1, session_ms=10_000)
    for _ in range(50):
        host.wait(9_999)
        assert host.heartbeat("g", only, 1) == 0
    host.wait(10_000)
    assert host.heartbeat("g", only, 1) == UnknownMemberId.code
    assert state(host) == "Empty"


def test_who_does_not_join_in_time_is_out() -> None:
    host = Host()
    leader, follower = stable(host, rebalance_ms=30_000, session_ms=10_000)
    again = host.join("g", leader, rebalance_ms=30_000)
    for _ in range(10):
        host.wait(3_000)
        host.heartbeat("g", follower, 1)
    assert again.result().generation_id == 2
    assert host.heartbeat("g", follower, 1) == UnknownMemberId.code
    assert list(host.shard.groups["g"].members) == [leader]


def test_who_does_not_sync_in_time_is_out() -> None:
    host = Host()
    joins = [host.enter("g", rebalance_ms=20_000, session_ms=10_000)[1] for _ in range(3)]
    host.run_timers()
    leader, lazy, waiting = sorted(
        (join.result().member_id for join in joins),
        key=lambda member_id: member_id != joins[0].result().leader,
    )
    sync = host.sync("g", waiting, 1)
    host.sync("g", leader, 1, {leader: b"l", lazy: b"z", waiting: b"w"})
    assert sync.is_done
    for _ in range(5):
        host.wait(4_000)
        for member_id in (leader, lazy, waiting):
            host.heartbeat("g", member_id, 1)
    assert set(host.shard.groups["g"].members) == {leader, waiting}
    assert state(host) == "PreparingRebalance"


def test_waiting_members_are_not_missed() -> None:
    host = Host()
    joins = [host.enter("g", session_ms=6000, rebalance_ms=120_000)[1] for _ in range(2)]
    host.run_timers()
    leader = joins[0].result().leader
    follower = next(join.result().member_id for join in joins if join.result().member_id != leader)
    sync = host.sync("g", follower, 1)
    for _ in range(10):
        host.wait(5000)
        host.heartbeat("g", leader, 1)
    assert not sync.is_done
    host.sync("g", leader, 1, {follower: b"mine"})
    assert sync.result().assignment == b"mine"
    host.wait(6000)  # and now it is missed again
    assert host.heartbeat("g", follower, 1) == UnknownMemberId.code


def test_a_new_member_that_is_gone_does_not_hold_a_rebalance_for_ever() -> None:
    host = Host()
    leader, follower = stable(host, rebalance_ms=1_000_000, session_ms=10_000)
    host.join("g", version=2, rebalance_ms=1_000_000)  # its connection breaks; nobody will answer for it
    again = host.join("g", leader, rebalance_ms=1_000_000)
    for _ in range(301):
        host.wait(1000)
        assert host.heartbeat("g", follower, 1) == RebalanceInProgress.code
    other = host.join("g", follower, rebalance_ms=1_000_000)
    assert again.is_done
    assert other.is_done
    assert set(host.shard.groups["g"].members) == {leader, follower}


def test_leaving() -> None:
    host = Host()
    leader, follower = stable(host)
    gone = host.leave("g", (leader, None))
    assert [each.error_code for each in gone.members] == [0]
    assert host.heartbeat("g", leader, 1) == UnknownMemberId.code
    assert host.heartbeat("g", follower, 1) == RebalanceInProgress.code
    again = host.join("g", follower)
    assert (again.result().generation_id, again.result().leader) == (2, follower)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_leaving_in_old_versions(version: int) -> None:
    host = Host()
    (only,) = stable(host, 1)
    assert host.leave("g", ("who", None), version=version).error_code == UnknownMemberId.code
    assert host.leave("h", (only, None), version=version).error_code == UnknownMemberId.code
    assert host.leave("g", (only, None), version=version).error_code == 0
    assert state(host) == "Empty"


def test_several_leave_at_once() -> None:
    host = Host()
    leader, follower = stable(host)
    gone = host.leave("g", (leader, None), ("who", None), (follower, None))
    assert [each.error_code for each in gone.members] == [0, UnknownMemberId.code, 0]
    assert state(host) == "Empty"
    assert host.shard.groups["g"].generation == 2
    nowhere = host.leave("nowhere", (leader, None))
    assert [each.error_code for each in nowhere.members] == [UnknownMemberId.code]


def test_an_id_that_was_given_out_can_leave() -> None:
    host = Host()
    _, follower = stable(host)
    given = host.join("g").result().member_id
    assert [each.error_code for each in host.leave("g", (given, None)).members] == [0]
    assert state(host) == "Stable"
    assert error_of(host.join("g", given)) == UnknownMemberId.code
    assert host.heartbeat("g", follower, 1) == 0


def test_who_leaves_while_waiting_is_told() -> None:
    host = Host()
    leader, _ = stable(host)
    waiting = host.join("g", leader)
    host.leave("g", (leader, None))
    assert error_of(waiting) == UnknownMemberId.code
    joins = [host.enter("h")[1] for _ in range(2)]
    host.run_timers()
    other = next(join.result() for join in joins if join.result().member_id != join.result().leader)
    sync = host.sync("h", other.member_id, 1)
    host.leave("h", (other.member_id, None))
    assert error_of(sync) == UnknownMemberId.code


def test_an_empty_group_comes_back_with_the_next_generation() -> None:
    host = Host()
    (only,) = stable(host, 1)
    host.leave("g", (only, None))
    _, join = host.enter("g")
    host.run_timers()
    assert join.result().generation_id == 3


def test_a_log_that_refuses_leaves_the_group_as_it_was() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(2)]
    host.run_timers()
    leader = joins[0].result().leader
    other = next(join.result().member_id for join in joins if join.result().member_id != leader)
    waiting = host.sync("g", other, 1)
    host.refuses = CoordinatorNotAvailable()
    assert error_of(host.sync("g", leader, 1, {other: b"x"})) == CoordinatorNotAvailable.code
    assert not waiting.is_done
    assert state(host) == "CompletingRebalance"
    host.refuses = None
    assert error_of(host.sync("g", leader, 1, {other: b"x"})) == 0
    assert waiting.result().assignment == b"x"


def test_a_coordinator_that_moves_breaks_what_waits_and_keeps_what_was_written() -> None:
    host = Host()
    leader, follower = stable(host)
    waiting: Promise[Any] = host.join("g", leader)
    host.reload(NotCoordinator())
    with pytest.raises(NotCoordinator):
        waiting.result()
    assert state(host) == "Stable"
    assert host.heartbeat("g", follower, 1) == 0
    assert host.sync("g", leader, 1).result().assignment == leader.encode()
    host.wait(10_000)
    assert state(host) == "Empty"  # nobody was heard of


def test_a_generation_without_an_assignment_does_not_survive() -> None:
    host = Host()
    leader, follower = stable(host)
    again = [host.join("g", leader), host.join("g", follower)]
    assert {join.result().generation_id for join in again} == {2}
    host.reload(NotCoordinator())
    assert host.heartbeat("g", leader, 2) == IllegalGeneration.code
    assert host.heartbeat("g", leader, 1) == 0
    assert {host.join("g", leader).is_done, host.join("g", follower).result().generation_id} == {False, 2}


@pytest.mark.parametrize("value", [b"\x00\x63of a newer version", b"\x00\x03torn"])
def test_a_group_that_cannot_be_read_does_no_harm_to_others(value: bytes) -> None:
    host = Host()
    leader, _ = stable(host)
    stable(host, group="other")
    host.log.append((Entry(GroupMetadataKey(group="other").to_bytes(), value), None))
    host.reload(NotCoordinator())
    assert host.heartbeat("g", leader, 1) == 0
    assert host.shard.find("other") is None
    stable(host, group="other")


def test_a_group_that_has_become_too_large_loses_the_last_to_join() -> None:
    host = Host()
    members = stable(host, 3)
    host.config["group.max.size"] = "2"
    host.reload(NotCoordinator())
    assert state(host) == "PreparingRebalance"
    joins = [host.join("g", member_id) for member_id in members]
    assert [join.is_done for join in joins] == [True, True, True]
    assert sorted(map(error_of, joins)) == [0, 0, 81]
