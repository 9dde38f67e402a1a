"""Making a log whole again after a crash: what is torn goes, what can be derived is derived.

A crash can tear only what lies at or above the recovery point. There every batch is verified, the
file is cut off at the first one that is not good, and indexes, leader epochs and producer state
come from the batches. Below the recovery point nothing is ever cut: a batch that is damaged there
is left where it is, and found when it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.protocol.batch import HEADER_SIZE, BatchHeader, Scan, read_header, scan_batches
from millstream.protocol.header import GOOD, TRUNCATED
from millstream.storage.epochs import UNKNOWN_EPOCH, Epochs
from millstream.storage.producer_state import ProducerState
from millstream.storage.replay import note_batch
from millstream.storage.segment import MAX_RELATIVE_OFFSET, NO_TIMESTAMP, Segment
from millstream.storage.segment_list import SegmentList

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_CRC_END: Final = 21
_OFFSET: Final = Struct(">q")
_SMALL_BYTES: Final = 1 << 16
_SEARCH_BYTES: Final = 16 << 20


class Chunk(NamedTuple):
    """Good batches of a segment, back to back."""

    position: int
    data: memoryview
    scan: Scan


class Rebuilt(NamedTuple):
    """What became of a segment."""

    end_offset: int
    is_cut: bool
    """Whether it was shortened because of torn bytes at its end; they are still in the file."""
    is_damaged: bool
    """Whether it ends in bytes that make no sense but were durable once, and so were left there."""
    is_whole: bool
    """Whether nothing can be missing but the write that a killed process was at."""


def good_chunks(
    segment: Segment, position: int, next_offset: int, *, verify_crc: bool = True
) -> Iterator[Chunk]:
    """The good batches of a segment from a position on, until its end or the first that is not good."""
    want_bytes = _CHUNK_BYTES
    while position < segment.size:
        data = segment.open().pread(min(want_bytes, segment.size - position), position)
        scan = scan_batches(data, 0, len(data), verify_crc, next_offset)
        if scan.batches:
            yield Chunk(position, data[: scan.position], scan)
            position += scan.position
            next_offset = scan.last_offset + 1
            want_bytes = _CHUNK_BYTES
        elif scan.error == TRUNCATED and len(data) >= _LENGTH_END:
            want_bytes = _LENGTH.unpack_from(data, _LENGTH_AT)[0] + _LENGTH_END
            if not len(data) < want_bytes <= segment.size - position:
                return
        else:
            return
        if scan.error not in (GOOD, TRUNCATED):
            return


def good_batches(
    segment: Segment, position: int, next_offset: int, upper_offset: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The good batches one by one, with their positions.

    A base offset is not covered by the CRC. Where one leaves a gap, what follows must bear it out:
    the next batch, or at the segment's end `upper_offset`.
    """
    for chunk in good_chunks(segment, position, next_offset):
        at, end = 0, len(chunk.data)
        while at < end:
            header = read_header(chunk.data, at)
            if header.base_offset != next_offset and not _is_borne_out(
                segment, chunk.position + at, header, upper_offset
            ):
                return
            yield chunk.position + at, header, chunk.data[at : at + header.size]
            next_offset = header.next_offset
            at += header.size


def _is_borne_out(segment: Segment, position: int, header: BatchHeader, upper_offset: int) -> bool:
    if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return False
    end = position + header.size
    following = segment.open().pread(_OFFSET.size, end)
    if len(following) == _OFFSET.size and header.last_offset < _OFFSET.unpack(following)[0]:
        return True
    is_last = end == segment.size or next(good_chunks(segment, end, -1), None) is None
    return is_last and header.last_offset < upper_offset


def find_end_offset(segment: Segment) -> int | None:
    """The offset after a segment's last batch, by its index and headers alone; None if they do not fit."""
    if segment.size == 0:
        return segment.base_offset
    entry = segment.index.last() if segment.size > _SMALL_BYTES else None
    position = entry[1] if entry else 0
    if not 0 <= position < segment.size:
        return None
    next_offset = end = -1
    for chunk in good_chunks(segment, position, segment.base_offset, verify_crc=False):
        end = chunk.position + len(chunk.data)
        next_offset = chunk.scan.last_offset + 1
    return next_offset if end == segment.size else None


def rebuild_segment(
    segment: Segment,
    index_interval_bytes: int,
    epochs: Epochs,
    producers: ProducerState | None,
    recovery_point: int,
    upper_offset: int,
) -> Rebuilt:
    """Verify a segment, shorten it to what is not torn, and derive all else from its batches.

    `upper_offset` is the next segment's base offset, or else the recovery point's end: a gap right before
    the last batch is believed only below it. What `epochs` already says is trusted, as it is no older
    than the recovery point.
    """
    if segment.size == 0:
        return Rebuilt(segment.base_offset, is_cut=False, is_damaged=False, is_whole=True)
    indexed = [position for _, position in segment.index.entries()]
    segment.index.clear()
    segment.time_index.clear()
    segment.set_timestamps(NO_TIMESTAMP, NO_TIMESTAMP, 0)
    if producers is not None:
        segment.transaction_index.keep_below(0)
    position, next_offset = 0, segment.base_offset
    resumed = -1
    observed_from = 0 if epochs.latest == UNKNOWN_EPOCH else recovery_point
    while True:
        for at, header, data in good_batches(segment, position, next_offset, upper_offset):
            segment.note_batch(at, header, -1 if at == resumed else index_interval_bytes)
            if header.base_offset >= observed_from:
                epochs.observe(header.leader_epoch, header.base_offset)
            position, next_offset = at + header.size, header.next_offset
            if producers is not None and header.base_offset >= producers.end_offset:
                if header.producer_id >= 0:
                    aborted = note_batch(producers, header, data)
                    if aborted is not None:
                        segment.transaction_index.add(aborted)
                producers.end_offset = next_offset
        if position == segment.size or next_offset >= recovery_point:
            break
        resumed = _find_good_batch(segment, position, next_offset, indexed)
        if resumed < 0:
            break
        log.error("%s is damaged between bytes %d and %d", segment.path, position, resumed)
        position = resumed  # indexed in any case: who looks for a later offset need not pass the damage
    is_bad = position < segment.size
    is_torn = is_bad and _is_torn(segment, position, next_offset)
    is_damaged = is_bad and next_offset < recovery_point and not is_torn
    is_whole = resumed < 0 and (
        not is_bad or (is_torn and _find_good_batch(segment, position, next_offset, indexed) < 0)
    )
    if is_damaged:
        log.error("%s is damaged from byte %d on", segment.path, position)
    elif is_bad:
        log.warning("%s: cut off %d torn bytes at %d", segment.path, segment.size - position, position)
        segment.shorten(position)
    return Rebuilt(next_offset, is_bad and not is_damaged, is_damaged, is_whole)


def _is_torn(segment: Segment, position: int, next_offset: int) -> bool:
    """Whether the bytes from a position on are a batch's beginning without its end, or nothing at all."""
    size = segment.size - position
    data = segment.open().pread(min(size, _SEARCH_BYTES), position)
    if size < HEADER_SIZE or not any(data):
        return True
    header = read_header(data)
    if header.magic != 2 or header.base_offset != next_offset or header.size <= size:
        return False
    return int(crc32c(data[_CRC_END:])) != header.crc  # else it is all there, and its length is wrong


def _find_good_batch(segment: Segment, position: int, next_offset: int, indexed: list[int]) -> int:
    """Where good batches go on after a damaged one; -1 if nowhere.

    That is where its length says, or else a place where a batch is found by the head of its offset,
    which is nearly that of the damaged one, or one that the index knows.
    """
    data = segment.open().pread(min(segment.size - position, _SEARCH_BYTES), position)
    if len(data) >= _LENGTH_END:
        by_length: int = position + _LENGTH_END + _LENGTH.unpack_from(data, _LENGTH_AT)[0]
        if _is_good_batch(segment, by_length, position, next_offset):
            return by_length
    head, searched = next_offset.to_bytes(8, "big")[:5], bytes(data)
    at = searched.find(head, 1)
    while 0 < at <= len(searched) - HEADER_SIZE:
        if searched[at + _MAGIC_AT] == 2 and _is_good_batch(segment, position + at, position, next_offset):
            return position + at
        at = searched.find(head, at + 1)
    for candidate in indexed:
        if _is_good_batch(segment, candidate, position, next_offset):
            return candidate
    return -1


def _is_good_batch(segment: Segment, candidate: int, position: int, next_offset: int) -> bool:
    """Whether a good batch starts at `candidate`, which is after `position`."""
    if not position < candidate <= segment.size - HEADER_SIZE:
        return False
    return next(good_chunks(segment, candidate, next_offset), None) is not None


def observed_epochs(segments: SegmentList) -> Epochs:
    """The leader epochs that the batches carry."""
    epochs = Epochs()
    for segment in segments:
        for chunk in good_chunks(segment, 0, segment.base_offset):
            at, end = 0, len(chunk.data)
            while at < end:
                header = read_header(chunk.data, at)
                epochs.observe(header.leader_epoch, header.base_offset)
                at += header.size
    return epochs


def position_of(segment: Segment, offset: int) -> int:
    """Where a batch starts that is at or before `offset`; an index entry is believed if one is there."""
    if offset <= segment.base_offset:
        return 0
    last_offset, position = segment.lookup(offset)
    if 0 <= position <= segment.size - HEADER_SIZE:
        header = read_header(segment.open().pread(HEADER_SIZE, position))
        if header.magic == 2 and header.last_offset == last_offset:
            return position
    return 0


def replay_producers(state: ProducerState, segments: SegmentList, end_offset: int) -> None:
    """Take the batches between the state's end and `end_offset` into it."""
    if state.end_offset >= end_offset:
        return
    for segment in segments.between(state.end_offset, end_offset):
        position = position_of(segment, state.end_offset)
        for chunk in good_chunks(segment, position, -1, verify_crc=False):
            at, end = 0, len(chunk.data)
            while at < end:
                header = read_header(chunk.data, at)
                if header.producer_id >= 0 and state.end_offset <= header.base_offset < end_offset:
                    note_batch(state, header, chunk.data[at : at + header.size])
                at += header.size
    state.end_offset = end_offset
