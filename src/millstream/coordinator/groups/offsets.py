"""Committed offsets, by group and partition, and those of transactions that are still open.

Invariants: both hold exactly what the replayed entries say. An offset of a transaction becomes visible
when the transaction is committed, unless one with a later place in the log is there already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.model import TopicPartition


class Committed(NamedTuple):
    """A group's position in one partition. `log_offset` is where the log says so."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    log_offset: int


Positions = dict[TopicPartition, Committed]


class Offsets:
    """The offsets of one shard. Only replaying changes it."""

    def __init__(self) -> None:
        self._groups: dict[str, Positions] = {}
        self._open: dict[int, dict[str, Positions]] = {}
        """Offsets of open transactions, by producer id and group."""
        self._unstable: dict[str, dict[TopicPartition, set[int]]] = {}
        """Which transactions may still change a group's position in a partition."""

    def __contains__(self, group_id: str) -> bool:
        """Whether a group has committed something, or may have with a transaction that is open."""
        return group_id in self._groups or group_id in self._unstable

    def __iter__(self) -> Iterator[str]:
        """The groups that have offsets."""
        yield from self._groups
        yield from (group_id for group_id in self._unstable if group_id not in self._groups)

    def of(self, group_id: str) -> Positions:
        """What a group has committed; not to be changed."""
        return self._groups.get(group_id, {})

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction may move the group in this partition."""
        return partition in self._unstable.get(group_id, ())

    def unstable(self, group_id: str) -> list[TopicPartition]:
        """The partitions in which an open transaction may move the group."""
        return list(self._unstable.get(group_id, ()))

    def open_transactions(self) -> dict[int, dict[str, Positions]]:
        """What is pending, by producer id and group; not to be changed."""
        return self._open

    # Replaying

    def put(self, group_id: str, partition: TopicPartition, committed: Committed) -> None:
        positions = self._groups.get(group_id)
        if positions is None:
            self._groups[group_id] = {partition: committed}
        else:
            positions[partition] = committed

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        positions = self._groups.get(group_id)
        if positions is not None:
            positions.pop(partition, None)
            if not positions:
                del self._groups[group_id]

    def put_pending(
        self, producer_id: int, group_id: str, partition: TopicPartition, committed: Committed
    ) -> None:
        self._open.setdefault(producer_id, {}).setdefault(group_id, {})[partition] = committed
        self._unstable.setdefault(group_id, {}).setdefault(partition, set()).add(producer_id)

    def end(self, producer_id: int, is_commit: bool) -> list[tuple[str, Positions]]:
        """A transaction ended. What it moved, by group."""
        moved = []
        for group_id, positions in self._open.pop(producer_id, {}).items():
            unstable = self._unstable[group_id]
            for partition in positions:
                producers = unstable[partition]
                producers.discard(producer_id)
                if not producers:
                    del unstable[partition]
            if not unstable:
                del self._unstable[group_id]
            if not is_commit:
                continue
            current = self.of(group_id)
            for partition, committed in positions.items():
                existing = current.get(partition)
                if existing is None or existing.log_offset < committed.log_offset:
                    self.put(group_id, partition, committed)
            moved.append((group_id, positions))
        return moved
