"""How members of consumer groups are missed: a session, and time-outs while a rebalance waits for them.

A timer that outlives its member, or the state it was set for, does nothing; so none has to be cancelled
when a member goes or moves on, and none is missing when the log refused to let it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember, MemberState
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.topics import Topics
from millstream.coordinator.shard import Entry, Result, Timers

log = logging.getLogger(__name__)

Remove = Callable[[ConsumerGroup, list[ConsumerMember]], list[Entry]]


class Sessions:
    """The timers of members."""

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        timers: Timers,
        settings: Settings,
        topics: Topics,
        remove: Remove,
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._settings = settings
        self._topics = topics
        self._remove = remove
        self._joins: set[tuple[str, str]] = set()
        """The classic members that were told to join again."""

    def heard(self, group_id: str, member: ConsumerMember) -> None:
        """A member gave a sign of life."""
        timeout_ms = (
            self._settings.consumer_session_timeout_ms(self._topics.config_of(group_id))
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self._set("session", group_id, member, timeout_ms, "was silent for too long")

    def expect_revocation(self, group_id: str, member: ConsumerMember) -> None:
        """A member that has to give partitions up has its rebalance time-out to do so."""
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            return
        epoch = member.epoch

        def is_late(current: ConsumerMember) -> bool:
            return current.epoch == epoch and current.state is MemberState.UNREVOKED_PARTITIONS

        self._set(
            "revocation",
            group_id,
            member,
            member.rebalance_timeout_ms,
            "did not give up its partitions in time",
            is_late,
        )

    def expect_join(self, group_id: str, member: ConsumerMember) -> None:
        """A classic member was told to join again. Telling it twice gives it no more time."""
        key = (group_id, member.member_id)
        if key in self._joins:
            return
        self._joins.add(key)

        def is_late(_: ConsumerMember) -> bool:
            return key in self._joins

        timeout_ms = member.rebalance_timeout_ms
        self._set("join", group_id, member, timeout_ms, "did not join again in time", is_late)

    def expect_sync(self, group_id: str, member: ConsumerMember) -> None:
        """A classic member joined, and has to ask for its assignment."""
        self._joins.discard((group_id, member.member_id))
        self._timers.cancel(_key("join", group_id, member.member_id))

        def is_late(current: ConsumerMember) -> bool:
            return current == member

        timeout_ms = member.rebalance_timeout_ms
        self._set("sync", group_id, member, timeout_ms, "did not sync in time", is_late)

    def synced(self, group_id: str, member: ConsumerMember) -> None:
        self._timers.cancel(_key("sync", group_id, member.member_id))

    def loaded(self, group: ConsumerGroup) -> None:
        """A group came back from the log: its members have a whole session's time to be heard of."""
        for member in group.members.values():
            self.heard(group.group_id, member)
            if not member.is_classic and member.state is MemberState.UNREVOKED_PARTITIONS:
                self.expect_revocation(group.group_id, member)

    def _set(
        self,
        kind: str,
        group_id: str,
        member: ConsumerMember,
        timeout_ms: int,
        reason: str,
        is_late: Callable[[ConsumerMember], bool] | None = None,
    ) -> None:
        member_id = member.member_id

        def over() -> Result[Any]:
            group = self._groups.get(group_id)
            current = None if group is None else group.members.get(member_id)
            if group is None or current is None or (is_late is not None and not is_late(current)):
                self._joins.discard((group_id, member_id))
                return Result(None)
            log.info("group %s drops %s, which %s", group_id, member_id, reason)
            return Result(None, self._remove(group, [current]))

        self._timers.set(_key(kind, group_id, member_id), max(timeout_ms, 0), over)


def _key(kind: str, group_id: str, member_id: str) -> object:
    return "consumer", kind, group_id, member_id
