"""Making a log whole again after a crash: what is torn goes, what can be derived is derived.

A crash can tear only what lies at or above the recovery point. There every batch is verified, the
file is cut off at the first one that is not good, and indexes, leader epochs and producer state
come from the batches. Below the recovery point nothing is ever cut: a batch that is damaged there
is left where it is, and found when it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.protocol.batch import HEADER_SIZE, Scan, read_header, scan_batches
from millstream.protocol.header import GOOD, TRUNCATED
from millstream.storage import names
from millstream.storage.disk import Disk
from millstream.storage.epochs import Epochs
from millstream.storage.producer_snapshot import BadSnapshot, decode_snapshot
from millstream.storage.producer_state import ProducerState
from millstream.storage.replay import note_batch
from millstream.storage.segment import NO_TIMESTAMP, Segment
from millstream.storage.segment_list import SegmentList

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12


class Chunk(NamedTuple):
    """Good batches of a segment, back to back."""

    position: int
    data: memoryview
    scan: Scan


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
            needed = _LENGTH.unpack_from(data, _LENGTH_AT)[0] + _LENGTH_END
            if not len(data) < needed <= segment.size - position:
                return
            want_bytes = needed
        if scan.error not in (GOOD, TRUNCATED):
            return


def find_end_offset(segment: Segment) -> int | None:
    """The offset after a segment's last batch, by its index and headers alone; None if they do not fit."""
    if segment.size == 0:
        return segment.base_offset
    entry = segment.index.last()
    position = entry[1] if entry else 0
    if position >= segment.size:
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
) -> int:
    """Verify a segment, cut off what is torn, and derive all else from its batches; where its records end."""
    old_entries = segment.index.entries()
    segment.index.clear()
    segment.time_index.clear()
    segment.set_timestamps(NO_TIMESTAMP, NO_TIMESTAMP, 0)
    transaction_index = segment.transaction_index if producers is not None else None
    if transaction_index is not None:
        transaction_index.keep_below(0)
    position, next_offset = 0, segment.base_offset
    while True:
        for chunk in good_chunks(segment, position, next_offset):
            at, end = 0, len(chunk.data)
            while at < end:
                header = read_header(chunk.data, at)
                segment.note_batch(chunk.position + at, header, index_interval_bytes)
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
                if (
                    producers is not None
                    and header.producer_id >= 0
                    and header.base_offset >= producers.end_offset
                ):
                    note_batch(producers, transaction_index, header, chunk.data[at : at + header.size])
                at += header.size
            position, next_offset = chunk.position + end, chunk.scan.last_offset + 1
            if producers is not None:
                producers.end_offset = max(producers.end_offset, next_offset)
        if position >= segment.size or next_offset >= recovery_point:
            break
        resumed = _find_good_batch(segment, position, next_offset, [entry[1] for entry in old_entries])
        if resumed is None:
            break
        log.error("%s is damaged between bytes %d and %d", segment.path, position, resumed)
        position = resumed
    if position < segment.size:
        log.warning("%s: cut off %d torn bytes at %d", segment.path, segment.size - position, position)
        segment.shorten(position)
        segment.open().truncate(position)
    segment.spill()
    return next_offset


def _find_good_batch(segment: Segment, position: int, next_offset: int, indexed: list[int]) -> int | None:
    """Where good batches go on after a damaged one: where its length says, or where the index knows one."""
    head = segment.open().pread(_LENGTH_END, position)
    if len(head) < _LENGTH_END:
        return None
    by_length: int = position + _LENGTH_END + _LENGTH.unpack_from(head, _LENGTH_AT)[0]
    for candidate in (by_length, *indexed):
        if position < candidate <= segment.size - HEADER_SIZE:
            for _ in good_chunks(segment, candidate, next_offset):
                return candidate
    return None


def refresh_timestamps(segment: Segment) -> None:
    """Find a shortened segment's largest timestamp again: the time index's, or a later batch's."""
    last_time = segment.time_index.last()
    entry = segment.index.last()
    position = entry[1] if entry else 0
    largest = NO_TIMESTAMP if last_time is None else last_time[0]
    offset = -1 if last_time is None else last_time[1] + segment.base_offset
    for chunk in good_chunks(segment, position, segment.base_offset, verify_crc=False):
        if chunk.scan.max_timestamp > largest:
            largest, offset = chunk.scan.max_timestamp, chunk.scan.max_timestamp_offset
    segment.set_timestamps(largest, offset, segment.size - position)


def load_producers(
    disk: Disk,
    folder: str,
    segments: SegmentList,
    snapshots: Sequence[int],
    end_offset: int,
    expiration_ms: int,
) -> ProducerState:
    """The producer state before `end_offset`: the latest good snapshot, and the batches since."""
    state = ProducerState(segments.first.base_offset, expiration_ms)
    for offset in reversed([offset for offset in snapshots if offset <= end_offset]):
        try:
            data = disk.read_file(f"{folder}/{names.offset_name(offset, names.SNAPSHOT)}")
            producers = decode_snapshot(data)
        except (BadSnapshot, FileNotFoundError) as error:
            log.warning("the producer snapshot at offset %d of %s is not good: %s", offset, folder, error)
            continue
        state.end_offset = offset
        for producer in producers:
            state.load(producer)
        break
    replay_producers(state, segments, end_offset)
    return state


def replay_producers(state: ProducerState, segments: SegmentList, end_offset: int) -> None:
    """Take the batches between the state's end and `end_offset` into it."""
    if state.end_offset >= end_offset:
        return
    for segment in segments.between(state.end_offset, end_offset):
        position = segment.lookup(state.end_offset)[1] if state.end_offset > segment.base_offset else 0
        for chunk in good_chunks(segment, position, -1, verify_crc=False):
            at, end = 0, len(chunk.data)
            while at < end:
                header = read_header(chunk.data, at)
                if header.producer_id >= 0 and state.end_offset <= header.base_offset < end_offset:
                    note_batch(state, None, header, chunk.data[at : at + header.size])
                at += header.size
    state.end_offset = end_offset
