"""Groups of the classic protocol: coordinator, membership, and what admins ask of groups."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, null_since, since, until
from millstream.protocol.types import i8, i16, i32


class FindCoordinatorRequest(Request, key=10, versions=(0, 6), flexible=3):
    """v1 asks for transactions' coordinators too, v3 is flexible, v4 takes many keys (KIP-699), v5
    knows TRANSACTION_ABORTABLE (KIP-890), v6 share groups (KIP-932). What Kafka's schema calls the
    key is `coordinator_key` here, because `key` is the API's."""

    coordinator_key: str = until(3)
    key_type: i8 = since(1)
    coordinator_keys: list[str] = since(4)


class FindCoordinatorResponse(Response, to=FindCoordinatorRequest):
    """v1 adds throttling and an error message, v4 answers for many keys (KIP-699)."""

    class Coordinator(Struct):
        key: str
        node_id: i32
        host: str
        port: i32
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = since(1)
    error_code: i16 = until(3)
    error_message: str | None = since(1, until=3)
    node_id: i32 = until(3)
    host: str = until(3)
    port: i32 = until(3)
    coordinators: list[Coordinator] = since(4)


class JoinGroupRequest(Request, key=11, versions=(0, 9), flexible=6):
    """v1 has a rebalance time-out apart from the session's, v4 may be told to come back with a
    member id (KIP-394), v5 knows static members (KIP-345), v6 is flexible, v8 gives a reason
    (KIP-800)."""

    class JoinGroupRequestProtocol(Struct):
        name: str
        metadata: bytes

    group_id: str
    session_timeout_ms: i32
    rebalance_timeout_ms: i32 = since(1, -1)
    member_id: str
    group_instance_id: str | None = since(5)
    protocol_type: str
    protocols: list[JoinGroupRequestProtocol]
    reason: str | None = since(8)


class JoinGroupResponse(Response, to=JoinGroupRequest):
    """v2 adds throttling, v5 static members (KIP-345), v7 the protocol's type (KIP-559), v9 lets
    the leader skip the assignment (KIP-814)."""

    class JoinGroupResponseMember(Struct):
        member_id: str
        group_instance_id: str | None = since(5)
        metadata: bytes

    throttle_time_ms: i32 = since(2)
    error_code: i16 = 0
    generation_id: i32 = -1
    protocol_type: str | None = since(7)
    protocol_name: str | None = null_since(7, "")
    leader: str
    skip_assignment: bool = since(9)
    member_id: str
    members: list[JoinGroupResponseMember]


class SyncGroupRequest(Request, key=14, versions=(0, 5), flexible=4):
    """v3 knows static members (KIP-345), v4 is flexible, v5 names the protocol (KIP-559)."""

    class SyncGroupRequestAssignment(Struct):
        member_id: str
        assignment: bytes

    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = since(3)
    protocol_type: str | None = since(5)
    protocol_name: str | None = since(5)
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Response, to=SyncGroupRequest):
    """v1 adds throttling, v5 the protocol (KIP-559)."""

    throttle_time_ms: i32 = since(1)
    error_code: i16 = 0
    protocol_type: str | None = since(5)
    protocol_name: str | None = since(5)
    assignment: bytes


class HeartbeatRequest(Request, key=12, versions=(0, 4), flexible=4):
    """v3 knows static members (KIP-345), v4 is flexible."""

    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = since(3)


class HeartbeatResponse(Response, to=HeartbeatRequest):
    """v1 adds throttling."""

    throttle_time_ms: i32 = since(1)
    error_code: i16 = 0


class LeaveGroupRequest(Request, key=13, versions=(0, 5), flexible=4):
    """v3 takes out several members at once (KIP-345), v4 is flexible, v5 gives a reason (KIP-800)."""

    class MemberIdentity(Struct):
        member_id: str
        group_instance_id: str | None = None
        reason: str | None = since(5)

    group_id: str
    member_id: str = until(2)
    members: list[MemberIdentity] = since(3)


class LeaveGroupResponse(Response, to=LeaveGroupRequest):
    """v1 adds throttling, v3 one result for each member."""

    class MemberResponse(Struct):
        member_id: str
        group_instance_id: str | None = None
        error_code: i16 = 0

    throttle_time_ms: i32 = since(1)
    error_code: i16 = 0
    members: list[MemberResponse] = since(3)


class DescribeGroupsRequest(Request, key=15, versions=(0, 6), flexible=5):
    """v3 asks for authorized operations (KIP-430), v5 is flexible, v6 tells unknown groups by an
    error (KIP-1043)."""

    groups: list[str]
    include_authorized_operations: bool = since(3)


class DescribeGroupsResponse(Response, to=DescribeGroupsRequest):
    """v1 adds throttling, v3 authorized operations (KIP-430), v4 static members (KIP-345), v6 an
    error message (KIP-1043)."""

    class DescribedGroupMember(Struct):
        member_id: str
        group_instance_id: str | None = since(4)
        client_id: str
        client_host: str
        member_metadata: bytes
        member_assignment: bytes

    class DescribedGroup(Struct):
        error_code: i16 = 0
        error_message: str | None = since(6)
        group_id: str
        group_state: str
        protocol_type: str
        protocol_data: str
        members: list[DescribeGroupsResponse.DescribedGroupMember]
        authorized_operations: i32 = since(3, -(2**31))

    throttle_time_ms: i32 = since(1)
    groups: list[DescribedGroup]


class ListGroupsRequest(Request, key=16, versions=(0, 5), flexible=3):
    """v3 is flexible, v4 filters by state (KIP-518), v5 by type (KIP-848)."""

    states_filter: list[str] = since(4)
    types_filter: list[str] = since(5)


class ListGroupsResponse(Response, to=ListGroupsRequest):
    """v1 adds throttling, v4 states, v5 types."""

    class ListedGroup(Struct):
        group_id: str
        protocol_type: str
        group_state: str = since(4)
        group_type: str = since(5)

    throttle_time_ms: i32 = since(1)
    error_code: i16 = 0
    groups: list[ListedGroup]


class DeleteGroupsRequest(Request, key=42, versions=(0, 2), flexible=2):
    """v2 is flexible."""

    groups_names: list[str]


class DeleteGroupsResponse(Response, to=DeleteGroupsRequest):
    """One result for each group."""

    class DeletableGroupResult(Struct):
        group_id: str
        error_code: i16 = 0

    throttle_time_ms: i32 = 0
    results: list[DeletableGroupResult]
