"""What a client of a group does, request by request."""

from __future__ import annotations

import time
from typing import Any

from millstream.protocol.messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.wire import Wire

LOADING = {14, 15, 16}
MEMBER_ID_REQUIRED = 79
SESSION_MS = 10_000


def versions(request: type[Any]) -> list[int]:
    lowest, highest = request.versions
    return list(range(lowest, highest + 1))


def find(wire: Wire, name: str, version: int = 6, key_type: int = 0) -> Any:
    """The coordinator, as soon as there is one."""
    request = FindCoordinatorRequest(coordinator_key=name, coordinator_keys=[name], key_type=key_type)
    deadline = time.monotonic() + 20
    while True:
        answer = wire.ask(request, version)
        found = answer.coordinators[0] if version >= 4 else answer
        if found.error_code not in LOADING or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def describe(wire: Wire, name: str, version: int = 6) -> Any:
    return wire.ask(DescribeGroupsRequest(groups=[name], include_authorized_operations=True), version).groups[
        0
    ]


def join_request(group: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00")
        ],
        **fields,
    )


def join(wire: Wire, group: str, version: int = 9, **fields: Any) -> Any:
    """Join as a client of this version does."""
    answer = wire.ask(join_request(group, **fields), version)
    if answer.error_code == MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = wire.ask(join_request(group, answer.member_id, **fields), version)
    return answer


def sync_request(group: str, joined: Any, **fields: Any) -> SyncGroupRequest:
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
    )


def stable(wire: Wire, group: str) -> Any:
    """A group of one; what it was told when it joined."""
    joined = join(wire, group)
    assert wire.ask(sync_request(group, joined)).error_code == 0
    return joined


def leave(wire: Wire, group: str, *member_ids: str) -> None:
    members = [LeaveGroupRequest.MemberIdentity(member_id=member_id) for member_id in member_ids]
    wire.ask(LeaveGroupRequest(group_id=group, members=members))
