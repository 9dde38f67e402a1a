"""How groups of the classic protocol come to a new generation, and how silent members are missed.

Functions answer the entries that have to be written; they change only what need not survive. Three kinds
of timers are at work: a member's session, the end of the joining phase, and the end of the syncing phase.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from typing import Any

from millstream.clock import Clock
from millstream.coordinator.entry_format import entry
from millstream.coordinator.group_entries import GroupMetadataKey, GroupMetadataValue
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.member import Member
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.shard import Entry, Result, Timers
from millstream.errors import RebalanceInProgress

log = logging.getLogger(__name__)

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that waits for its first answer is kept: it cannot send heartbeats, and if its
connection broke it joins again as somebody else."""

PUT_OFF_MS = 1000
"""How long a rebalance that nobody has joined is put off at least: members may ask for no time at all."""

Entries = list[Entry]


class Rebalances:
    """Moves groups from generation to generation."""

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        timers: Timers,
        clock: Clock,
        settings: Settings,
        on_change: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._on_change = on_change
        """Told the group whenever its members or their assignment changed."""

    # From one generation to the next

    def begin_or_complete(self, group: ClassicGroup) -> Entries:
        """Somebody joined, or changed: begin a rebalance, or end the first phase of the one under way."""
        if group.state is State.PREPARING:
            return self.complete_if_all_joined(group)
        return self.begin(group)

    def begin(self, group: ClassicGroup) -> Entries:
        """Begin a rebalance. A group that was empty waits a while for more members first."""
        if group.state is State.COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                if group.answer_sync(member, RebalanceInProgress.code):
                    self.heard(group, member)
        self._timers.cancel(_sync_key(group))
        group.began_empty = group.is_empty
        group.become(State.PREPARING, self._clock.now_ms())
        log.debug("group %s begins a rebalance after generation %d", group.group_id, group.generation)
        if not group.began_empty:
            if group.have_all_joined:
                return self.complete(group)
            self._expect_joins(group)
            return []
        delay_ms = self._settings.initial_rebalance_delay_ms
        self._delay(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        return []

    def complete_if_all_joined(self, group: ClassicGroup) -> Entries:
        if group.state is State.PREPARING and not group.began_empty and group.have_all_joined:
            return self.complete(group)
        return []

    def complete(self, group: ClassicGroup) -> Entries:
        """End the first phase: whoever has not joined is out, the others are in the new generation.

        Static members that have not joined stay until their session ends (KIP-345).
        """
        self._timers.cancel(_join_key(group))
        for member in list(group.members.values()):
            if member.joining is None and not member.is_static:
                self.drop(group, member)
        if group.members and not group.elect_joined_leader():
            self._expect_joins(group, PUT_OFF_MS)
            return []
        group.next_generation(self._clock.now_ms())
        self._on_change(group.group_id)
        if not group.members:
            return [entry(GroupMetadataKey(group=group.group_id), group.value())]
        for member in group.members.values():
            group.unsynced.add(member.member_id)
            member.is_new = False
            if group.answer_join(member, group.join_response(member)):
                self.heard(group, member)
        self._timers.set(
            _sync_key(group), group.rebalance_timeout_ms, self._work(group, self._syncing_is_over)
        )
        return []

    def drop(self, group: ClassicGroup, member: Member) -> None:
        """Take a member out and forget its session; what follows is the caller's."""
        group.remove(member.member_id)
        self._timers.cancel(_session_key(group, member.member_id))
        self._on_change(group.group_id)

    def changed(self, group: ClassicGroup) -> None:
        """Tell whoever shows groups to the world."""
        self._on_change(group.group_id)

    def after_removal(self, group: ClassicGroup) -> Entries:
        """Members may have left: the rest share anew, or the last one to wait for is gone."""
        if group.state in (State.STABLE, State.COMPLETING):
            return self.begin(group) if group.has_lost_members else []
        return self.complete_if_all_joined(group)

    # Timers of a rebalance

    def _delay(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        """Wait for more members of a new group; newcomers prolong it, up to the rebalance time-out."""

        def over(group: ClassicGroup) -> Entries:
            if group.state is not State.PREPARING:
                return []
            if group.has_newcomers and remaining_ms:
                group.has_newcomers = False
                initial_ms = self._settings.initial_rebalance_delay_ms
                self._delay(group, min(initial_ms, remaining_ms), max(remaining_ms - delay_ms, 0))
                return []
            return self.complete(group)

        self._timers.set(_join_key(group), delay_ms, self._work(group, over))

    def _expect_joins(self, group: ClassicGroup, least_ms: int = 0) -> None:
        def over(group: ClassicGroup) -> Entries:
            return self.complete(group) if group.state is State.PREPARING else []

        timeout_ms = max(group.rebalance_timeout_ms, least_ms)
        self._timers.set(_join_key(group), timeout_ms, self._work(group, over))

    def _syncing_is_over(self, group: ClassicGroup) -> Entries:
        """Members that never asked for their assignment are out (KAFKA-9752)."""
        if group.state not in (State.STABLE, State.COMPLETING) or not group.unsynced:
            return []
        for member_id in list(group.unsynced):
            member = group.members.get(member_id)
            if member is not None:
                log.info("group %s drops %s, which did not sync in time", group.group_id, member_id)
                self.drop(group, member)
        group.unsynced.clear()
        return self.begin(group)

    def assigned(self, group: ClassicGroup, written: GroupMetadataValue) -> None:
        """The log holds what the leader assigned: whoever waits for it gets it, and the group is stable."""
        leader = group.members.get(group.leader or "")
        for member in group.took(written, self._clock.now_ms()):
            self.heard(group, member)
        if leader is not None:
            self.synced(group, leader)
            self.heard(group, leader)
        self._on_change(group.group_id)

    def synced(self, group: ClassicGroup, member: Member) -> None:
        """A member asked for its assignment."""
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self._timers.cancel(_sync_key(group))

    # Sessions

    def heard(self, group: ClassicGroup, member: Member, timeout_ms: int | None = None) -> None:
        """A member gave a sign of life. The timer is not moved each time: it looks again when it rings."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline = self._clock.monotonic() + timeout_ms / 1000
        if member.watched_until is None or member.watched_until > member.deadline:
            self._watch(group, member)

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """Wait for a member id that was given out to be used."""

        def over(group: ClassicGroup) -> Entries:
            if member_id not in group.pending:
                return []
            group.pending.pop(member_id, None)
            self.forget_if_void(group)
            return self.complete_if_all_joined(group)

        self._timers.set(_session_key(group, member_id), timeout_ms, self._work(group, over))

    def _watch(self, group: ClassicGroup, member: Member) -> None:
        member.watched_until = member.deadline
        delay_ms = ceil((member.deadline - self._clock.monotonic()) * 1000)
        member_id = member.member_id

        def over(group: ClassicGroup) -> Entries:
            member = group.members.get(member_id)
            return [] if member is None else self._session_is_over(group, member)

        self._timers.set(_session_key(group, member_id), max(delay_ms, 0), self._work(group, over))

    def _session_is_over(self, group: ClassicGroup, member: Member) -> Entries:
        member.watched_until = None
        if member.is_waiting and not member.is_new:
            return []  # it is watched again when it has been answered
        if self._clock.monotonic() < member.deadline:
            self._watch(group, member)
            return []
        log.info("group %s drops %s, which was silent for too long", group.group_id, member.member_id)
        self.drop(group, member)
        return self.after_removal(group)

    def forget_session(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(_session_key(group, member_id))

    def forget_if_void(self, group: ClassicGroup) -> None:
        """Keep nothing of a group that nobody joined in the end."""
        if group.is_empty and not group.pending and group.written is None:
            self._groups.pop(group.group_id, None)

    def loaded(self, group: ClassicGroup) -> Entries:
        """A group came back from the log: its members have a whole session's time to be heard of.

        One that is larger than groups may be by now begins anew, and the last to join are left out.
        """
        for member in group.members.values():
            if member.watched_until is None and not member.is_waiting:
                self.heard(group, member)
        if len(group.members) > self._settings.max_size and group.state is State.STABLE:
            return self.begin(group)
        return []

    def _work(
        self, group: ClassicGroup, then: Callable[[ClassicGroup], Entries]
    ) -> Callable[[], Result[Any]]:
        """Work for a timer; it finds the group again, because a timer may outlive it."""
        group_id = group.group_id

        def work() -> Result[Any]:
            found = self._groups.get(group_id)
            return Result(None, then(found) if found is not None else ())

        return work


def _join_key(group: ClassicGroup) -> object:
    return "join", group.group_id


def _sync_key(group: ClassicGroup) -> object:
    return "sync", group.group_id


def _session_key(group: ClassicGroup, member_id: str) -> object:
    return "session", group.group_id, member_id
