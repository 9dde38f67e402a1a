"""Groups in every version of every API, through a socket."""

from __future__ import annotations

import time
from typing import Any

import pytest

from millstream.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from tests.behaviour.groups.steps import (
    MEMBER_ID_REQUIRED,
    describe,
    find,
    join,
    join_request,
    leave,
    stable,
    sync_request,
    versions,
)
from tests.wire import Wire

ILLEGAL_GENERATION, INVALID_GROUP, UNKNOWN_MEMBER, REBALANCING = 22, 24, 25, 27
INVALID_REQUEST, NON_EMPTY, GROUP_NOT_FOUND = 42, 68, 69


# Members


@pytest.mark.parametrize("version", versions(FindCoordinatorRequest))
def test_find_coordinator(wire: Wire, bootstrap: str, group: str, version: int) -> None:
    found = find(wire, group, version)
    assert found.error_code == 0
    assert f"{found.host}:{found.port}" == bootstrap
    if version >= 1:
        assert find(wire, group, version, key_type=9).error_code == INVALID_REQUEST
    if version >= 4:
        keys = [group, f"{group}-2", f"{group}-3"]
        answer = wire.ask(FindCoordinatorRequest(coordinator_key="", coordinator_keys=keys), version)
        assert [(each.key, each.error_code) for each in answer.coordinators] == [(key, 0) for key in keys]


@pytest.mark.parametrize("version", versions(JoinGroupRequest))
def test_join(wire: Wire, group: str, version: int) -> None:
    answer = wire.ask(join_request(group), version)
    if version >= 4:
        assert (answer.error_code, answer.generation_id, answer.members) == (MEMBER_ID_REQUIRED, -1, [])
        assert answer.member_id.startswith("wire-")
        answer = wire.ask(join_request(group, answer.member_id), version)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id
    assert [member.member_id for member in answer.members] == [answer.member_id]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    unknown = wire.ask(join_request(group, "who"), version)
    assert (unknown.error_code, unknown.member_id) == (UNKNOWN_MEMBER, "who")
    assert wire.ask(join_request(""), version).error_code == INVALID_GROUP
    leave(wire, group, answer.member_id)


@pytest.mark.parametrize("version", versions(SyncGroupRequest))
def test_sync(wire: Wire, group: str, version: int) -> None:
    joined = join(wire, group)
    joined.generation_id += 1
    assert wire.ask(sync_request(group, joined), version).error_code == ILLEGAL_GENERATION
    joined.generation_id -= 1
    answer = wire.ask(sync_request(group, joined), version)
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        for wrong in ({"protocol_type": "connect"}, {"protocol_name": None}, {"protocol_type": None}):
            refused = wire.ask(sync_request(group, joined, **wrong), version)
            assert (refused.error_code, refused.assignment) == (23, b"")
    leave(wire, group, joined.member_id)


@pytest.mark.parametrize("version", versions(HeartbeatRequest))
def test_heartbeat(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def beat(member_id: str, generation: int) -> int:
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        code: int = wire.ask(request, version).error_code
        return code

    assert beat(joined.member_id, 1) == 0
    assert beat(joined.member_id, 2) == ILLEGAL_GENERATION
    assert beat("who", 1) == UNKNOWN_MEMBER
    leave(wire, group, joined.member_id)
    assert beat(joined.member_id, 1) == UNKNOWN_MEMBER


@pytest.mark.parametrize("version", versions(LeaveGroupRequest))
def test_leave(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def go(member_id: str) -> list[int]:
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        request = LeaveGroupRequest(group_id=group, member_id=member_id, members=[identity])
        answer = wire.ask(request, version)
        if version < 3:
            return [answer.error_code]
        assert answer.error_code == 0
        return [member.error_code for member in answer.members]

    assert go("who") == [UNKNOWN_MEMBER]
    assert go(joined.member_id) == [0]
    assert describe(wire, group).group_state == "Empty"


def test_a_newcomer_is_answered_after_the_others_came_back(wire: Wire, bootstrap: str, group: str) -> None:
    first = stable(wire, group)
    with Wire(bootstrap) as second:
        given = second.ask(join_request(group)).member_id
        second.send(join_request(group, given))
        deadline = time.monotonic() + 10
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=first.member_id)
        while wire.ask(beat).error_code != REBALANCING:
            assert time.monotonic() < deadline
        again = wire.ask(join_request(group, first.member_id))
        _, other = second.receive()
        assert (again.generation_id, other.generation_id) == (2, 2)
        assert {member.member_id for member in again.members} == {first.member_id, given}
        second.send(sync_request(group, other))
        assert wire.ask(sync_request(group, again)).error_code == 0
        _, synced = second.receive()
        assert (synced.error_code, synced.assignment) == (0, b"")
    leave(wire, group, first.member_id, given)


# What admins ask


@pytest.mark.parametrize("version", versions(DescribeGroupsRequest))
def test_describe(wire: Wire, group: str, version: int) -> None:
    missing = describe(wire, group, version)
    assert (missing.group_state, missing.members) == ("Dead", [])
    assert missing.error_code == (GROUP_NOT_FOUND if version >= 6 else 0)
    if version >= 6:
        assert missing.error_message == f"Group {group} not found."
    joined = stable(wire, group)
    found = describe(wire, group, version)
    assert (found.error_code, found.group_state, found.protocol_type) == (0, "Stable", "consumer")
    assert found.protocol_data == "range"
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (
        joined.member_id,
        "wire",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"\x00\x00\x00\x00\x00\x00", b"mine")
    if version >= 3:
        assert found.authorized_operations & 1 << 3
    wire.ask(join_request(group, joined.member_id))
    rebalancing = describe(wire, group, version)
    assert (rebalancing.group_state, rebalancing.protocol_data) == ("CompletingRebalance", "")
    (member,) = rebalancing.members
    assert (member.member_metadata, member.member_assignment) == (b"", b"mine")
    leave(wire, group, joined.member_id)
    empty = describe(wire, group, version)
    assert (empty.group_state, empty.protocol_type, empty.members) == ("Empty", "consumer", [])


@pytest.mark.parametrize("version", versions(ListGroupsRequest))
def test_list(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def listed(**filters: Any) -> list[Any]:
        answer = wire.ask(ListGroupsRequest(**filters), version)
        assert answer.error_code == 0
        return [each for each in answer.groups if each.group_id == group]

    (found,) = listed()
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
        assert len(listed(states_filter=["stable", "Empty"])) == 1
        assert listed(states_filter=["Empty"]) == []
    if version >= 5:
        assert found.group_type.lower() == "classic"
        assert len(listed(types_filter=["Classic"])) == 1
        assert listed(types_filter=["consumer"]) == []
    leave(wire, group, joined.member_id)


@pytest.mark.parametrize("version", versions(DeleteGroupsRequest))
def test_delete(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def delete() -> int:
        answer = wire.ask(DeleteGroupsRequest(groups_names=[group]), version)
        code: int = answer.results[0].error_code
        return code

    assert delete() == NON_EMPTY
    leave(wire, group, joined.member_id)
    assert delete() == 0
    assert delete() == GROUP_NOT_FOUND
