"""Finding records by time, exactly: the segments' time indexes lead to a batch, its records decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import KafkaStorageError, OffsetOutOfRange
from millstream.protocol.batch import decode_records, read_header

if TYPE_CHECKING:
    from millstream.storage.log import Log
    from millstream.storage.segment import Segment
    from millstream.storage.segment_list import SegmentList

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
            if segment.max_timestamp >= timestamp and segment.size:
                end_offset = min(limit, segments.start_of_next(segment, log.end_offset))
                found = _search(log, segment, timestamp, end_offset)
                if found is not None:
                    return found
        return None

    return _look_again(log, look)


def find_largest(log: Log, limit: int) -> FoundTimestamp | None:
    """The first record with the largest timestamp; None if it lies at `limit` or beyond."""

    def look(segments: SegmentList) -> FoundTimestamp | None:
        latest = max(segments, key=lambda segment: segment.max_timestamp)
        if latest.max_timestamp < 0:
            return None
        return _search(log, latest, latest.max_timestamp, limit)

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
                raise KafkaStorageError(f"reading {log.partition}: {error}") from error


def _search(log: Log, segment: Segment, timestamp: int, end_offset: int) -> FoundTimestamp | None:
    """The first record of a segment that is at least as late as `timestamp`."""
    entry = segment.time_index.floor(timestamp)
    offset = max(log.start_offset, segment.base_offset + (entry[1] if entry else 0))
    while offset < end_offset:
        found = log.read(offset, _CHUNK_BYTES, limit=end_offset)
        if not found.data:
            return None
        position = 0
        while position < len(found.data):
            header = read_header(found.data, position)
            batch = found.data[position : position + header.size]
            if header.max_timestamp >= timestamp:
                for record in decode_records(batch, include_control=True, verify_crc=False):
                    if record.timestamp >= timestamp and record.offset >= log.start_offset:
                        return FoundTimestamp(record.timestamp, record.offset, header.leader_epoch)
            position += header.size
        offset = found.next_offset
    return None
