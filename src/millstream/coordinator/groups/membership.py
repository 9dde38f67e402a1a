"""SyncGroup, Heartbeat and LeaveGroup: what members of the classic protocol do once they have joined."""

from __future__ import annotations

from millstream.coordinator.entry_format import entry
from millstream.coordinator.group_entries import GroupMetadataKey
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.rebalance import Rebalances
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Result
from millstream.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from millstream.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class Membership:
    """What members ask for. KafkaError where they are refused."""

    def __init__(self, groups: dict[str, ClassicGroup], rebalances: Rebalances) -> None:
        self._groups = groups
        self._rebalances = rebalances

    def sync(self, request: SyncGroupRequest) -> Result[SyncGroupResponse]:
        """A member asks for its assignment; the leader's request brings everybody's."""
        group = self._group(request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise IllegalGeneration
        if request.protocol_type not in (None, group.protocol_type):
            raise InconsistentGroupProtocol
        if request.protocol_name not in (None, group.protocol_name):
            raise InconsistentGroupProtocol
        if group.state is State.PREPARING:
            raise RebalanceInProgress
        if group.state is State.COMPLETING and group.leader == member.member_id:
            # Nothing changes until the log has taken it: then `assigned` tells everybody.
            assignments = {each.member_id: each.assignment for each in request.assignments}
            written = entry(GroupMetadataKey(group=group.group_id), group.value(assignments))
            response = group.sync_response(member)
            response.assignment = assignments.get(member.member_id, b"")
            return Result(response, [written])
        self._rebalances.synced(group, member)
        if group.state is State.STABLE:
            self._rebalances.heard(group, member)
            return Result(group.sync_response(member))
        if member.syncing is None:
            member.syncing = Promise()
        return Result(member.syncing)

    def heartbeat(self, request: HeartbeatRequest) -> Result[HeartbeatResponse]:
        """A member is alive; it learns whether it has to join again."""
        group = self._group(request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise IllegalGeneration
        self._rebalances.heard(group, member)
        if group.state is State.PREPARING:
            raise RebalanceInProgress
        return Result(HeartbeatResponse())

    def leave(self, request: LeaveGroupRequest, version: int) -> Result[LeaveGroupResponse]:
        """Members go, one in old versions, or several, also by their instance ids alone (KIP-345)."""
        if not request.group_id:
            raise InvalidGroupId("a group's id must not be empty")
        group = self._groups.get(request.group_id)
        if version < 3:
            if group is None:
                raise UnknownMemberId
            self._let_go(group, request.member_id, None)
            return Result(LeaveGroupResponse(), self._rebalances.after_removal(group))
        response = LeaveGroupResponse()
        for identity in request.members:
            answer = LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            response.members.append(answer)
            try:
                if group is None:
                    raise UnknownMemberId
                self._let_go(group, identity.member_id, identity.group_instance_id)
            except KafkaError as error:
                answer.error_code = error.code
        return Result(response, [] if group is None else self._rebalances.after_removal(group))

    def _let_go(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> None:
        if not member_id and instance_id is not None:
            member_id = group.instances.get(instance_id, "")
        if member_id in group.pending:
            group.pending.pop(member_id, None)
            self._rebalances.forget_session(group, member_id)
            self._rebalances.forget_if_void(group)
        else:
            self._rebalances.drop(group, group.check_member(member_id, instance_id))

    def _group(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise InvalidGroupId("a group's id must not be empty")
        group = self._groups.get(group_id)
        if group is None or group.is_empty:
            raise UnknownMemberId
        return group
