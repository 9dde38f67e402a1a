"""The entries of consumer groups, made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.coordinator.entry_format import entry
from millstream.coordinator.group_entries import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millstream.coordinator.groups.consumer_member import ConsumerMember, Partitions
from millstream.coordinator.shard import Entry


class Matched(NamedTuple):
    """The topics that a regular expression matches, and when that was found."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def group_entry(group_id: str, epoch: int, metadata_hash: int) -> Entry:
    """A group has a new epoch."""
    return entry(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def member_entry(group_id: str, member: ConsumerMember) -> Entry:
    """What a member says of itself."""
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return entry(key, member.metadata_value())


def assignment_entry(group_id: str, member: ConsumerMember) -> Entry:
    """What a member has now."""
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return entry(key, member.assignment_value())


def target_entry(group_id: str, member_id: str, partitions: Partitions) -> Entry:
    """What a member is to have."""
    return entry(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                ConsumerGroupTargetAssignmentMemberValue.TopicPartition(
                    topic_id=topic_id, partitions=sorted(numbers)
                )
                for topic_id, numbers in partitions.items()
            ]
        ),
    )


def target_epoch_entry(group_id: str, epoch: int, now_ms: int) -> Entry:
    """The assignment of all members is that of an epoch. It stands after the members' own entries."""
    return entry(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms),
    )


def regex_entry(group_id: str, regex: str, matched: Matched) -> Entry:
    return entry(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        ConsumerGroupRegularExpressionValue(
            topics=sorted(matched.topics), version=matched.version, timestamp=matched.timestamp_ms
        ),
    )


def regex_tombstone(group_id: str, regex: str) -> Entry:
    return entry(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def member_tombstones(group_id: str, member_id: str) -> list[Entry]:
    """A member is gone. What it has goes first."""
    return [
        entry(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        entry(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        entry(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group_id: str, members: Iterable[str], regexes: Iterable[str]) -> list[Entry]:
    """A group is gone, with all that is left in it. Its own entry goes last."""
    entries: list[Entry] = []
    for member_id in members:
        entries += member_tombstones(group_id, member_id)
    entries += [regex_tombstone(group_id, regex) for regex in regexes]
    entries.append(entry(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    entries.append(entry(ConsumerGroupMetadataKey(group_id=group_id), None))
    return entries
