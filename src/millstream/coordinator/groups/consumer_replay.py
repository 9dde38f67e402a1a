"""How the entries of consumer groups are taken over from the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.coordinator.entry_format import EntryKey, read_value
from millstream.coordinator.group_entries import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millstream.coordinator.groups.consumer_entries import Matched
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember, same_id
from millstream.coordinator.shard import Entry

Groups = dict[str, ConsumerGroup]


def replay_consumer_entry(groups: Groups, number: int, entry: Entry) -> str | None:
    """Take over an entry whose key is of type `number`; the group it is about, None if it is about none.

    A group comes into being with the first entry about it. A tombstone about one that is not there says
    nothing: compaction may have removed what it deleted.
    """
    found = _TAKERS.get(number)
    if found is None:
        return None
    key_type, take = found
    key: Any = key_type.decode(entry.key, 0, 2)
    group_id: str = key.group_id
    if entry.value is None and key_type is ConsumerGroupMetadataKey:
        groups.pop(group_id, None)
        return group_id
    group = groups.get(group_id)
    if group is None:
        if entry.value is None:
            return group_id
        group = groups[group_id] = ConsumerGroup(group_id)
    take(group, key, entry.value)
    return group_id


def _group(group: ConsumerGroup, _: Any, data: bytes | None) -> None:
    if data is not None:
        value = read_value(ConsumerGroupMetadataValue, data)
        group.epoch = value.epoch
        group.metadata_hash = value.metadata_hash


def _member(group: ConsumerGroup, key: ConsumerGroupMemberMetadataKey, data: bytes | None) -> None:
    if data is None:
        group.remove_member(key.member_id)
        return
    value = read_value(ConsumerGroupMemberMetadataValue, data)
    member = group.members.get(key.member_id) or ConsumerMember(key.member_id)
    group.put_member(member.with_metadata(value))


def _target_epoch(group: ConsumerGroup, _: Any, data: bytes | None) -> None:
    if data is None:
        group.assignment_epoch = 0
        group.target.clear()
        return
    value = read_value(ConsumerGroupTargetAssignmentMetadataValue, data)
    group.assignment_epoch = value.assignment_epoch
    group.assignment_timestamp_ms = value.assignment_timestamp


def _target(group: ConsumerGroup, key: ConsumerGroupTargetAssignmentMemberKey, data: bytes | None) -> None:
    if data is None:
        group.target.pop(key.member_id, None)
        return
    value = read_value(ConsumerGroupTargetAssignmentMemberValue, data)
    group.target[key.member_id] = {
        same_id(topic.topic_id): frozenset(topic.partitions) for topic in value.topic_partitions
    }


def _assignment(
    group: ConsumerGroup, key: ConsumerGroupCurrentMemberAssignmentKey, data: bytes | None
) -> None:
    member = group.members.get(key.member_id)
    if data is None:
        if member is not None:
            group.put_member(member.with_assignment(None))
        return
    value = read_value(ConsumerGroupCurrentMemberAssignmentValue, data)
    group.put_member((member or ConsumerMember(key.member_id)).with_assignment(value))


def _regex(group: ConsumerGroup, key: ConsumerGroupRegularExpressionKey, data: bytes | None) -> None:
    if data is None:
        group.put_regex(key.regular_expression, None)
        return
    value = read_value(ConsumerGroupRegularExpressionValue, data)
    matched = Matched(frozenset(value.topics), value.version, value.timestamp)
    group.put_regex(key.regular_expression, matched)


_Taker = Callable[[ConsumerGroup, Any, bytes | None], None]

_TAKERS: dict[int, tuple[type[EntryKey], _Taker]] = {
    ConsumerGroupMetadataKey.types[-1]: (ConsumerGroupMetadataKey, _group),
    ConsumerGroupMemberMetadataKey.types[-1]: (ConsumerGroupMemberMetadataKey, _member),
    ConsumerGroupTargetAssignmentMetadataKey.types[-1]: (
        ConsumerGroupTargetAssignmentMetadataKey,
        _target_epoch,
    ),
    ConsumerGroupTargetAssignmentMemberKey.types[-1]: (ConsumerGroupTargetAssignmentMemberKey, _target),
    ConsumerGroupCurrentMemberAssignmentKey.types[-1]: (
        ConsumerGroupCurrentMemberAssignmentKey,
        _assignment,
    ),
    ConsumerGroupRegularExpressionKey.types[-1]: (ConsumerGroupRegularExpressionKey, _regex),
}

CONSUMER_TYPES = frozenset(_TAKERS)
"""The types of keys that are about consumer groups."""
