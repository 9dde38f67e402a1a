"""Holding a segment's time index against its batches, before anything is deleted or passed over by it.

Nothing in a `.timeindex` shows that a byte of it changed, or that its end is gone. So its last entry is
believed only if it names a batch with exactly that timestamp, and no batch behind that one is younger. Where
this is not so, the batches make the index anew. That costs little where timestamps grow, as the last entry
then names one of the last batches; and it is done once for each segment that this process did not write.
"""

from __future__ import annotations

import logging

from millstream.protocol.batch import read_header
from millstream.storage.recovery import good_chunks, position_of
from millstream.storage.segment import NO_TIMESTAMP, Segment

log = logging.getLogger(__name__)


def confirm_timestamps(segment: Segment) -> None:
    """Make sure that a segment's largest timestamp is that of its batches.

    In any thread, for a segment that does not grow; for the one that does, only where it is appended to.
    """
    if segment.is_confirmed:
        return
    size = segment.size
    last = segment.time_index.last()
    known = segment.max_timestamp  # that of the last entry, or of a batch that was appended since
    reached, largest = 0, NO_TIMESTAMP
    if last is None or names_its_batch(segment, last):
        position = 0 if last is None else position_of(segment, segment.base_offset + last[1])
        for chunk in good_chunks(segment, position, -1):
            reached, largest = chunk.position + len(chunk.data), max(largest, chunk.scan.max_timestamp)
        if reached == size and largest <= known:
            segment.confirm()
            return
    make_times_anew(segment, size)


def make_times_anew(segment: Segment, size: int) -> None:
    """Derive the time index from the batches.

    If some of those are damaged, it stays as it is, and the segment counts as no older than its file.
    """
    entries, reached = _derived_times(segment)
    if reached == size:
        log.warning("%s does not agree with the log: it is built again", segment.time_index.path)
        segment.restore_times(entries, size)
    else:
        log.warning("%s is damaged at byte %d: its age is that of the file", segment.path, reached)
        segment.load_timestamps()
        segment.confirm(segment.modified_ms())


def _derived_times(segment: Segment) -> tuple[list[tuple[int, int]], int]:
    """Entries of a time index, not more than one for each chunk that was read, and where good batches end."""
    entries: list[tuple[int, int]] = []
    reached = 0
    for chunk in good_chunks(segment, 0, segment.base_offset):
        reached = chunk.position + len(chunk.data)
        if chunk.scan.max_timestamp > (entries[-1][0] if entries else NO_TIMESTAMP):
            entries.append((chunk.scan.max_timestamp, chunk.scan.max_timestamp_offset - segment.base_offset))
    return entries, reached


def names_its_batch(segment: Segment, entry: tuple[int, int]) -> bool:
    """Whether an entry of the time index is of a batch that the segment holds."""
    timestamp, offset = entry[0], segment.base_offset + entry[1]
    for chunk in good_chunks(segment, position_of(segment, offset), -1, verify_crc=False):
        if chunk.scan.last_offset < offset:
            continue
        at, end = 0, len(chunk.data)
        while at < end:
            header = read_header(chunk.data, at)
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == timestamp
            at += header.size
    return False


def is_time_index_sound(segment: Segment) -> bool:
    """Whether the last entry names its batch, and what follows the last indexed batch is no younger.

    That is what a start can afford to look at of the segment that will be appended to.
    """
    last = segment.time_index.last()
    if last is not None and not names_its_batch(segment, last):
        return False
    known = NO_TIMESTAMP if last is None else last[0]
    entry = segment.index.last()
    position = position_of(segment, segment.base_offset + entry[0]) if entry else 0
    chunks = good_chunks(segment, position, -1, verify_crc=False)
    return all(chunk.scan.max_timestamp <= known for chunk in chunks)


def refresh_timestamps(segment: Segment) -> int:
    """Find a shortened segment's largest timestamp again: the time index's, or a later batch's.

    Gives the offset after its last batch.
    """
    last_time = segment.time_index.last()
    if last_time is not None and not names_its_batch(segment, last_time):
        log.warning("%s does not agree with the log: it is built again", segment.time_index.path)
        segment.time_index.replace(_derived_times(segment)[0])
        last_time = segment.time_index.last()
    entry = segment.index.last()
    position = entry[1] if entry else 0
    largest = NO_TIMESTAMP if last_time is None else last_time[0]
    offset = -1 if last_time is None else last_time[1] + segment.base_offset
    end_offset = segment.base_offset
    for chunk in good_chunks(segment, position, segment.base_offset, verify_crc=False):
        end_offset = chunk.scan.last_offset + 1
        if chunk.scan.max_timestamp > largest:
            largest, offset = chunk.scan.max_timestamp, chunk.scan.max_timestamp_offset
    segment.set_timestamps(largest, offset, segment.size - position)
    return end_offset
