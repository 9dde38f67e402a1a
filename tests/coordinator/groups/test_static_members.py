"""Static members (KIP-345): they keep their place over restarts, and fence their former selves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.coordinator.shard import Result
from millstream.errors import FencedInstanceId, NotCoordinator, UnknownMemberId
from tests.coordinator.groups.host import Host, error_of


def stable(host: Host, *instances: str, **options: Any) -> dict[str, str]:
    """A stable group of static members; member ids by instance id. The first one leads."""
    joins = {name: host.join("g", instance=name, **options) for name in instances}
    host.settle("g", list(joins.values()))
    return {name: join.result().member_id for name, join in joins.items()}


def test_a_static_member_joins_at_once_under_its_own_name() -> None:
    host = Host()
    ids = stable(host, "a")
    assert ids["a"].startswith("a-")


@pytest.mark.parametrize("version", [5, 8, 9])
def test_coming_back_needs_no_rebalance(version: int) -> None:
    host = Host()
    ids = stable(host, "a", "b")
    answer = host.join("g", instance="b", version=version).result()
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id != ids["b"]
    assert (answer.leader, answer.members, answer.skip_assignment) == (ids["a"], [], False)
    # its assignment is the one it had, and its former self is fenced
    assert host.sync("g", answer.member_id, 1, instance="b").result().assignment == ids["b"].encode()
    assert host.heartbeat("g", ids["b"], 1, "b") == FencedInstanceId.code
    assert host.heartbeat("g", answer.member_id, 1, "b") == 0
    assert host.heartbeat("g", ids["a"], 1, "a") == 0


def test_a_leader_that_comes_back_does_not_assign_anew() -> None:
    host = Host()
    ids = stable(host, "a", "b")
    old = host.join("g", instance="a", version=8).result()
    assert (old.leader, old.members) == (ids["a"], [])  # told that somebody else leads
    new = host.join("g", instance="a", version=9).result()
    assert (new.leader, new.skip_assignment) == (new.member_id, True)
    assert {member.group_instance_id for member in new.members} == {"a", "b"}
    assert error_of(host.sync("g", new.member_id, 1, instance="a")) == 0


def test_the_new_name_is_written_down() -> None:
    host = Host()
    stable(host, "a", "b")
    answer = host.join("g", instance="b").result()
    host.reload(NotCoordinator())
    assert host.heartbeat("g", answer.member_id, 1, "b") == 0


def test_coming_back_in_the_middle_of_a_rebalance() -> None:
    host = Host()
    ids = stable(host, "a", "b")
    waiting = host.join("g", ids["a"], instance="a")
    back = host.join("g", instance="b")
    assert waiting.result().generation_id == back.result().generation_id == 2
    assert set(host.shard.groups["g"].members) == {ids["a"], back.result().member_id}


def test_coming_back_twice_fences_the_first() -> None:
    host = Host()
    ids = stable(host, "a", "b")
    host.join("g", ids["a"], instance="a", protocols={"range": b"new", "sticky": b""})
    first = host.join("g", ids["b"], instance="b")
    assert first.is_done
    again = host.join("g", instance="b")  # while the assignment is awaited: everybody joins again
    assert not again.is_done
    twin = host.join("g", instance="b")
    assert error_of(again) == FencedInstanceId.code
    assert error_of(host.join("g", ids["b"], instance="b")) == FencedInstanceId.code
    other = host.join("g", ids["a"], instance="a")
    host.settle("g", [twin, other])


def test_a_changed_protocol_makes_a_rebalance() -> None:
    host = Host()
    ids = stable(host, "a", "b")
    assert host.shard.groups["g"].protocol_name == "range"
    back = host.join("g", instance="b", protocols={"sticky": b""})
    assert not back.is_done
    again = host.join("g", ids["a"], instance="a")
    assert {again.result().protocol_name, back.result().protocol_name} == {"sticky"}


def test_an_absent_static_member_keeps_its_place_until_its_session_ends() -> None:
    host = Host()
    ids = stable(host, "a", "b", session_ms=30_000, rebalance_ms=6_000)
    again = host.join("g", ids["a"], instance="a", session_ms=30_000, rebalance_ms=6_000)
    host.wait(6_000)
    answer = again.result()
    assert {member.group_instance_id for member in answer.members} == {"a", "b"}


def test_a_rebalance_that_nobody_joins_is_put_off_and_then_over() -> None:
    host = Host()
    ids = stable(host, "a", "b", session_ms=30_000, rebalance_ms=6_000)
    host.leave("g", ("", "a"))
    host.wait(6_000)
    assert host.shard.groups["g"].state.value == "PreparingRebalance"
    assert set(host.shard.groups["g"].members) == {ids["b"]}
    host.wait(30_000)
    assert host.shard.groups["g"].state.value == "Empty"


def test_a_rebalance_that_nobody_joins_does_not_keep_the_coordinator_busy() -> None:
    class Counting(Host):
        count = 0

        def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
            self.count += 1
            assert self.count < 100
            super().set(key, delay_ms, work)

    host = Counting()
    stable(host, "a", "b", session_ms=30_000, rebalance_ms=1)
    host.leave("g", ("", "a"))
    host.wait(31_000)
    assert host.shard.groups["g"].state.value == "Empty"


def test_an_admin_removes_a_static_member_by_its_instance_id() -> None:
    host = Host()
    ids = stable(host, "a", "b")
    answer = host.leave("g", ("", "b"), ("", "nobody"), ("wrong", "a"))
    assert [each.error_code for each in answer.members] == [0, UnknownMemberId.code, FencedInstanceId.code]
    assert set(host.shard.groups["g"].members) == {ids["a"]}


def test_fencing_at_every_request() -> None:
    host = Host()
    ids = stable(host, "a")
    assert error_of(host.join("g", "x", instance="a")) == FencedInstanceId.code
    assert error_of(host.sync("g", "x", 1, instance="a")) == FencedInstanceId.code
    assert host.heartbeat("g", "x", 1, "a") == FencedInstanceId.code
    assert host.heartbeat("g", ids["a"], 1, "b") == UnknownMemberId.code
    assert error_of(host.join("g", ids["a"], instance="b")) == UnknownMemberId.code


def test_a_leave_of_a_former_self_does_not_harm_the_new_one() -> None:
    host = Host()
    ids = stable(host, "a")
    back = host.join("g", instance="a").result()
    gone = host.leave("g", (ids["a"], "a"))
    assert [each.error_code for each in gone.members] == [FencedInstanceId.code]
    assert host.heartbeat("g", back.member_id, 1, "a") == 0
    host.wait(9_000)
    assert host.heartbeat("g", back.member_id, 1, "a") == 0


def test_a_static_member_comes_back_to_a_full_group() -> None:
    host = Host({"group.max.size": "2"})
    joins = [host.join("g", instance=name) for name in "ab"]
    host.settle("g", joins)
    back = host.join("g", instance="b")
    assert error_of(back) == 0
    assert error_of(host.join("g", instance="c")) == 81


def test_a_new_static_member_that_starts_again_while_others_take_their_time() -> None:
    """It waits for its first answer, and cannot send heartbeats: its session does not end meanwhile."""
    host = Host()
    ids = stable(host, "a", rebalance_ms=120_000)
    first = host.join("g", instance="b")
    again = host.join("g", instance="b")
    assert error_of(first) == FencedInstanceId.code
    for _ in range(12):
        host.wait(5_000)
        host.heartbeat("g", ids["a"], 1, "a")
    assert not again.is_done
    host.settle("g", [host.join("g", ids["a"], instance="a"), again])
