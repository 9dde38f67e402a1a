"""Offsets that nobody needs any more, and groups that have nothing left.

An offset is kept while a member reads the topic, and for `offsets.retention.minutes` after its last commit
and after the group has become empty. A commit may bring an expiry of its own (old clients do), which then
rules alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millstream.clock import Clock
from millstream.coordinator.entry_format import entry
from millstream.coordinator.group_entries import GroupMetadataKey
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.offset_format import NO_EXPIRY, Committed, offset_tombstone
from millstream.coordinator.groups.offsets import Offsets
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.rounds import Rounds
from millstream.coordinator.shard import Entry, Result, Timers

STEP = 2000

TIMER = "expiry"


class Expiry:
    """Looks at all offsets of a shard, time and again, a few at a time."""

    def __init__(
        self,
        groups: Mapping[str, ClassicGroup | ConsumerGroup],
        find: Callable[[str], ClassicGroup | ConsumerGroup | None],
        offsets: Offsets,
        timers: Timers,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._groups = groups
        self._find = find
        self._offsets = offsets
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._rounds = Rounds(TIMER, timers, STEP)

    def begin(self) -> None:
        """Look after the next interval."""
        self._timers.set(TIMER, self._settings.retention_check_ms, self._start)

    def _start(self) -> Result[Any]:
        groups = [*self._groups, *(group for group in self._offsets if group not in self._groups)]
        return self._rounds.begin(groups, self._look, self.begin)

    def _look(self, group_id: str) -> tuple[list[Entry], int]:
        return self.expired(group_id), self._offsets.count(group_id)

    def expired(self, group_id: str) -> list[Entry]:
        """What removes the expired offsets of a group, and the group itself if nothing is left of it."""
        group = self._find(group_id)
        if group is None:
            return []
        gone = [
            offset_tombstone(group_id, partition)
            for partition, committed in self._kept_by_nobody(group)
            if self._is_over(group, committed)
        ]
        has_rest = len(gone) < self._offsets.count(group_id) or self._offsets.unstable(group_id)
        if has_rest or not group.is_empty:
            return gone
        if isinstance(group, ConsumerGroup):
            return [*gone, *group.tombstones()]
        if group.pending or group.written is None:
            return gone
        return [*gone, entry(GroupMetadataKey(group=group_id), None)]

    def _kept_by_nobody(self, group: ClassicGroup | ConsumerGroup) -> Iterator[tuple[Any, Committed]]:
        """The offsets that age: no member reads the topic, and no transaction is about to move them."""
        is_resting = group.is_empty or (group.is_consumer and group.state is State.STABLE)
        if isinstance(group, ClassicGroup) and not is_resting:
            return
        limit_ms = self._clock.now_ms() - self._settings.retention_ms
        if _kept_since_ms(group) > limit_ms:
            limit_ms = -1  # only those with an expiry of their own can be over
        for partition, committed in self._offsets.older(group.group_id, limit_ms):
            if not group.is_empty and group.reads(partition.topic):
                continue
            if not self._offsets.is_unstable(group.group_id, partition):
                yield partition, committed

    def _is_over(self, group: ClassicGroup | ConsumerGroup, committed: Committed) -> bool:
        now_ms = self._clock.now_ms()
        if committed.expire_timestamp_ms != NO_EXPIRY:
            return now_ms >= committed.expire_timestamp_ms
        since_ms = max(committed.commit_timestamp_ms, _kept_since_ms(group))
        return now_ms - since_ms >= self._settings.retention_ms


def _kept_since_ms(group: ClassicGroup | ConsumerGroup) -> int:
    """Since when a group's offsets age at the earliest: since it became empty; -1 if that is not known.

    Kafka differs, and loses places that somebody wants: of a consumer group it takes the last commit alone,
    so that one that had nothing to commit for a long time loses its place when its last member restarts; of
    an empty classic group it takes the group's time alone, so that what an admin has just committed goes.
    """
    if isinstance(group, ConsumerGroup):
        return group.empty_since_ms or -1
    return group.state_since_ms if group.is_empty and group.protocol_type is not None else -1
