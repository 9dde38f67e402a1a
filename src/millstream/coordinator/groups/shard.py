"""The groups of one partition of `__consumer_offsets`: members, generations, committed offsets."""

from __future__ import annotations

import logging
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from millstream.clock import Clock
from millstream.coordinator.entry_format import entry, number_of, read_value
from millstream.coordinator.group_entries import GroupMetadataKey, GroupMetadataValue
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.commits import Commits
from millstream.coordinator.groups.consumer_entries import Matched
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_protocol import ConsumerProtocol
from millstream.coordinator.groups.deleted_topics import DeletedTopics
from millstream.coordinator.groups.expiry import Expiry
from millstream.coordinator.groups.joining import Joined, Joins
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.membership import Membership
from millstream.coordinator.groups.offset_format import (
    OFFSET_HEADS,
    check_value,
    split_kept,
    split_key,
)
from millstream.coordinator.groups.offsets import Offsets
from millstream.coordinator.groups.rebalance import Rebalances
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.topics import NoTopics, Topics
from millstream.coordinator.rounds import Rounds
from millstream.coordinator.shard import Entry, Producer, Result, Timers
from millstream.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    NonEmptyGroup,
    ProtocolError,
    RebalanceInProgress,
)
from millstream.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)

GROUP_TYPE = GroupMetadataKey.types[-1]

MAX_RECENT = 10_000
"""How many of the last offsets in the log count as changed when it has been loaded: whoever coordinated
them before may not have come to show them."""


BEGIN_STEP = 200
"""How many members and groups that came back from the log are looked after before others get their turn."""

REFRESH_STEP = 500
"""How many groups, and topics that they read, are looked at before others get their turn."""


class Watcher:
    """Is told what changes, so that it can be shown elsewhere. This one does not care."""

    def group_changed(self, group_id: str) -> None:
        """Members or assignments of a group are others, or the group is gone."""

    def offset_changed(self, group: bytes, place: bytes) -> None:
        """A group has another position in a partition, or none any more; see `offset_format`."""


class GroupShard:
    """A state machine without I/O: see `coordinator.shard`.

    A group of the classic protocol is in `groups` if it has, had or awaits members, one of the consumer
    protocol in `consumer.groups`; one that only ever committed offsets is found through its offsets.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        random: Random,
        timers: Timers,
        watcher: Watcher | None = None,
        topics: Topics | None = None,
    ) -> None:
        topics = topics or NoTopics()
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets()
        self._is_live = False
        self._recent: deque[tuple[bytes, bytes]] = deque(maxlen=MAX_RECENT)
        self._timers = timers
        self._clock = clock
        self._watcher = watcher or Watcher()
        self._rebalances = Rebalances(self.groups, timers, clock, settings, self._watcher.group_changed)
        self.joins = Joins(self.groups, self._rebalances, random, settings)
        self.members = Membership(self.groups, self._rebalances)
        self.consumer = ConsumerProtocol(self.groups, topics, settings, clock, random, timers)
        self.commits = Commits(self.known, self.find, self.offsets, self._rebalances, clock, settings, topics)
        every_group = ChainMap[str, ClassicGroup | ConsumerGroup](
            self.consumer.groups,  # type: ignore[arg-type]
            self.groups,  # type: ignore[arg-type]
        )
        self._deleted_topics = DeletedTopics(self.offsets, timers)
        self._beginnings = Rounds("loaded", timers, BEGIN_STEP)
        self._refreshes = Rounds("topics", timers, REFRESH_STEP)
        self._matches = Rounds("regexes", timers, REFRESH_STEP)
        self._expiry = Expiry(every_group, self.find, self.offsets, timers, clock, settings)

    # Looking

    def known(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """A group that has, had or awaits members."""
        return self.consumer.groups.get(group_id) or self.groups.get(group_id)

    def find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """A group, also one that has nothing but offsets."""
        group = self.known(group_id)
        if group is None and group_id in self.offsets:
            group = ClassicGroup(group_id)
        return group

    def __iter__(self) -> Iterator[ClassicGroup | ConsumerGroup]:
        """All groups."""
        return iter(self.snapshot())

    def snapshot(self) -> list[ClassicGroup | ConsumerGroup]:
        """All groups; may be called from any thread."""
        found: dict[str, ClassicGroup | ConsumerGroup] = dict(list(self.groups.items()))
        found.update(list(self.consumer.groups.items()))
        simple = (group_id for group_id in self.offsets.groups() if group_id not in found)
        return [*found.values(), *map(ClassicGroup, simple)]

    # Members of the classic protocol, whichever group they are in

    def join(self, request: JoinGroupRequest, client: Client) -> Joined:
        self.joins.check(request, client)
        group = self.consumer.groups.get(request.group_id)
        if group is None:
            return self.joins.join(request, client)
        if not group.is_empty:
            return self.consumer.classic_members.join(group, request, client)
        joined = self.joins.join(request, client)
        return Result(joined.response, [*group.tombstones(), *joined.entries])

    def sync(self, request: SyncGroupRequest) -> Result[SyncGroupResponse]:
        group = self.consumer.groups.get(request.group_id)
        if group is None:
            return self.members.sync(request)
        return self.consumer.classic_members.sync(group, request)

    def heartbeat(self, request: HeartbeatRequest) -> Result[HeartbeatResponse]:
        group = self.consumer.groups.get(request.group_id)
        if group is None:
            return self.members.heartbeat(request)
        return self.consumer.classic_members.heartbeat(group, request)

    def leave(self, request: LeaveGroupRequest, version: int) -> Result[LeaveGroupResponse]:
        group = self.consumer.groups.get(request.group_id)
        if group is None:
            return self.members.leave(request, version)
        return self.consumer.classic_members.leave(group, request, version)

    # What happens to topics

    def topics_changed(self) -> Result[Any]:
        """Topics came, went or grew: consumer groups that read them will, step by step, be assigned anew."""
        return self._refreshes.begin(self.consumer.groups, self.consumer.refreshed, lambda: None)

    def regexes_matched(self, found: Mapping[str, Matched]) -> Result[Any]:
        """Regular expressions were matched with the topics that there are now: groups that are subscribed
        by them will, step by step, be assigned anew."""
        return self._matches.begin(
            self.consumer.groups, lambda group_id: self.consumer.matched(group_id, found), lambda: None
        )

    # Removing

    def delete_group(self, group_id: str) -> Result[None]:
        """Remove a group that has no members, with all its offsets."""
        group = self.find(group_id)
        if group is None:
            raise GroupIdNotFound
        if not group.is_empty:
            raise NonEmptyGroup
        entries = self.commits.delete_all(group_id)
        if isinstance(group, ConsumerGroup):
            entries += group.tombstones()
        elif group.written is not None:
            entries.append(entry(GroupMetadataKey(group=group_id), None))
        else:
            self.groups.pop(group_id, None)
        return Result(None, entries, is_atomic=False)

    def delete_topic(self, topic: str) -> Result[Any]:
        """A topic is gone: so will be, step by step, every position that groups have in it now."""
        return self._deleted_topics.remove(topic)

    # Replaying

    def replay(self, entry: Entry, producer: Producer | None, offset: int) -> None:
        try:
            self._replay(entry, producer, offset)
        except (ProtocolError, UnicodeDecodeError) as error:
            log.warning("the entry at offset %d of a group's log is passed over: %s", offset, error)

    def _replay(self, entry: Entry, producer: Producer | None, offset: int) -> None:
        key, value = entry.key, entry.value
        if key[:2] in OFFSET_HEADS:
            group, place = split_kept(key) if self._is_live else split_key(key)
            if value is not None and self._is_live and self._deleted_topics.later:
                self._deleted_topics.committed(group, place)
            if value is None:
                self.offsets.remove(group, place)
            elif producer is not None:
                check_value(value)
                self.offsets.put_pending(producer.producer_id, group, place, value, offset)
                return
            else:
                check_value(value)
                self.offsets.put(group, place, value)
            if self._is_live:
                self._watcher.offset_changed(group, place)
            else:
                self._recent.append((group, place))
            return
        number = number_of(key)
        if number == GROUP_TYPE:
            self._replay_group(GroupMetadataKey.decode(key, 0, 2).group, value)
        else:
            changed = self.consumer.replay(number, entry)
            if changed is not None:
                if value is not None and changed in self.consumer.groups:
                    self._forget(changed)
                if self._is_live:
                    self._note_emptiness(changed)
                    self._watcher.group_changed(changed)

    def _note_emptiness(self, group_id: str) -> None:
        """Remember since when a consumer group has been empty, as far as this coordinator has seen it."""
        group = self.consumer.groups.get(group_id)
        if group is not None and group.is_empty != (group.empty_since_ms is not None):
            group.empty_since_ms = self._clock.now_ms() if group.is_empty else None

    def _forget(self, group_id: str) -> None:
        """A classic group is gone, or is a consumer group by now: whoever waits in it joins again.

        To a join that is as if the group were being loaded: of all errors that one lets every client ask
        again under the member id that it has.
        """
        group = self.groups.pop(group_id, None)
        if group is not None:
            for member in group.members.values():
                group.refuse(member, RebalanceInProgress.code, CoordinatorLoadInProgress.code)

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self._forget(group_id)
            self._watcher.group_changed(group_id)
            return
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id)
            if self._is_live:
                # It was a consumer group until now (see `migration`): its members have to share anew.
                group.written = value
                group.load()
                if group.members:
                    self._rebalances.loaded(group)
                    self._rebalances.begin(group)
        group.written = value
        if self._is_live and group.state is State.COMPLETING:
            written = read_value(GroupMetadataValue, value)
            if written.generation == group.generation:
                self._rebalances.assigned(group, written)

    def replay_end(self, producer: Producer, is_commit: bool) -> None:
        for group, place in self.offsets.end(producer.producer_id, is_commit):
            if self._is_live:
                self._watcher.offset_changed(group, place)

    # Beginning and ending

    def prepare(self) -> Iterator[None]:
        for group_id, classic in list(self.groups.items()):
            try:
                classic.load()
            except ProtocolError as error:
                log.warning("the classic group %s is passed over: %s", group_id, error)
                del self.groups[group_id]
            self._watcher.group_changed(group_id)
            yield
        for group_id, group in self.consumer.groups.items():
            group.loaded()
            self._note_emptiness(group_id)
            self._watcher.group_changed(group_id)
            yield
        for owner, place in self._recent:
            self._watcher.offset_changed(owner, place)
            yield

    def loaded(self) -> None:
        self._recent.clear()
        if self.consumer.regexes:
            self.consumer.topics.match_again()
        self._is_live = True
        self._beginnings.begin([*self.groups, *self.consumer.groups], self._begin, lambda: None)
        self._expiry.begin()

    def _begin(self, group_id: str) -> tuple[list[Entry], int]:
        """A group came back from the log: wait for its members."""
        group = self.known(group_id)
        if isinstance(group, ConsumerGroup):
            return self.consumer.loaded(group), len(group.members)
        return ([], 0) if group is None else (self._rebalances.loaded(group), len(group.members))

    def unloaded(self, error: Exception) -> None:
        self._is_live = False
        for group in self.groups.values():
            for member in group.members.values():
                for promise in (member.joining, member.syncing):
                    if promise is not None:
                        promise.break_(error)
        for group_id in (*self.groups, *self.consumer.groups):
            self._watcher.group_changed(group_id)


Make = Callable[[int, Timers], GroupShard]
