"""JoinGroup: how members come into a group of the classic protocol."""

from __future__ import annotations

from random import Random
from uuid import UUID

from millstream.coordinator.entry_format import MAX_TEXT_BYTES, entry, fits
from millstream.coordinator.group_entries import GroupMetadataKey
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.member import Client, Member, Protocols
from millstream.coordinator.groups.rebalance import NEW_MEMBER_TIMEOUT_MS, Rebalances
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.shard import Result
from millstream.errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    UnknownMemberId,
)
from millstream.protocol.messages import JoinGroupRequest, JoinGroupResponse

Joined = Result[JoinGroupResponse]

_SOME_UUID = UUID(int=0)

KNOWN_MEMBERS_SINCE = 4
"""From this version on a member must join under an id that it was given before (KIP-394)."""

MAX_PENDING = 10_000
"""How many member ids of a group may be given out and not used: a client that asks again and again instead of
joining must not use up the memory."""

SKIPPED_ASSIGNMENT_SINCE = 9
"""From this version on a leader that comes back can be told to leave the assignment alone (KIP-814)."""


class Joins:
    """Lets members in. KafkaError where one cannot come in."""

    def __init__(
        self, groups: dict[str, ClassicGroup], rebalances: Rebalances, random: Random, settings: Settings
    ) -> None:
        self._groups = groups
        self._rebalances = rebalances
        self._random = random
        self._settings = settings

    def check(self, request: JoinGroupRequest, client: Client) -> None:
        """Refuse a request that no group would take: what cannot be written down would break the group for
        all its members."""
        settings = self._settings
        if not request.group_id:
            raise InvalidGroupId("a group's id must not be empty")
        least_ms, most_ms = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            raise InvalidSessionTimeout(
                f"the session time-out must be between {least_ms} and {most_ms} ms, "
                f"not {request.session_timeout_ms}"
            )
        names = [protocol.name for protocol in request.protocols]
        own = client.client_id if request.group_instance_id is None else request.group_instance_id
        for text in (f"{own}-{_SOME_UUID}", request.member_id, request.protocol_type, *names):
            if not fits(text):
                raise InvalidRequest(f"an id or a name in a group has at most {MAX_TEXT_BYTES} bytes")

    def join(self, request: JoinGroupRequest, client: Client) -> Joined:
        """A member joins, for the first time or again; the answer comes with the next generation."""
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise UnknownMemberId
            group = ClassicGroup(request.group_id)
        # A static member that comes back takes the place that it has.
        known_id = request.member_id or group.instances.get(request.group_instance_id or "", "")
        if not self._has_room(group, known_id):
            return self._send_away(group, request.member_id)
        protocols = protocols_of(request)
        if not group.supports(request.protocol_type, (name for name, _ in protocols)):
            raise InconsistentGroupProtocol
        if request.member_id:
            return self._join_again(group, request, protocols, client)
        self._groups[request.group_id] = group
        return self._join_first(group, request, protocols, client)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether somebody else may come in. While members join again only those that have joined count,
        so that a group that has become too large loses the last ones to join."""
        limit = self._settings.max_size
        member = group.members.get(member_id)
        if group.is_empty:
            return True
        if group.state is State.PREPARING:
            return (member is not None and member.joining is not None) or group.joined_count < limit
        return member is not None or len(group.members) < limit

    def _send_away(self, group: ClassicGroup, member_id: str) -> Joined:
        group.pending.pop(member_id, None)
        member = group.members.get(member_id)
        if member is not None:
            self._rebalances.drop(group, member)
        refusal = JoinGroupResponse(
            error_code=GroupMaxSizeReached.code, leader="", member_id=member_id, members=[]
        )
        return Result(refusal, self._rebalances.complete_if_all_joined(group))

    # Those without a member id

    def _join_first(
        self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, client: Client
    ) -> Joined:
        instance_id = request.group_instance_id
        unique = UUID(int=self._random.getrandbits(128), version=4)
        member_id = f"{client.client_id if instance_id is None else instance_id}-{unique}"
        if instance_id is not None:
            former = group.members.get(group.instances.get(instance_id, ""))
            if former is not None:
                return self._take_over(group, former, member_id, request, protocols, client)
        elif client.version >= KNOWN_MEMBERS_SINCE:
            if len(group.pending) >= MAX_PENDING:
                self._forget_oldest(group)
            group.pending[member_id] = None
            self._rebalances.expect(group, member_id, request.session_timeout_ms)
            return Result(
                JoinGroupResponse(
                    error_code=MemberIdRequired.code, leader="", member_id=member_id, members=[]
                )
            )
        return self._add(group, member_id, request, protocols, client)

    def _forget_oldest(self, group: ClassicGroup) -> None:
        """Take an id back that nobody used; whoever comes with it is told that it is not known."""
        oldest = next(iter(group.pending))
        del group.pending[oldest]
        self._rebalances.forget_session(group, oldest)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        protocols: Protocols,
        client: Client,
    ) -> Joined:
        """Take a new member in."""
        member = Member(
            member_id,
            request.group_instance_id,
            client.client_id,
            client.host,
            rebalance_timeout_ms(request),
            request.session_timeout_ms,
            protocols,
        )
        member.is_new = True
        if group.state is State.PREPARING and group.began_empty:
            group.has_newcomers = True
        self._rebalances.forget_session(group, member_id)
        group.add(member, request.protocol_type)
        promise = group.wait_to_join(member)
        self._rebalances.heard(group, member, NEW_MEMBER_TIMEOUT_MS)
        return Result(promise, self._rebalances.begin_or_complete(group))

    def _take_over(
        self,
        group: ClassicGroup,
        member: Member,
        member_id: str,
        request: JoinGroupRequest,
        protocols: Protocols,
        client: Client,
    ) -> Joined:
        """A static member came back, under a new member id; its former self is fenced (KIP-345).

        In a stable group it goes on with its old assignment, without a rebalance, if the group's
        protocol stays the same. If it leads, it must not assign anew: it is told to skip that, or, in
        versions that cannot say so, that its former self leads.
        """
        former_leader = group.leader
        self._rebalances.forget_session(group, member.member_id)
        group.replace(member, member_id)
        member.client_id, member.client_host = client.client_id, client.host
        self._update(group, member, request, protocols)
        self._rebalances.heard(group, member, NEW_MEMBER_TIMEOUT_MS if member.is_new else None)
        if group.state is not State.STABLE or group.choose_protocol() != group.protocol_name:
            promise = group.wait_to_join(member)
            return Result(promise, self._rebalances.begin_or_complete(group))
        group.find_topics()
        self._rebalances.changed(group)
        response = group.join_response(member)
        if client.version >= SKIPPED_ASSIGNMENT_SINCE:
            response.skip_assignment = group.leader == member_id
        else:
            response.leader = former_leader or ""
            response.members = []
        return Result(response, [entry(GroupMetadataKey(group=group.group_id), group.value())])

    # Those with a member id

    def _join_again(
        self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, client: Client
    ) -> Joined:
        if request.member_id in group.pending:
            if request.group_instance_id is not None:
                raise InvalidRequest("a member id that was given to a dynamic member, used by a static one")
            return self._add(group, request.member_id, request, protocols, client)
        member = group.check_member(request.member_id, request.group_instance_id)
        if member.protocols == protocols:
            # It did not get its answer, or (not leading) just asks: it is told the generation as it is.
            is_leader = group.leader == member.member_id
            if group.state is State.COMPLETING or (group.state is State.STABLE and not is_leader):
                self._rebalances.heard(group, member)
                return Result(group.join_response(member))
        self._update(group, member, request, protocols)
        promise = group.wait_to_join(member)
        return Result(promise, self._rebalances.begin_or_complete(group))

    def _update(
        self, group: ClassicGroup, member: Member, request: JoinGroupRequest, protocols: Protocols
    ) -> None:
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        group.update(member, protocols)


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """What a member speaks. One that it names twice counts once: else it would never be what all speak."""
    named: dict[str, bytes] = {}
    for protocol in request.protocols:
        named.setdefault(protocol.name, protocol.metadata)
    return list(named.items())


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has none: the session's is taken."""
    given_ms = request.rebalance_timeout_ms
    return given_ms if given_ms >= 0 else request.session_timeout_ms
