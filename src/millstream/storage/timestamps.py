"""Finding records by time, exactly: the segments' time indexes lead to a batch, its records decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import KafkaStorageError, OffsetOutOfRange
from millstream.protocol.batch import BatchHeader, decode_records, read_header
from millstream.storage.segment import NO_TIMESTAMP, Segment
from millstream.storage.time_check import confirm_timestamps, make_times_anew, names_its_batch

if TYPE_CHECKING:
    from millstream.storage.log import Log
    from millstream.storage.segment_list import SegmentList

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20


class FoundTimestamp(NamedTuple):
    """A record found by time."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_first(log: Log, timestamp: int, limit: int) -> FoundTimestamp | None:
    """The first record below `limit` that is at least as late as `timestamp`."""

    def look(segments: SegmentList) -> FoundTimestamp | None:
        for segment in segments:
            if segment.size and _bound(segments, segment) >= timestamp:
                end_offset = min(limit, segments.start_of_next(segment, log.end_offset))
                found = _search(log, segment, timestamp, end_offset)
                if found is not None:
                    return found
        return None

    return _look_again(log, look)


def find_largest(log: Log, limit: int) -> FoundTimestamp | None:
    """The first record with the largest timestamp; None if it lies at `limit` or beyond.

    A segment's largest timestamp may be that of a record that was deleted, or of a batch that compaction
    left without records: then the segment's batches are asked.
    """

    def look(segments: SegmentList) -> FoundTimestamp | None:
        found: FoundTimestamp | None = None
        bounds = [(_bound(segments, segment), segment) for segment in segments if segment.size]
        for bound, segment in sorted(bounds, key=lambda one: -one[0]):
            known = (NO_TIMESTAMP, 0) if found is None else (found.timestamp, -found.offset)
            if (bound, -segment.base_offset) <= known:  # later or no larger: nor are those that follow
                break
            end_offset = segments.start_of_next(segment, log.end_offset)
            largest = _search(log, segment, bound, end_offset) or _largest(log, segment, end_offset)
            if largest is not None and (largest.timestamp, -largest.offset) > known:
                found = largest
        return found if found is not None and found.offset < limit else None

    return _look_again(log, look)


def _look_again(log: Log, look: Callable[[SegmentList], FoundTimestamp | None]) -> FoundTimestamp | None:
    """Repeat a look at the segments for as long as they change under it."""
    while True:
        segments, start_offset = log.segments, log.start_offset
        try:
            return look(segments)
        except OffsetOutOfRange:
            if log.start_offset == start_offset and not log.is_changed_since(segments):
                raise
        except (OSError, KafkaStorageError) as error:
            if not log.is_changed_since(segments):
                if isinstance(error, KafkaStorageError):
                    raise
                log.check_open(error)
                raise KafkaStorageError(f"reading {log.partition}: {error}") from error


def _bound(segments: SegmentList, segment: Segment) -> int:
    """The largest timestamp of a segment. That of the active one was looked at when the log was opened."""
    if segment is not segments.active:
        confirm_timestamps(segment)
    return segment.max_timestamp


def _search(log: Log, segment: Segment, timestamp: int, end_offset: int) -> FoundTimestamp | None:
    """The first record of a segment that is at least as late as `timestamp`."""
    entry = segment.time_index.floor(timestamp)
    if entry is not None and not names_its_batch(segment, entry):
        if segment is log.segments.active:  # it grows: only the loop may change its index
            _log.warning("%s does not agree with the log: it is passed over", segment.time_index.path)
        else:
            make_times_anew(segment, segment.size)
        entry = None
    for header, batch in _batches(log, segment.base_offset + (entry[1] if entry else 0), end_offset):
        if header.max_timestamp >= timestamp:
            for found in _timestamps(log, header, batch):
                if found.timestamp >= timestamp:
                    return found
    return None


def _largest(log: Log, segment: Segment, end_offset: int) -> FoundTimestamp | None:
    """The first record of a segment that has the largest timestamp, by its batches alone."""
    largest: FoundTimestamp | None = None
    for header, batch in _batches(log, segment.base_offset, end_offset):
        if header.max_timestamp > (-1 if largest is None else largest.timestamp):
            for found in _timestamps(log, header, batch):
                if found.timestamp > (-1 if largest is None else largest.timestamp):
                    largest = found
    return largest


def _batches(log: Log, offset: int, end_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches from the one that holds `offset`, or the log's start, up to `end_offset`."""
    offset = max(log.start_offset, offset)
    while offset < end_offset:
        found = log.read(offset, _CHUNK_BYTES, limit=end_offset)
        position = 0
        while position < len(found.data):
            header = read_header(found.data, position)
            yield header, found.data[position : position + header.size]
            position += header.size
        if not found.data:
            return
        offset = found.next_offset


def _timestamps(log: Log, header: BatchHeader, batch: memoryview) -> Iterator[FoundTimestamp]:
    for record in decode_records(batch, include_control=True, verify_crc=False):
        if record.offset >= log.start_offset:
            yield FoundTimestamp(record.timestamp, record.offset, header.leader_epoch)
