"""What a log of groups says, and what a shard keeps of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.coordinator.entry_format import number_of, read_value
from millstream.coordinator.group_entries import GroupMetadataKey, GroupMetadataValue
from millstream.coordinator.groups.shard import GroupShard
from tests.coordinator.groups.host import Host


def durable(shard: GroupShard) -> tuple[Any, ...]:
    """What must survive."""
    return (
        {name: group.written for name, group in shard.groups.items() if group.written is not None},
        shard.offsets.state(),
    )


def written_groups(host: Host) -> dict[str, bytes]:
    """The last value of every group, read without the shard; no value may hold a member twice."""
    last: dict[str, bytes] = {}
    for entry, _ in host.log:
        if not entry.key or number_of(entry.key) != 2:
            continue
        group_id = GroupMetadataKey.decode(entry.key, 0, 2).group
        if entry.value is None:
            last.pop(group_id, None)
            continue
        value = read_value(GroupMetadataValue, entry.value)
        assert is_unique(member.member_id for member in value.members)
        assert is_unique(
            member.group_instance_id for member in value.members if member.group_instance_id is not None
        )
        last[group_id] = entry.value
    return last


def is_unique(values: Iterable[str]) -> bool:
    listed = list(values)
    return len(listed) == len(set(listed))
