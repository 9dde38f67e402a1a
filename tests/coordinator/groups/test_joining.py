"""JoinGroup: who may come in, under which name, and when the answer comes."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.coordinator.groups import joining
from millstream.coordinator.groups.member import Client
from millstream.errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    UnknownMemberId,
)
from millstream.protocol.messages import JoinGroupRequest
from tests.coordinator.groups.host import Host, error_of, promised


def test_a_member_is_told_to_come_back_with_its_id() -> None:
    host = Host()
    first = host.join("g", client_id="app").result()
    assert first.error_code == MemberIdRequired.code
    assert first.member_id.startswith("app-")
    again = host.join("g", first.member_id)
    host.run_timers()
    answer = again.result()
    assert (answer.error_code, answer.generation_id, answer.member_id) == (0, 1, first.member_id)
    assert answer.leader == first.member_id
    assert [member.member_id for member in answer.members] == [first.member_id]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_join_at_once(version: int) -> None:
    host = Host()
    join = host.join("g", version=version)
    assert not join.is_done
    host.run_timers()
    assert error_of(join) == 0


def test_without_a_rebalance_time_out_the_session_s_is_taken() -> None:
    host = Host()
    old = host.join("g", version=0, rebalance_ms=-1, session_ms=7000)
    host.settle("g", [old])
    assert host.shard.groups["g"].rebalance_timeout_ms == 7000


def test_an_id_that_nobody_was_given_is_unknown() -> None:
    host = Host()
    assert error_of(host.join("g", "made-up")) == UnknownMemberId.code
    assert "g" not in host.shard.groups
    host.enter("g")
    assert error_of(host.join("g", "made-up")) == UnknownMemberId.code


def test_an_id_that_is_not_used_is_forgotten_after_the_session_time_out() -> None:
    host = Host()
    given = host.join("g", session_ms=6000).result().member_id
    host.wait(6000)
    assert error_of(host.join("g", given)) == UnknownMemberId.code
    assert "g" not in host.shard.groups


def test_a_rebalance_waits_for_an_id_that_was_given_out() -> None:
    host = Host()
    one, join = host.enter("g")
    host.settle("g", [join])
    two = host.join("g").result().member_id
    again = host.join("g", one)
    host.run_timers()
    assert not again.is_done
    other = host.join("g", two)
    assert {join.result().generation_id for join in (again, other)} == {2}


@pytest.mark.parametrize(
    ("session_ms", "is_taken"), [(5999, False), (6000, True), (9000, True), (9001, False)]
)
def test_the_session_time_out_has_limits(session_ms: int, is_taken: bool) -> None:
    host = Host({"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "9000"})
    error = error_of(host.join("g", session_ms=session_ms))
    assert error == (MemberIdRequired.code if is_taken else InvalidSessionTimeout.code)


def test_a_group_needs_a_name_and_protocols() -> None:
    host = Host()
    assert error_of(host.join("")) == InvalidGroupId.code
    assert error_of(host.join("g", protocol_type="")) == InconsistentGroupProtocol.code
    assert "g" not in host.shard.groups


def test_members_must_have_a_protocol_in_common() -> None:
    host = Host()
    _, one = host.enter("g", protocols={"range": b"1", "sticky": b"1"})
    host.settle("g", [one])
    assert error_of(host.join("g", protocols={"round": b""})) == InconsistentGroupProtocol.code
    assert error_of(host.join("g", protocol_type="connect")) == InconsistentGroupProtocol.code
    _, two = host.enter("g", protocols={"sticky": b"2", "round": b"2"})
    again = host.join("g", one.result().member_id, protocols={"range": b"1", "sticky": b"1"})
    assert {join.result().protocol_name for join in (again, two)} == {"sticky"}
    metadata = {member.member_id: member.metadata for member in again.result().members}
    assert sorted(metadata.values()) == [b"1", b"2"]
    # what the members no longer have in common cannot be joined with
    assert error_of(host.join("g", protocols={"range": b""})) == InconsistentGroupProtocol.code


def test_the_protocol_that_most_like_best_is_chosen() -> None:
    host = Host()
    joins = [
        host.enter("g", protocols={"b": b"", "a": b""})[1],
        host.enter("g", protocols={"b": b"", "a": b""})[1],
        host.enter("g", protocols={"a": b"", "b": b""})[1],
    ]
    host.run_timers()
    assert {join.result().protocol_name for join in joins} == {"b"}


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    """Else nobody could say what all members speak, and the group would never have another generation."""
    host = Host()
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
            for metadata in (b"1", b"2")
        ],
    )
    one = promised(host.apply(host.shard.join(request, Client(3, "client", "/127.0.0.1"))))
    host.settle("g", [one])
    assert one.result().members[0].metadata == b"1"
    _, two = host.enter("g", protocols={"range": b"3"})
    again = host.join("g", one.result().member_id, protocols={"range": b"1"})
    host.settle("g", [again, two])


def test_other_kinds_of_groups_pass_through() -> None:
    host = Host()
    _, worker = host.enter("connect-cluster", protocol_type="connect", protocols={"sessioned": b"\x00config"})
    host.run_timers()
    answer = worker.result()
    assert (answer.protocol_type, answer.protocol_name) == ("connect", "sessioned")
    assert answer.members[0].metadata == b"\x00config"
    host.settle("connect-cluster", [worker])


def test_a_full_group_takes_nobody() -> None:
    host = Host({"group.max.size": "2"})
    joins = [host.enter("g")[1] for _ in range(2)]
    host.settle("g", joins)
    assert error_of(host.join("g")) == GroupMaxSizeReached.code
    # those that are in stay in
    again = [host.join("g", join.result().member_id) for join in joins]
    assert all(error_of(join) == 0 for join in again)


def test_ids_given_out_do_not_fill_a_group_but_only_so_many_get_in() -> None:
    host = Host({"group.max.size": "2"})
    ids = [host.join("g").result().member_id for _ in range(4)]
    joins = [host.join("g", member_id) for member_id in ids]
    assert [error_of(join) for join in joins[2:]] == [GroupMaxSizeReached.code] * 2
    host.run_timers()
    assert [error_of(join) for join in joins[:2]] == [0, 0]
    assert not host.shard.groups["g"].pending


def test_a_new_group_waits_for_more_members() -> None:
    host = Host({"group.initial.rebalance.delay.ms": "3000"})
    _, one = host.enter("g")
    host.wait(2000)
    _, two = host.enter("g")
    host.wait(2000)
    assert not one.is_done  # the newcomer prolonged it
    host.wait(2000)
    assert {join.result().generation_id for join in (one, two)} == {1}


def test_waiting_for_more_members_ends_with_the_rebalance_time_out() -> None:
    host = Host({"group.initial.rebalance.delay.ms": "3000"})
    joins = []
    for _ in range(6):
        joins.append(host.enter("g", rebalance_ms=10_000)[1])
        host.wait(2000)
    assert joins[0].is_done
    assert joins[0].result().generation_id == 1


def test_asking_twice_gives_both_the_same_answer() -> None:
    host = Host()
    member_id, first = host.enter("g")
    second = host.join("g", member_id)
    host.run_timers()
    assert first.result() == second.result()
    assert len(host.shard.groups["g"].members) == 1


def test_a_follower_that_asks_again_learns_the_generation_without_a_rebalance() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(2)]
    host.settle("g", joins)
    leader = joins[0].result().leader
    follower = next(join.result().member_id for join in joins if join.result().member_id != leader)
    answer = host.join("g", follower).result()
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (0, 1, leader, [])
    assert host.shard.groups["g"].state.value == "Stable"


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(2)]
    host.settle("g", joins)
    leader = joins[0].result().leader
    again = host.join("g", leader)
    assert not again.is_done
    assert host.shard.groups["g"].state.value == "PreparingRebalance"


def test_a_member_that_changed_its_mind_begins_a_rebalance() -> None:
    host = Host()
    joins = [host.enter("g")[1] for _ in range(2)]
    host.settle("g", joins)
    leader = joins[0].result().leader
    follower = next(join.result().member_id for join in joins if join.result().member_id != leader)
    changed = host.join("g", follower, protocols={"range": b"other topics", "sticky": b""})
    assert not changed.is_done
    host.join("g", leader)
    assert changed.result().generation_id == 2


def test_an_answer_that_got_lost_is_given_again() -> None:
    host = Host()
    member_id, join = host.enter("g")
    host.run_timers()
    assert join.is_done
    again = host.join("g", member_id).result()
    assert again == join.result()


@pytest.mark.parametrize(
    "options",
    [
        {"instance": "x" * 32_740},
        {"instance": "é" * 20_000},
        {"client_id": "c" * 32_740},
        {"protocols": {"p" * 32_768: b""}},
        {"protocol_type": "t" * 32_768},
    ],
)
def test_who_cannot_be_written_down_does_not_come_in(options: dict[str, Any]) -> None:
    """Else the whole group could not be written down, and no member would get an assignment."""
    host = Host()
    assert error_of(host.join("g", **options)) == 42
    assert not host.shard.groups
    host.settle("g", [host.join("g", instance="x" * (32_767 - 37))])


def test_ids_that_nobody_uses_are_taken_back_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "MAX_PENDING", 10)
    host = Host()
    given = [host.join("g").result().member_id for _ in range(100)]
    assert list(host.shard.groups["g"].pending) == given[-10:]
    assert len([key for key in host.timer_keys if "session" in str(key)]) == 10
    assert error_of(host.join("g", given[0])) == 25
    last = host.join("g", given[-1])
    host.wait(10_000)
    assert last.result().error_code == 0
