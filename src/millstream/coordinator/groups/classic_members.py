"""Members of the classic protocol in a consumer group, while its clients change over (KIP-848).

They are served through JoinGroup, SyncGroup, Heartbeat and LeaveGroup, but nobody leads: a join is answered
at once, and a sync with what the coordinator assigned. Their generation is their member epoch. When the
group moves on they are told to join again, and in doing so they say what they own.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

from millstream.clock import Clock
from millstream.coordinator.groups.classic_group import CONSUMER
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import (
    ClassicSide,
    ConsumerMember,
    MemberState,
    Partitions,
)
from millstream.coordinator.groups.departures import Departures, replacement_entries
from millstream.coordinator.groups.joining import (
    KNOWN_MEMBERS_SINCE,
    protocols_of,
    rebalance_timeout_ms,
)
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.migration import assignment_bytes, can_downgrade, downgrade
from millstream.coordinator.groups.progress import Progress, Said
from millstream.coordinator.groups.sessions import Sessions
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.subscription import read_subscription
from millstream.coordinator.groups.topics import Topics
from millstream.coordinator.shard import Entry, Result
from millstream.errors import (
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
)
from millstream.protocol.messages import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

MANY_LEAVE_SINCE = 3


class ClassicMembers:
    """Serves classic members of consumer groups. KafkaError where one is refused."""

    def __init__(
        self,
        progress: Progress,
        departures: Departures,
        sessions: Sessions,
        topics: Topics,
        settings: Settings,
        clock: Clock,
        random: Random,
    ) -> None:
        self._progress = progress
        self._departures = departures
        self._sessions = sessions
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._random = random

    # Joining

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client
    ) -> Result[JoinGroupResponse]:
        """A member joins, for the first time or again: at once, in the epoch that it can be in."""
        limit = self._settings.consumer_max_size
        is_known = request.member_id in group.members or request.group_instance_id in group.instances
        if len(group.members) >= limit and not is_known:
            raise GroupMaxSizeReached(f"the group has {limit} members, which is as many as it may have")
        self._check_protocols(group, request)
        member_id = request.member_id
        if not member_id:
            name = client.client_id if request.group_instance_id is None else request.group_instance_id
            member_id = f"{name}-{UUID(int=self._random.getrandbits(128), version=4)}"
            if client.version >= KNOWN_MEMBERS_SINCE and request.group_instance_id is None:
                return Result(
                    JoinGroupResponse(
                        error_code=MemberIdRequired.code, leader="", member_id=member_id, members=[]
                    )
                )
        try:
            subscription = read_subscription(request.protocols[0].metadata)
        except ProtocolError as error:
            raise InconsistentGroupProtocol(f"the subscription cannot be read: {error}") from None
        before, former, entries = self._find(group, member_id, request)
        after = _described(before, request, client, subscription)
        if former is not None and not former.is_classic:
            remaining = [each for each in group.members.values() if each.member_id != former.member_id]
            if can_downgrade([*remaining, after], self._settings):
                written = downgrade(group, [*remaining, after], self._topics, self._clock.now_ms())
                return Result(_joined(after, group.epoch), written)
        owned = self._owned(subscription)
        said = Said(before, after, owned, replaces=None if former is None else former.member_id)
        moved, more = self._progress.advance(group, said)
        self._sessions.heard(group.group_id, moved)
        self._sessions.expect_sync(group.group_id, moved)
        return Result(_joined(moved, moved.epoch), [*entries, *more])

    def _find(
        self, group: ConsumerGroup, member_id: str, request: JoinGroupRequest
    ) -> tuple[ConsumerMember, ConsumerMember | None, list[Entry]]:
        """The member as it was, the static member whose place it takes, and the entries that it takes."""
        instance_id = request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id), None, []
        if request.member_id:
            return group.check_member(member_id, instance_id), None, []
        former = group.static_member(instance_id)
        if former is None:
            return ConsumerMember(member_id), None, []
        member = replace(former, member_id=member_id, epoch=0, previous_epoch=0)
        return member, former, replacement_entries(group, former, member)

    def _check_protocols(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        """A member must be a consumer, and speak something that all other classic members do."""
        if request.protocol_type != CONSUMER or not request.protocols:
            raise InconsistentGroupProtocol
        names = {protocol.name for protocol in request.protocols}
        for member in group.members.values():
            if member.is_classic:
                names.intersection_update(name for name, _ in member.protocols)
        if not names:
            raise InconsistentGroupProtocol

    def _owned(self, subscription: ConsumerProtocolSubscription) -> Partitions:
        """What it says that it owns; it gives up everything else, and all if it is an eager one."""
        owned: dict[UUID, frozenset[int]] = {}
        for each in subscription.owned_partitions:
            topic = self._topics.by_name(each.topic)
            if topic is not None:
                owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()) | frozenset(each.partitions)
        return owned

    # Staying

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest) -> Result[SyncGroupResponse]:
        """A member asks for its assignment."""
        member = self._member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise IllegalGeneration
        name = member.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
            raise InconsistentGroupProtocol
        is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
        if self._progress.is_behind(group, member) and not is_revoking:
            self._sessions.expect_join(group.group_id, member)
            raise RebalanceInProgress
        self._sessions.synced(group.group_id, member)
        self._sessions.heard(group.group_id, member)
        assignment = assignment_bytes(member.assigned_partitions, member.protocols, self._topics)
        return Result(SyncGroupResponse(protocol_type=CONSUMER, protocol_name=name, assignment=assignment))

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> Result[HeartbeatResponse]:
        """A member is alive. It has to join again if the group has moved on, if it has to give partitions
        up, or if what it waits for is free by now."""
        member = self._member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise IllegalGeneration
        self._sessions.heard(group.group_id, member)
        if (
            self._progress.is_behind(group, member)
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and self._can_get_more(group, member))
        ):
            self._sessions.expect_join(group.group_id, member)
            raise RebalanceInProgress
        return Result(HeartbeatResponse())

    def _can_get_more(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        return any(
            number not in member.assigned.get(topic_id, ()) and group.is_free(topic_id, number)
            for topic_id, numbers in group.target_of(member).items()
            for number in numbers
        )

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        member = group.check_member(member_id, instance_id)
        if not member.is_classic:
            raise UnknownMemberId(f"{member_id} does not speak the classic protocol")
        return member

    # Leaving

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, version: int
    ) -> Result[LeaveGroupResponse]:
        """Members go; an admin may also let go static ones of the new protocol, by their instance ids."""
        if version < MANY_LEAVE_SINCE:
            member = self._member(group, request.member_id, None)
            return Result(LeaveGroupResponse(), self._departures.remove(group, [member]))
        response = LeaveGroupResponse()
        leaving: dict[str, ConsumerMember] = {}
        for identity in request.members:
            answer = LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            response.members.append(answer)
            try:
                found = group.static_member(identity.group_instance_id) if not identity.member_id else None
                if found is None:
                    found = self._member(group, identity.member_id, identity.group_instance_id)
                leaving[found.member_id] = found
            except KafkaError as error:
                answer.error_code = error.code
        return Result(response, self._departures.remove(group, list(leaving.values())))


def _described(
    member: ConsumerMember,
    request: JoinGroupRequest,
    client: Client,
    subscription: ConsumerProtocolSubscription,
) -> ConsumerMember:
    return replace(
        member,
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        topics=frozenset(subscription.topics),
        regex="",
        assignor=None,
        classic=ClassicSide(request.session_timeout_ms, tuple(protocols_of(request))),
    )


def _joined(member: ConsumerMember, epoch: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=epoch,
        protocol_type=CONSUMER,
        protocol_name=member.protocols[0][0],
        leader="",
        member_id=member.member_id,
        members=[],
    )
