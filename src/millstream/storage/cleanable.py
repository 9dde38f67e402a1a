"""What of a log can be compacted, and whether it should be now.

A log is clean below `Log.cleaned_until` and dirty above. Compaction reaches up to the first segment
that is active, or holds records at or beyond the last stable offset, or records younger than
min.compaction.lag.ms: as in Kafka by the records' own timestamps, whoever set them, or by the file's if they
have none. What the time index says of that is held against the batches first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.storage.segment import MAX_RELATIVE_OFFSET, Segment
from millstream.storage.time_check import confirm_timestamps

if TYPE_CHECKING:
    from millstream.storage.log import Log

_MAX_GROUP = 32
"""How many segments become one: they are replaced in one moment, which must not be a long one."""
_INDEX_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = 12


class Cleanable(NamedTuple):
    """The part of a log that compaction may work on."""

    log: Log
    first_dirty_offset: int
    end_offset: int
    """Where the first segment that must be left alone starts."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether there are dirty records older than max.compaction.lag.ms."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def find_cleanable(log: Log, stable_offset: int, now_ms: int) -> Cleanable:
    """What can be compacted of a log whose last stable offset is `stable_offset`. In any thread."""
    segments, config = log.segments, log.config
    first_dirty = log.cleaned_until
    if not log.start_offset <= first_dirty <= log.end_offset:
        first_dirty = log.start_offset
    closed = [segment for segment in segments if segment is not segments.active]
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty
    is_overdue = False
    for number, segment in enumerate(closed):
        following = closed[number + 1] if number + 1 < len(closed) else segments.active
        if following.base_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        if following.base_offset > stable_offset:
            break
        if config.min_compaction_lag_ms > 0 and segment.size:
            confirm_timestamps(segment)
            if segment.age_timestamp() > now_ms - config.min_compaction_lag_ms:
                break
        dirty_bytes += segment.size
        end_offset = following.base_offset
        is_overdue = is_overdue or (
            segment.size > 0 and 0 < segment.first_timestamp < now_ms - config.max_compaction_lag_ms
        )
    return Cleanable(log, first_dirty, end_offset, clean_bytes, dirty_bytes, is_overdue)


def group_segments(
    segments: Sequence[Segment], end_offset: int, segment_bytes: int, index_bytes_limit: int
) -> list[list[Segment]]:
    """The segments in runs that fit in one segment each, by their sizes, indexes and offsets.

    `end_offset` is the base offset of what follows the last one.
    """
    groups: list[list[Segment]] = []
    size = index_bytes = time_bytes = 0
    for number, segment in enumerate(segments):
        last_offset = (segments[number + 1].base_offset if number + 1 < len(segments) else end_offset) - 1
        size += segment.size
        index_bytes += len(segment.index) * _INDEX_ENTRY_BYTES
        time_bytes += len(segment.time_index) * _TIME_ENTRY_BYTES
        if (
            groups
            and len(groups[-1]) < _MAX_GROUP
            and size <= segment_bytes
            and max(index_bytes, time_bytes) <= index_bytes_limit
            and last_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = segment.size
            index_bytes = len(segment.index) * _INDEX_ENTRY_BYTES
            time_bytes = len(segment.time_index) * _TIME_ENTRY_BYTES
    return groups
