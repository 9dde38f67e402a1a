"""The consumer groups of one shard, and all that is done with them (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from millstream.clock import Clock
from millstream.coordinator.groups.classic_group import ClassicGroup
from millstream.coordinator.groups.classic_members import ClassicMembers
from millstream.coordinator.groups.consumer_entries import Matched
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_replay import replay_consumer_entry
from millstream.coordinator.groups.departures import Departures
from millstream.coordinator.groups.heartbeats import Heartbeats
from millstream.coordinator.groups.progress import Progress
from millstream.coordinator.groups.sessions import Sessions
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.topics import Topics
from millstream.coordinator.shard import Entry, Timers


class ConsumerProtocol:
    """Holds `groups`, which only replaying changes, and serves their members."""

    def __init__(
        self,
        classic_groups: dict[str, ClassicGroup],
        topics: Topics,
        settings: Settings,
        clock: Clock,
        random: Random,
        timers: Timers,
    ) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.topics = topics
        self._settings = settings
        self._progress = Progress(topics, settings, clock)
        departures = Departures(topics, settings, clock)
        self._sessions = Sessions(self.groups, timers, settings, topics, departures.remove)
        parts = (self._progress, departures, self._sessions, topics, settings)
        self.members = Heartbeats(self.groups, classic_groups, *parts, random)
        self.classic_members = ClassicMembers(*parts, clock, random)

    def replay(self, number: int, entry: Entry) -> str | None:
        """Take over an entry about a consumer group; the group it is about."""
        return replay_consumer_entry(self.groups, number, entry)

    def loaded(self, group: ConsumerGroup) -> list[Entry]:
        """A group came back from the log: wait for its members, see whether topics changed meanwhile."""
        self._sessions.loaded(group)
        return self._progress.refreshed(group)

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The assignor that the group's next assignment is made by."""
        return group.preferred_assignor(group.members.values()) or self._settings.consumer_assignors[0]

    # What happens to topics

    @property
    def regexes(self) -> set[str]:
        """All regular expressions that members are subscribed by."""
        return {
            member.regex
            for group in self.groups.values()
            for member in group.members.values()
            if member.regex
        }

    def refreshed(self, group_id: str) -> tuple[list[Entry], int]:
        """Topics came, went or grew: a group that reads them is assigned anew. Also how many it reads."""
        group = self.groups.get(group_id)
        return ([], 0) if group is None else (self._progress.refreshed(group), len(group.topics))

    def matched(self, group_id: str, found: Mapping[str, Matched]) -> tuple[list[Entry], int]:
        """Regular expressions match these topics now: a group that is subscribed by them is assigned anew.

        Also how many topics it reads.
        """
        group = self.groups.get(group_id)
        if group is None or not any(member.regex in found for member in group.members.values()):
            return [], 0
        return self._progress.matched(group, found), len(group.topics)
