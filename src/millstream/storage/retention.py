"""Which segments a log no longer keeps: the oldest ones, by age, by size, or below the log's start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.errors import KafkaStorageError
from millstream.storage.time_check import confirm_timestamps

if TYPE_CHECKING:
    from millstream.storage.log import Log
    from millstream.storage.segment import Segment


def apply(log: Log, now_ms: int, high_watermark: int) -> int:
    """Delete the segments that the log no longer keeps; how many bytes that were."""
    try:
        for segment in unconfirmed_segments(log, now_ms):
            confirm_timestamps(segment)
        expired = expired_segments(log, now_ms, high_watermark)
    except OSError as error:
        raise KafkaStorageError(f"{log.partition} cannot be read: {error}") from error
    if not expired:
        return 0
    try:
        return _delete(log, expired)
    except OSError as error:
        raise log.storage_error(error) from error


def confirm_ages(log: Log, now_ms: int) -> None:
    """Read what `apply` would have to, of all but the active segment. In a thread: that may take long."""
    try:
        for segment in unconfirmed_segments(log, now_ms):
            if segment is not log.segments.active:
                confirm_timestamps(segment)
    except OSError as error:
        raise KafkaStorageError(f"{log.partition} cannot be read: {error}") from error


def unconfirmed_segments(log: Log, now_ms: int) -> Iterator[Segment]:
    """The segments that are too old by their time indexes, as long as nothing else says so."""
    oldest_ms = _oldest_ms(log, now_ms)
    if oldest_ms is not None:
        for segment in log.segments:
            if not segment.size or segment.age_timestamp() >= oldest_ms:
                break
            if not segment.is_confirmed:
                yield segment


def _oldest_ms(log: Log, now_ms: int) -> int | None:
    """The time before which records are too old; None if none ever is."""
    config = log.config
    return now_ms - config.retention_ms if config.deletes_old and config.retention_ms >= 0 else None


def _delete(log: Log, expired: list[Segment]) -> int:
    log.abandon_swap()
    if len(expired) == len(log.segments):
        try:
            log.roll()
        except KafkaStorageError:  # a full disk has no room for a new segment until the others have gone
            if log.failure is not None or len(expired) == 1:
                raise
            del expired[-1]
    log.start_offset = max(log.start_offset, log.segments.start_of_next(expired[-1], log.end_offset))
    log.epochs.truncate_start(log.start_offset)
    log.segments = log.segments.replaced(expired, ())
    log.discard(expired)
    return sum([segment.size for segment in expired])


def expired_segments(log: Log, now_ms: int, high_watermark: int) -> list[Segment]:
    """The segments to delete now, from the oldest on; never one with uncommitted records.

    Age is judged by a segment's largest timestamp, if its batches bear that out. The active segment can be
    among them only with all others, and only if it is not empty: the log then rolls first.
    """
    config = log.config
    excess_bytes = -1
    oldest_ms = _oldest_ms(log, now_ms)
    if config.deletes_old and config.retention_bytes >= 0:
        excess_bytes = log.size_bytes - config.retention_bytes
    expired: list[Segment] = []
    segments = log.segments
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        next_base = log.end_offset if is_last else segments[number + 1].base_offset
        if next_base > high_watermark or (is_last and segment.size == 0):
            break
        if not (
            (next_base <= log.start_offset and not is_last)
            or (excess_bytes >= segment.size)
            or (oldest_ms is not None and segment.is_confirmed and segment.age_timestamp() < oldest_ms)
        ):
            break
        expired.append(segment)
        excess_bytes -= segment.size
    return expired
