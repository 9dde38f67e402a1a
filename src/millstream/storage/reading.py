"""Reading whole record batches out of a log's segments, verified before they leave.

A batch's CRC does not cover its base offset, length, leader epoch and magic byte. So these are held
against what surrounds them: the batch before (or the index entry, or the segment's base offset),
the batch after (or the next segment's base offset, or the log's end), and the log's leader epochs.
In a log without gaps no single changed byte passes, but for a leader epoch that fits as well (see
`epoch_check`).

Everything here runs in any thread, on a SegmentList that was taken once.
"""

from __future__ import annotations

import errno
from struct import Struct
from typing import Final, NamedTuple, cast

from millstream.protocol.batch import HEADER_SIZE, scan_batches
from millstream.storage.damage import DamagedLog
from millstream.storage.epochs import UNKNOWN_EPOCH, Epochs
from millstream.storage.segment import Segment
from millstream.storage.segment_list import SegmentList

_HEAD: Final = Struct(">qii")
_DELTA: Final = Struct(">i")
_BASE: Final = Struct(">q")
_LENGTH_END: Final = 12
_DELTA_AT: Final = 23
_LEAST_READ: Final = 4096
_NO_LIMIT: Final = 1 << 63
_MUCH_BYTES: Final = 64 * 1024
_MOST_TIMES: Final = 4
"""A slice is a view of what was read, which it keeps in memory: at most these times its own size, if much."""


class Slice(NamedTuple):
    """Whole batches of a log as they lie on disk."""

    data: memoryview
    first_offset: int
    """The base offset of the first batch; the offset asked for if there is none."""
    next_offset: int
    """The offset after the last record; the offset asked for if there is none."""


class OtherEpoch(DamagedLog):
    """A good batch whose leader epoch is not the one that the log knows for its offset."""

    def __init__(self, damaged: DamagedLog, epoch: int, base_offset: int, next_offset: int) -> None:
        super().__init__(damaged.message, damaged.segment, damaged.position)
        self.epoch = epoch
        self.base_offset = base_offset
        self.next_offset = next_offset


class Located(NamedTuple):
    """The batch that holds an offset: bytes of its segment from some position on, and where it is in them."""

    segment: Segment
    size: int
    """The segment's size when it was looked at."""
    position: int
    """Where in the segment `data` starts."""
    data: memoryview
    start: int
    """Where in `data` the batch starts."""
    least_offset: int
    """What the batch's base offset is at least."""


def corrupt(segment: Segment, position: int, what: str) -> DamagedLog:
    return DamagedLog(f"{segment.path} is damaged at byte {position}: {what}", segment, position)


def locate(
    segments: SegmentList, offset: int, want_bytes: int, *, use_index: bool = True, nowait: bool = False
) -> Located | None:
    """Find the first batch that ends at or after `offset`, and read on from there; None if there is none."""
    hint = segments.positions.get(offset)
    least_offset = offset
    indexed_last = -1
    if hint is not None and use_index:
        segment, position = hint
    else:
        segment = segments.floor(offset)
        position = 0
        if use_index:
            indexed_last, position = segment.lookup(offset, nowait=nowait)
            if not 0 <= position <= max(0, segment.size - HEADER_SIZE):  # the index is wrong: do without it
                indexed_last, position = -1, 0
        least_offset = segment.base_offset
    passed: tuple[Segment, int, int] | None = None
    want_bytes = max(want_bytes, _LEAST_READ) + HEADER_SIZE
    while True:
        size = segment.size
        if position >= size:
            following = segments.after(segment)
            if following is None:
                if passed is not None:
                    _check_passed(passed, nowait=nowait)
                return None
            segment, position, indexed_last = following, 0, -1
            least_offset = max(least_offset, segment.base_offset)
            continue
        data = segment.open(nowait=nowait).pread(min(want_bytes, size - position), position, nowait=nowait)
        start = 0
        while len(data) - start >= HEADER_SIZE:
            base, length, _ = _HEAD.unpack_from(data, start)
            last = base + _DELTA.unpack_from(data, start + _DELTA_AT)[0]
            if indexed_last >= 0:
                if last != indexed_last:  # the index is wrong: do without it
                    return locate(segments, offset, want_bytes, use_index=False, nowait=nowait)
                indexed_last, least_offset = -1, base
            following_at = start + length + _LENGTH_END
            if least_offset <= base <= last < offset:
                least_offset = last + 1
                passed = (segment, position + start, length + _LENGTH_END)
            elif not _is_passed(data, start, following_at, least_offset, offset):
                if base < least_offset or last < base:
                    what = f"offsets {base} to {last} come after {least_offset - 1}"
                    raise corrupt(segment, position + start, what)
                if base > offset and passed is not None:
                    _check_passed(passed, nowait=nowait)
                return Located(segment, size, position, data, start, least_offset)
            if length < HEADER_SIZE - _LENGTH_END or length > size - position - start - _LENGTH_END:
                raise corrupt(segment, position + start, f"a batch of {length} bytes")
            start = following_at
        if start == 0:
            if nowait and size - position >= HEADER_SIZE:
                raise BlockingIOError(errno.EAGAIN, "not in memory", segment.path)
            raise corrupt(segment, position, "less than a batch's header")
        position += start


def read_slice(
    segments: SegmentList,
    epochs: Epochs,
    offset: int,
    max_bytes: int,
    limit: int,
    end_offset: int,
    *,
    min_one: bool,
    nowait: bool,
) -> Slice:
    """Whole, verified batches from the one that holds `offset`, as `Log.read` promises."""
    found = locate(segments, offset, max_bytes, nowait=nowait)
    if found is None:
        return Slice(memoryview(b""), offset, offset)
    segment, size, position, data, start, least_offset = found
    length = _HEAD.unpack_from(data, start)[1] + _LENGTH_END
    if length > max_bytes:
        if not min_one:
            return Slice(memoryview(b""), offset, offset)
        max_bytes = length
    if length > size - position - start:
        raise corrupt(segment, position + start, f"a batch of {length} bytes is longer than the file")
    if length > len(data) - start:
        position, start = position + start, 0
        data = segment.open(nowait=nowait).pread(
            min(length + HEADER_SIZE, size - position), position, nowait=nowait
        )
        if length > len(data):
            if nowait:
                raise BlockingIOError(errno.EAGAIN, "not in memory", segment.path)
            raise corrupt(segment, position, "the file is shorter than it was")
    scan = scan_batches(data, start, min(start + max_bytes, len(data)), True, least_offset)
    if not scan.batches:
        raise corrupt(segment, position + start, scan.reason)
    stop, first_offset, next_offset = scan.position, scan.first_offset, scan.last_offset + 1
    is_beyond = first_offset >= limit
    if is_beyond:
        stop, next_offset = _cut(data, start, start + 1, _NO_LIMIT)  # is it, or does it only say so?
    elif next_offset > limit:
        stop, next_offset = _cut(data, start, stop, limit)
    upper = _least_offset_after(segments, segment, size, position, data, stop, end_offset, nowait=nowait)
    if next_offset > upper:
        last_at, expected = _last_batch(data, start, stop, least_offset)
        if _BASE.unpack_from(data, last_at)[0] != expected:  # it is not what follows that is wrong
            stop, next_offset = last_at, expected
            if stop == start:
                raise corrupt(segment, position + start, f"its offsets reach beyond {upper}, which follows")
    if is_beyond:
        return Slice(memoryview(b""), offset, offset)
    if epochs.latest != UNKNOWN_EPOCH:
        bad = _find_other_epoch(data, start, stop, epochs)
        if bad >= 0:
            if bad == start:
                what = corrupt(segment, position + start, "its leader epoch is not that of its offset")
                epoch = _HEAD.unpack_from(data, start)[2]
                raise OtherEpoch(what, epoch, first_offset, _cut(data, start, start + 1, limit)[1])
            stop, next_offset = _cut(data, start, bad, limit)
    segments.remember(next_offset, segment, position + stop)
    return Slice(_kept(data, start, stop), first_offset, next_offset)


def _kept(data: memoryview, start: int, stop: int) -> memoryview:
    """A part of what was read, copied where a little would keep much: nobody counts what is not answered.

    That is so where a limit, such as the first open transaction, comes soon, or in a buffer used before.
    """
    found = data[start:stop]
    held_bytes = len(cast("bytes", data.obj))
    if held_bytes > _MUCH_BYTES and held_bytes > _MOST_TIMES * (stop - start):
        return memoryview(bytes(found))
    return found


def _cut(data: memoryview, start: int, stop: int, limit: int) -> tuple[int, int]:
    """Where the batches with a base offset below `limit` end, and the offset after them."""
    next_offset = -1
    while start < stop:
        base, length, _ = _HEAD.unpack_from(data, start)
        if base >= limit:
            break
        next_offset = base + _DELTA.unpack_from(data, start + _DELTA_AT)[0] + 1
        start += length + _LENGTH_END
    return start, next_offset


def _least_offset_after(
    segments: SegmentList,
    segment: Segment,
    size: int,
    position: int,
    data: memoryview,
    stop: int,
    end_offset: int,
    *,
    nowait: bool,
) -> int:
    """The base offset of what follows `stop`: no record before it may have that offset."""
    if position + stop >= size:
        return segments.start_of_next(segment, end_offset)
    if len(data) - stop < _BASE.size:
        data, stop = segment.open(nowait=nowait).pread(_BASE.size, position + stop, nowait=nowait), 0
        if len(data) < _BASE.size:
            if nowait:
                raise BlockingIOError(errno.EAGAIN, "not in memory", segment.path)
            raise corrupt(segment, position + stop, "the file is shorter than it was")
    following: int = _BASE.unpack_from(data, stop)[0]
    return following


def _is_passed(data: memoryview, start: int, following_at: int, least_offset: int, offset: int) -> bool:
    """Whether what follows shows that a batch is damaged, and not the one that holds `offset`.

    What follows is believed unless the batch itself is sound: without a gap before it, and with the
    right CRC.
    """
    if not start < following_at <= len(data) - _BASE.size:
        return False
    following_base = _BASE.unpack_from(data, following_at)[0]
    if not least_offset < following_base <= offset:
        return False
    scan = scan_batches(data, start, following_at, True, least_offset)
    return scan.batches != 1 or scan.first_offset != least_offset


def _check_passed(passed: tuple[Segment, int, int], *, nowait: bool) -> None:
    """Before an offset is taken to be in a gap: raise if the batch before it is damaged, and may hold it."""
    segment, position, size = passed
    data = segment.open(nowait=nowait).pread(size, position, nowait=nowait)
    scan = scan_batches(data, 0, len(data), True)
    if scan.batches != 1:
        if nowait and len(data) < size:
            raise BlockingIOError(errno.EAGAIN, "not in memory", segment.path)
        raise corrupt(segment, position, scan.reason)


def _last_batch(data: memoryview, start: int, stop: int, least_offset: int) -> tuple[int, int]:
    """Where the last batch starts, and the base offset that it has if there is no gap before it."""
    while True:
        base, length, _ = _HEAD.unpack_from(data, start)
        if start + length + _LENGTH_END >= stop:
            return start, least_offset
        least_offset = base + _DELTA.unpack_from(data, start + _DELTA_AT)[0] + 1
        start += length + _LENGTH_END


def _find_other_epoch(data: memoryview, start: int, stop: int, epochs: Epochs) -> int:
    """Where the first batch starts whose leader epoch is not the one that the log knows; -1 if none."""
    unpack = _HEAD.unpack_from
    until = -1
    while start < stop:
        base, length, epoch = unpack(data, start)
        if base >= until:
            known, until = epochs.run_of(base + _DELTA.unpack_from(data, start + _DELTA_AT)[0])
        if epoch != known and (known != UNKNOWN_EPOCH or epoch < UNKNOWN_EPOCH):
            return start
        start += length + _LENGTH_END
    return -1
