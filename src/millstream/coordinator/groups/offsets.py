"""Committed offsets, by group and partition, and those of transactions that are still open.

They are kept as the bytes they have in the log: a coordinator may hold millions, most of which nobody asks
for, and bytes cost neither decoding when the log is loaded nor time in garbage collections.

Invariants: both hold exactly what the replayed entries say, where a compacted log says the same as a whole
one: of all visible entries with one key the last in the log counts. An offset of a transaction becomes
visible when the transaction is committed, and so counts only if nothing later became visible before.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from millstream.coordinator.groups.offset_format import (
    Committed,
    may_be_older,
    partition_at,
    place_of,
    read_offset,
)
from millstream.errors import ProtocolError
from millstream.model import TopicPartition


class Pending(NamedTuple):
    """An offset of an open transaction, and where in the log it stands."""

    value: bytes
    log_offset: int


class Offsets:
    """The offsets of one shard. Only replaying changes it."""

    def __init__(self) -> None:
        self._groups: dict[bytes, dict[bytes, bytes]] = {}
        self._open: dict[int, dict[bytes, dict[bytes, Pending]]] = {}
        """Offsets of open transactions, by producer id and group."""
        self._unstable: dict[bytes, dict[bytes, set[int]]] = {}
        """Which transactions may still change a group's position in a partition, or did not come to it."""

    # Looking

    def __contains__(self, group_id: str) -> bool:
        """Whether a group has committed something, or may have with a transaction that is open."""
        group = group_id.encode()
        return group in self._groups or group in self._unstable

    def __iter__(self) -> Iterator[str]:
        """The groups that have offsets."""
        return iter(self.groups())

    def groups(self) -> list[str]:
        """The groups that have offsets; may be called from any thread, and so may `of`."""
        groups = dict.fromkeys((*list(self._groups), *list(self._unstable)))
        return [group.decode("utf-8", "replace") for group in groups]

    def get(self, group_id: str, partition: TopicPartition) -> Committed | None:
        """A group's position in a partition."""
        positions = self._groups.get(group_id.encode())
        value = None if positions is None else positions.get(place_of(*partition))
        return None if value is None else _read(value)

    def of(self, group_id: str) -> Iterator[tuple[TopicPartition, Committed]]:
        """All positions of a group."""
        for place, value in list(self._groups.get(group_id.encode(), {}).items()):
            committed = _read(value)
            if committed is not None:
                yield partition_at(place), committed

    def older(self, group_id: str, limit_ms: int) -> Iterator[tuple[TopicPartition, Committed]]:
        """The positions that a group committed until `limit_ms`, and those with an expiry of their own.

        Most are younger, and are passed over without being read.
        """
        for place, value in self._groups.get(group_id.encode(), {}).items():
            if may_be_older(value, limit_ms):
                committed = _read(value)
                if committed is not None:
                    yield partition_at(place), committed

    def within(self, group: bytes, heads: Container[bytes]) -> Iterator[bytes]:
        """The places in some topics, told by their heads, where a group has a position, or may get one from
        an open transaction."""
        visible, unstable = self._groups.get(group, {}), self._unstable.get(group, {})
        for place in dict.fromkeys((*visible, *unstable)):
            if place[:-4] in heads and (
                place in visible
                or any(place in self._open[producer_id][group] for producer_id in unstable[place])
            ):
                yield place

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """The partitions in which a group has a position."""
        return [partition_at(place) for place in self._groups.get(group_id.encode(), ())]

    def count(self, group_id: str) -> int:
        return len(self._groups.get(group_id.encode(), ()))

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction may move the group in this partition."""
        unstable = self._unstable.get(group_id.encode())
        return unstable is not None and place_of(*partition) in unstable

    def unstable(self, group_id: str) -> list[TopicPartition]:
        """The partitions in which an open transaction may move the group."""
        return [partition_at(place) for place in self._unstable.get(group_id.encode(), ())]

    def state(self) -> tuple[object, ...]:
        """All of it, to be compared."""
        return self._groups, self._open, self._unstable

    # Replaying

    def put(self, group: bytes, place: bytes, value: bytes) -> None:
        positions = self._groups.get(group)
        if positions is None:
            self._groups[group] = {place: value}
        else:
            positions[place] = value
        if self._unstable:
            self._supersede(group, place, None)

    def remove(self, group: bytes, place: bytes) -> None:
        positions = self._groups.get(group)
        if positions is not None:
            positions.pop(place, None)
            if not positions:
                del self._groups[group]
        if self._unstable:
            self._supersede(group, place, None)

    def put_pending(
        self, producer_id: int, group: bytes, place: bytes, value: bytes, log_offset: int
    ) -> None:
        pending = Pending(value, log_offset)
        self._open.setdefault(producer_id, {}).setdefault(group, {})[place] = pending
        self._unstable.setdefault(group, {}).setdefault(place, set()).add(producer_id)

    def end(self, producer_id: int, is_commit: bool) -> list[tuple[bytes, bytes]]:
        """A transaction ended. The groups and places that it moved."""
        moved = []
        for group, positions in self._open.pop(producer_id, {}).items():
            unstable = self._unstable[group]
            for place in [place for place, producers in unstable.items() if producer_id in producers]:
                unstable[place].discard(producer_id)
                if not unstable[place]:
                    del unstable[place]
            if not unstable:
                del self._unstable[group]
            if not is_commit:
                continue
            for place, pending in positions.items():
                self._groups.setdefault(group, {})[place] = pending.value
                self._supersede(group, place, pending.log_offset)
                moved.append((group, place))
        return moved

    def _supersede(self, group: bytes, place: bytes, log_offset: int | None) -> None:
        """What became visible is later in the log than these pending ones: they will not come to it."""
        for producer_id in self._unstable.get(group, {}).get(place, ()):
            positions = self._open[producer_id][group]
            pending = positions.get(place)
            if pending is not None and (log_offset is None or pending.log_offset < log_offset):
                del positions[place]


def _read(value: bytes) -> Committed | None:
    try:
        return read_offset(value)
    except (ProtocolError, UnicodeDecodeError):
        return None
