"""The segments of a log in offset order, as one value that is replaced and never changed.

A reader takes the list once and works on it while the log rolls, deletes or truncates; if what it
finds makes no sense, it sees by the log's having another list that it must look again.
`positions` is the one part that changes: it remembers where earlier reads ended, so that a reader
who goes on from there needs no index. It goes with the list whenever a segment's bytes changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from millstream.storage.segment import Segment

_MAX_POSITIONS = 64


class SegmentList:
    """At least one segment; the last one is active."""

    __slots__ = ("_bases", "_items", "active", "positions")

    def __init__(
        self, items: Sequence[Segment], positions: dict[int, tuple[Segment, int]] | None = None
    ) -> None:
        self._items = items
        self._bases = [segment.base_offset for segment in items]
        self.active = items[-1]
        self.positions: dict[int, tuple[Segment, int]] = {} if positions is None else positions

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Segment:
        return self._items[number]

    @property
    def first(self) -> Segment:
        return self._items[0]

    def floor(self, offset: int) -> Segment:
        """The last segment whose base offset is at most `offset`, else the first one."""
        return self._items[max(0, bisect_right(self._bases, offset) - 1)]

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows, None if it is the last."""
        number = bisect_right(self._bases, segment.base_offset)
        return self._items[number] if number < len(self._items) else None

    def start_of_next(self, segment: Segment, end_offset: int) -> int:
        """The offset before which all of the segment's records lie: the next one's base, or the log's end."""
        following = self.after(segment)
        return end_offset if following is None else following.base_offset

    def between(self, start_offset: int, end_offset: int) -> Sequence[Segment]:
        """The segments that may hold a record of [start_offset, end_offset)."""
        low = max(0, bisect_right(self._bases, start_offset) - 1)
        return self._items[low : bisect_left(self._bases, end_offset, low)]

    def aborted_transactions(
        self, start_offset: int, end_offset: int, log_end_offset: int, *, nowait: bool = False
    ) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in [start, end)."""
        found: list[tuple[int, int]] = []
        for segment in self.between(start_offset, log_end_offset):
            for entry in segment.transaction_index.ended_from(start_offset, nowait=nowait):
                if entry.first_offset < end_offset:
                    found.append((entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    def unflushed(self, end_offset: int) -> list[Segment]:
        """The segments with records below `end_offset` that are not durable as a whole."""
        found: list[Segment] = []
        for segment in reversed(self._items):
            if segment.is_flushed:
                break
            if segment.base_offset < end_offset:
                found.append(segment)
        return found[::-1]

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Note that the batch at or after `offset` starts at `position` of the segment."""
        if len(self.positions) >= _MAX_POSITIONS:
            self.positions.clear()
        self.positions[offset] = (segment, position)

    def rolled(self, active: Segment) -> SegmentList:
        """With a new active segment at the end."""
        return SegmentList([*self._items, active], self.positions)

    def replaced(self, old: Sequence[Segment], new: Sequence[Segment]) -> SegmentList:
        """With a run of segments replaced by others; what reads remembered is forgotten."""
        number = self._items.index(old[0])
        return SegmentList([*self._items[:number], *new, *self._items[number + len(old) :]])
