"""ConsumerGroupHeartbeat: how members of the new protocol join, stay and leave (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import NamedTuple
from uuid import UUID

from millstream.coordinator.entry_format import MAX_TEXT_BYTES, fits, number_of
from millstream.coordinator.groups.assignor import ASSIGNORS
from millstream.coordinator.groups.classic_group import ClassicGroup
from millstream.coordinator.groups.consumer_entries import Matched, assignment_entry
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    ConsumerMember,
    Partitions,
)
from millstream.coordinator.groups.consumer_replay import replay_consumer_entry
from millstream.coordinator.groups.departures import Departures, replacement_entries
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.migration import upgrade
from millstream.coordinator.groups.progress import Progress, Said
from millstream.coordinator.groups.sessions import Sessions
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.topics import Topics
from millstream.coordinator.shard import Entry, Result
from millstream.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from millstream.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

OWN_MEMBER_ID_SINCE = 1
"""From this version on members choose their ids (KIP-1082)."""


class _Found(NamedTuple):
    """A member that a request is from; `replaces` is the member whose place it takes."""

    member: ConsumerMember
    replaces: str | None = None
    entries: tuple[Entry, ...] = ()


class Heartbeats:
    """Serves members of the new protocol. KafkaError where one is refused."""

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        classic_groups: dict[str, ClassicGroup],
        progress: Progress,
        departures: Departures,
        sessions: Sessions,
        topics: Topics,
        settings: Settings,
        random: Random,
    ) -> None:
        self._groups = groups
        self._classic_groups = classic_groups
        self._progress = progress
        self._departures = departures
        self._sessions = sessions
        self._topics = topics
        self._settings = settings
        self._random = random

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, matched: Matched | None = None
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """A member joins, stays or leaves. `matched` are the topics of the regular expression it brings."""
        self._check(request, client.version)
        if request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return self._leave(request)
        return self._stay(request, client, matched)

    # Staying

    def _stay(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, matched: Matched | None
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        group_id, is_joining = request.group_id, request.member_epoch == JOINING
        group, entries = self._group(group_id, is_joining)
        member_id = request.member_id or str(UUID(int=self._random.getrandbits(128), version=4))
        limit = self._settings.consumer_max_size
        is_known = member_id in group.members or request.instance_id in group.instances
        if len(group.members) >= limit and not is_known:
            raise GroupMaxSizeReached(f"the group has {limit} members, which is as many as it may have")
        owned = _owned(request.topic_partitions)
        if request.instance_id is None:
            found = _dynamic_member(group, member_id, is_joining)
        else:
            found = _static_member(group, member_id, request.instance_id, is_joining)
        before = found.member
        _check_epoch(before, request.member_epoch, owned)
        after = _described(before, request, client)
        said = Said(before, after, owned, matched, found.replaces)
        moved, more = self._progress.advance(group, said)
        self._sessions.heard(group_id, moved)
        if moved is not after:
            self._sessions.expect_revocation(group_id, moved)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms(
                self._topics.config_of(group_id)
            ),
        )
        is_complete = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        if is_joining or is_complete or moved.assigned_partitions != before.assigned_partitions:
            response.assignment = _assignment(moved.assigned_partitions)
        return Result(response, [*entries, *found.entries, *more])

    def _group(self, group_id: str, is_joining: bool) -> tuple[ConsumerGroup, list[Entry]]:
        """The group, as it will be once the entries are written: a new one, or one that was classic."""
        group = self._groups.get(group_id)
        if group is not None:
            return group, []
        if not is_joining:
            raise GroupIdNotFound(f"there is no consumer group {group_id}")
        classic = self._classic_groups.get(group_id)
        if classic is None:
            return ConsumerGroup(group_id), []
        entries = upgrade(classic, self._topics, self._settings)
        made: dict[str, ConsumerGroup] = {}
        for entry in entries:
            replay_consumer_entry(made, number_of(entry.key), entry)
        group = made.get(group_id) or ConsumerGroup(group_id)
        for member in group.members.values():
            self._sessions.heard(group_id, member)
        return group, entries

    # Leaving

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> Result[ConsumerGroupHeartbeatResponse]:
        group = self._groups.get(request.group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no consumer group {request.group_id}")
        member = group.check_member(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
        )
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            # Its session goes on: whoever comes with its instance id within it gets what it has.
            away = replace(member, epoch=LEAVING_FOR_A_WHILE, revoking={})
            return Result(response, [assignment_entry(group.group_id, away)])
        return Result(response, self._departures.remove(group, [member]))

    # What a request must be

    def _check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        if not self._settings.serves_consumer_protocol:
            raise UnsupportedVersion("the consumer protocol is switched off")
        epoch = request.member_epoch
        if not request.group_id:
            raise InvalidRequest("the group id must not be empty")
        if not request.member_id and (version >= OWN_MEMBER_ID_SINCE or epoch != JOINING):
            raise InvalidRequest("the member id must not be empty")
        if not fits(request.member_id):
            raise InvalidRequest(f"a member id has at most {MAX_TEXT_BYTES} bytes")
        if request.instance_id == "" or request.rack_id == "":
            raise InvalidRequest("an instance id and a rack id must not be empty")
        if epoch < LEAVING_FOR_A_WHILE:
            raise InvalidRequest(f"there is no member epoch {epoch}")
        if epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
            raise InvalidRequest("only a member with an instance id leaves for a while")
        if epoch == JOINING:
            if request.rebalance_timeout_ms == -1:
                raise InvalidRequest("a member that joins must tell its rebalance time-out")
            if request.topic_partitions is None or request.topic_partitions:
                raise InvalidRequest("a member that joins must say that it owns no partitions")
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                raise InvalidRequest("a member that joins must subscribe, by topic names or by a regex")
        assignor = request.server_assignor
        if assignor is not None and (
            assignor not in self._settings.consumer_assignors or assignor not in ASSIGNORS
        ):
            raise UnsupportedAssignor(
                f"there is no assignor {assignor}: {', '.join(self._settings.consumer_assignors)} are there"
            )


def _dynamic_member(group: ConsumerGroup, member_id: str, is_joining: bool) -> _Found:
    member = group.members.get(member_id)
    if member is None and is_joining:
        return _Found(ConsumerMember(member_id))
    return _Found(group.member(member_id))


def _static_member(group: ConsumerGroup, member_id: str, instance_id: str, is_joining: bool) -> _Found:
    """A static member, a new one, or one that comes back under another member id (KIP-345)."""
    if not is_joining:
        return _Found(group.check_member(member_id, instance_id))
    former = group.static_member(instance_id)
    if former is None:
        return _dynamic_member(group, member_id, is_joining)
    if former.member_id == member_id:
        return _Found(former)
    if not former.is_classic and former.epoch != LEAVING_FOR_A_WHILE:
        raise UnreleasedInstanceId(
            f"the instance id {instance_id} is that of the member {former.member_id}, which has not left"
        )
    member = replace(former, member_id=member_id, epoch=0, previous_epoch=0)
    return _Found(member, former.member_id, tuple(replacement_entries(group, former, member)))


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """A member must be in the epoch that it was told, or in the one before if it may not have heard of it."""
    if epoch in (JOINING, member.epoch):
        return
    if epoch == member.previous_epoch and epoch < member.epoch and _owns_only(owned, member):
        return
    raise FencedMemberEpoch(
        f"the member is in epoch {member.epoch}, not in {epoch}: "
        "it has to give up its partitions and join again"
    )


def _owns_only(owned: Partitions | None, member: ConsumerMember) -> bool:
    return owned is not None and all(
        number in member.assigned.get(topic_id, ())
        for topic_id, numbers in owned.items()
        for number in numbers
    )


def _described(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    """The member with what it says of itself; the same one if that is nothing new."""
    described = replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics
        if request.subscribed_topic_names is None
        else frozenset(request.subscribed_topic_names),
        regex=member.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        client_id=client.client_id,
        client_host=client.host,
        classic=None,
    )
    return member if described == member else described


def _owned(
    topics: Iterable[ConsumerGroupHeartbeatRequest.TopicPartitions] | None,
) -> Partitions | None:
    if topics is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return owned


def _assignment(partitions: Partitions) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
        ]
    )
