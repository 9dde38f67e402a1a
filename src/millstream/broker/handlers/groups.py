"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what admins ask."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from millstream.broker.coordinators import GROUPS_TOPIC
from millstream.broker.operations import ON_A_GROUP
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.coordinator.entry_format import MAX_TEXT_BYTES, fits
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.shard import Result
from millstream.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidGroupId,
    KafkaError,
    RebalanceInProgress,
    RecordListTooLarge,
    UnknownServerError,
)
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

DEAD = "Dead"
UNKNOWN_GROUP_ERROR_SINCE = 6


def group_index(ctx: Context, group_id: str) -> int:
    """The partition that looks after a group. An id has to fit into the entries of the log."""
    if not fits(group_id):
        raise InvalidGroupId(f"a group's id has at most {MAX_TEXT_BYTES} bytes")
    return ctx.broker.coordinators.partition_of(GROUPS_TOPIC, group_id)


@handles(JoinGroupRequest)
async def join_group(ctx: Context, req: JoinGroupRequest) -> JoinGroupResponse:
    """v1 rebalance time-out; v4 a member id is required (KIP-394); v5 static members (KIP-345); v6
    flexible; v7 the protocol's type (KIP-559); v8 a reason (KIP-800); v9 a leader may have to skip the
    assignment (KIP-814).
    """
    client = Client(ctx.version, ctx.client_id or "", f"/{ctx.connection.peer}")
    try:
        index = group_index(ctx, req.group_id)
        response = await ctx.broker.groups.write(index, lambda shard: shard.join(req, client))
    except KafkaError as error:
        code = _code(error)
        response = JoinGroupResponse(error_code=code, leader="", member_id=req.member_id, members=[])
    if response.protocol_name is None and ctx.version < 7:
        response.protocol_name = ""
    return response


@handles(SyncGroupRequest)
async def sync_group(ctx: Context, req: SyncGroupRequest) -> SyncGroupResponse:
    """v3 static members (KIP-345); v4 flexible; v5 the protocol's type and name, which must be given then
    (KIP-559).

    While the group is being loaded its members are told to join again, for the rebalance that they are in
    does not come back. Clients do not expect to hear of the loading here, and give up.
    """
    if ctx.version >= 5 and None in (req.protocol_type, req.protocol_name):
        raise InconsistentGroupProtocol
    index = group_index(ctx, req.group_id)
    try:
        return await ctx.broker.groups.write(index, lambda shard: shard.sync(req))
    except CoordinatorLoadInProgress:
        return SyncGroupResponse(error_code=RebalanceInProgress.code, assignment=b"")
    except KafkaError as error:
        return SyncGroupResponse(error_code=_code(error), assignment=b"")


def _code(error: KafkaError) -> int:
    """A group that has become too large to be written down is nothing that its members can mend."""
    return UnknownServerError.code if isinstance(error, RecordListTooLarge) else error.code


@handles(HeartbeatRequest)
def heartbeat(ctx: Context, req: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """v3 static members (KIP-345); v4 flexible.

    While the group is being loaded nobody can say more than that the heartbeat came. Clients do not expect
    to hear of the loading here, and some give up.
    """
    index = group_index(ctx, req.group_id)
    try:
        return ctx.broker.groups.write_now(index, lambda shard: shard.heartbeat(req))
    except CoordinatorLoadInProgress:
        return HeartbeatResponse()


@handles(LeaveGroupRequest)
async def leave_group(ctx: Context, req: LeaveGroupRequest) -> LeaveGroupResponse:
    """v3 many members (KIP-345); v4 flexible; v5 a reason (KIP-800)."""
    index = group_index(ctx, req.group_id)
    return await ctx.broker.groups.write(index, lambda shard: shard.leave(req, ctx.version))


@handles(DescribeGroupsRequest, large_bytes=LONG_LIST_BYTES)
async def describe_groups(ctx: Context, req: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """v3 authorized operations (KIP-430); v4 static members; v5 flexible; v6 a group that does not exist
    is an error, before it was one that is dead (KIP-1043). A group that is named twice is described once.
    """
    response, pauses = DescribeGroupsResponse(groups=[]), Pauses()
    for group_id in dict.fromkeys(req.groups):
        if pauses.is_due:
            await pauses.take()
        try:
            index = group_index(ctx, group_id)
            group = await ctx.broker.groups.read(index, partial(_described, group_id))
        except GroupIdNotFound as error:
            group = _no_group(group_id)
            if ctx.version >= UNKNOWN_GROUP_ERROR_SINCE:
                group.error_code, group.error_message = error.code, error.message
        except KafkaError as error:
            group = _no_group(group_id)
            group.group_state = ""
            group.error_code = error.code
            group.error_message = error.message if ctx.version >= UNKNOWN_GROUP_ERROR_SINCE else None
        if req.include_authorized_operations and not group.error_code:
            group.authorized_operations = ON_A_GROUP
        response.groups.append(group)
    return response


def _no_group(group_id: str) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group_id, group_state=DEAD, protocol_type="", protocol_data="", members=[]
    )


def _described(group_id: str, shard: GroupShard) -> DescribeGroupsResponse.DescribedGroup:
    """A group; what its members said is told only while that holds."""
    group = shard.find(group_id)
    if group is None:
        raise GroupIdNotFound(f"Group {group_id} not found.")
    if isinstance(group, ConsumerGroup):
        raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
    is_stable = group.state is State.STABLE
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


@handles(ListGroupsRequest)
async def list_groups(ctx: Context, req: ListGroupsRequest) -> ListGroupsResponse:
    """v3 flexible; v4 states (KIP-518); v5 types (KIP-848). Each broker lists what it coordinates."""
    states = {state.lower() for state in req.states_filter}
    types = {kind.lower() for kind in req.types_filter}

    def wanted(group: ClassicGroup | ConsumerGroup) -> bool:
        return (not states or group.state.value.lower() in states) and (
            not types or group.kind.lower() in types
        )

    def listed(shard: GroupShard) -> list[ListGroupsResponse.ListedGroup]:
        return [
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=group.kind,
            )
            for group in shard
            if wanted(group)
        ]

    response = ListGroupsResponse(groups=[])
    for groups in await ctx.broker.groups.read_all(listed):
        response.groups += groups
    return response


def _delete(group_id: str, shard: GroupShard) -> Result[None]:
    return shard.delete_group(group_id)


@handles(DeleteGroupsRequest, large_bytes=LONG_LIST_BYTES)
async def delete_groups(ctx: Context, req: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """v2 flexible. Only groups without members can be deleted; one without a name may have offsets."""
    response, pauses = DeleteGroupsResponse(results=[]), Pauses()
    for group_id in req.groups_names:
        if pauses.is_due:
            await pauses.take()
        result = DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
        response.results.append(result)
        try:
            try:
                index = group_index(ctx, group_id)
            except CoordinatorNotAvailable:
                # Nobody ever asked for a group here, so that its topic does not exist.
                raise GroupIdNotFound from None
            await ctx.broker.groups.write(index, partial(_delete, group_id))
        except KafkaError as error:
            result.error_code = error.code
    return response
