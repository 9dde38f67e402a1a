"""How far a group is behind: what it committed, and where the partitions end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.client.admin import AsyncAdmin
from millstream.client.errors import NoSuchTopic
from millstream.client.groups import Group, GroupMember
from millstream.client.offsets import EARLIEST, LATEST
from millstream.deadline import Deadline
from millstream.model import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group's place in one partition; without a commit it has the whole partition before it.

    `end` and `start` are None if the topic is gone.
    """

    group: str
    partition: TopicPartition
    committed: int | None
    metadata: str
    start: int | None
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        if self.end is None or self.start is None:
            return None
        at = self.start if self.committed is None else self.committed
        return max(self.end - max(at, self.start), 0)

    def row(self) -> dict[str, Any]:
        """It for a table or a program."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed,
            "metadata": self.metadata,
            "end": self.end,
            "lag": self.lag,
            "member_id": None if self.member is None else self.member.member_id,
            "client": None if self.member is None else self.member.client_id,
        }


async def lags_of(admin: AsyncAdmin, group: Group, deadline: Deadline) -> list[PartitionLag]:
    """All partitions in which a group has committed something, or which a member reads."""
    committed = await admin.group_offsets(group.name, timeout=deadline.remaining)
    readers = {partition: member for member in group.members for partition in member.partitions}
    partitions = sorted({*committed, *readers})
    existing = await existing_partitions(admin, partitions, deadline)
    start = (
        await admin.offsets_at(dict.fromkeys(existing, EARLIEST), timeout=deadline.remaining)
        if existing
        else {}
    )
    end = (
        await admin.offsets_at(dict.fromkeys(existing, LATEST), timeout=deadline.remaining)
        if existing
        else {}
    )
    return [
        PartitionLag(
            group.name,
            partition,
            committed[partition].offset if partition in committed else None,
            committed[partition].metadata if partition in committed else "",
            start[partition].offset if partition in start else None,
            end[partition].offset if partition in end else None,
            readers.get(partition),
        )
        for partition in partitions
    ]


async def existing_partitions(
    admin: AsyncAdmin, partitions: list[TopicPartition], deadline: Deadline
) -> list[TopicPartition]:
    """Those of the partitions whose topic still exists."""
    found: list[TopicPartition] = []
    for name in dict.fromkeys(partition.topic for partition in partitions):
        try:
            topic = await admin.describe_topic(name, timeout=deadline.remaining)
        except NoSuchTopic:
            continue
        found += [each for each in partitions if each.topic == name and each.partition in topic.partitions]
    return found
