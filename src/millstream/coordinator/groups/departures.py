"""How members go out of a consumer group: they leave, are missed, or are replaced."""

from __future__ import annotations

from collections import Counter

from millstream.clock import Clock
from millstream.coordinator.groups.consumer_entries import (
    assignment_entry,
    group_entry,
    member_entry,
    member_tombstones,
    regex_tombstone,
    target_entry,
)
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember
from millstream.coordinator.groups.migration import can_downgrade, downgrade
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.topics import Topics, metadata_hash
from millstream.coordinator.shard import Entry


class Departures:
    """What has to be written when members go."""

    def __init__(self, topics: Topics, settings: Settings, clock: Clock) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerMember]) -> list[Entry]:
        """Take members out: the group has a new epoch, or is a classic group if only such remain."""
        if not leaving:
            return []
        gone = {member.member_id for member in leaving}
        remaining = [member for member in group.members.values() if member.member_id not in gone]
        if can_downgrade(remaining, self._settings):
            return downgrade(group, remaining, self._topics, self._clock.now_ms())
        entries: list[Entry] = []
        for member in leaving:
            entries += member_tombstones(group.group_id, member.member_id)
        regexes = dict(group.regexes)
        for regex, count in Counter(member.regex for member in leaving if member.regex).items():
            if group.regex_users(regex) == count:
                regexes.pop(regex, None)
                entries.append(regex_tombstone(group.group_id, regex))
        names = group.subscribed(remaining, regexes)
        entries.append(group_entry(group.group_id, group.epoch + 1, metadata_hash(names, self._topics)))
        return entries


def replacement_entries(group: ConsumerGroup, former: ConsumerMember, member: ConsumerMember) -> list[Entry]:
    """What lets a member take the place of a static one, with all that this has (KIP-345)."""
    group_id = group.group_id
    return [
        *member_tombstones(group_id, former.member_id),
        member_entry(group_id, member),
        target_entry(group_id, member.member_id, group.target_of(former)),
        assignment_entry(group_id, member),
    ]
