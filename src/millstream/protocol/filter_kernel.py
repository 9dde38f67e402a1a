# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: SIM108 (a branch on cython.compiled is decided by the compiler, an expression is not)
"""Copies of batches without what compaction leaves out, in Cython's pure-Python mode.

kernel.py describes the bytes of batches and records. filter_kernel.pxd holds the C layout of the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.protocol.header import BAD_COUNT, BAD_RECORD, GOOD, BatchHeader
from millstream.protocol.kernel import read_header
from millstream.protocol.walk_kernel import CALLER, FULL, LAPSED, STAYS

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.string import memmove
else:
    from millstream.protocol.encode_kernel import put_varint, varint_size
    from millstream.protocol.kernel import (
        Cursor,
        advance,
        place,
        read_i32,
        read_i64,
        varint_end,
        varlong_end,
        wrapping_sum,
        zigzag,
    )
    from millstream.protocol.offset_map_kernel import OffsetMap, find_key
    from millstream.protocol.walk_kernel import OpenTransactions, checksum_of, judge, meet

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)

NOTHING, NAMELESS, HEADER = 0, 1, 2
"""What stays of a batch without records."""

# C integers, for loops that hold no Python object
_caller = cython.declare(cython.int, CALLER)
_lapsed = cython.declare(cython.int, LAPSED)
_stays = cython.declare(cython.int, STAYS)
_full = cython.declare(cython.int, FULL)
_good = cython.declare(cython.int, GOOD)
_bad_record = cython.declare(cython.int, BAD_RECORD)
_bad_count = cython.declare(cython.int, BAD_COUNT)
_nothing = cython.declare(cython.int, NOTHING)
_nameless = cython.declare(cython.int, NAMELESS)
_header = cython.declare(cython.int, HEADER)


class BatchFilter:
    """Copies batches, leaving out the records that a later one of the same key supersedes.

    What it keeps of a batch has the offsets, timestamps, codec, producer and sequences that it had.
    A batch of which nothing is left is dropped, unless `kept_offsets` or `upper_offset` ask for its
    header, or `begun_offsets` for a header that says nothing of its producer. Tombstones go when the
    batch's delete horizon has passed; a batch with tombstones and no horizon yet gets one (KIP-534): its
    base timestamp becomes the horizon.

    The output waits in `out` for its caller to write, together with the entries for the offset index
    and the time index of the segment that it makes, in their formats.
    """

    map: OffsetMap
    transactions: OpenTransactions
    cursor: Cursor
    kept_offsets: Any
    begun_offsets: Any
    upper_offset: int
    now_ms: int
    horizon_ms: int
    out: Any
    out_size: int
    scratch: Any
    index_out: Any
    index_size: int
    time_out: Any
    time_size: int
    base_offset: int
    index_interval_bytes: int
    unindexed_bytes: int
    size: int
    next_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    time_entry: int
    time_entry_offset: int
    stop: int
    kept: int
    has_tombstones: bool
    rebased: bool
    largest: int
    records_end: int
    batches_read: int
    records_read: int
    records_kept: int

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: OpenTransactions,
        kept_offsets: Any,
        begun_offsets: Any,
        upper_offset: cython.longlong,
        now_ms: cython.longlong,
        delete_retention_ms: cython.longlong,
        buffer_bytes: cython.Py_ssize_t,
    ) -> None:
        """`kept_offsets` and `begun_offsets` are memoryviews of int64, sorted: where batches end."""
        self.map = offsets
        self.transactions = transactions
        self.cursor = Cursor()
        self.kept_offsets = kept_offsets
        self.begun_offsets = begun_offsets
        self.upper_offset = upper_offset
        self.now_ms = now_ms
        self.horizon_ms = wrapping_sum(now_ms, delete_retention_ms)
        if self.horizon_ms < now_ms:
            self.horizon_ms = 0x7FFFFFFFFFFFFFFF
        entries: cython.Py_ssize_t = buffer_bytes // 61 + 2
        if cython.compiled:
            self.out = bytearray(buffer_bytes)
            self.index_out = bytearray(entries * 8)
            self.time_out = bytearray(entries * 12)
        else:
            self.out = memoryview(bytearray(buffer_bytes))
            self.index_out = memoryview(bytearray(entries * 8))
            self.time_out = memoryview(bytearray(entries * 12))
        self.records_read = self.records_kept = self.batches_read = 0
        self.begin_segment(0, 4096)

    def begin_segment(self, base_offset: cython.longlong, index_interval_bytes: cython.longlong) -> None:
        """Say that the output goes to a new segment."""
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.unindexed_bytes = self.size = 0
        self.max_timestamp = self.max_timestamp_offset = -1
        self.time_entry = self.time_entry_offset = -1
        self.taken()

    def begin(self, next_offset: cython.longlong) -> None:
        """Say that the batches given next have at least this offset."""
        self.next_offset = next_offset

    def output(self) -> tuple[memoryview, memoryview, memoryview]:
        """The batches, the offset index entries and the time index entries that wait."""
        return (
            memoryview(self.out)[: self.out_size],
            memoryview(self.index_out)[: self.index_size],
            memoryview(self.time_out)[: self.time_size],
        )

    def taken(self) -> None:
        """Say that the output was written."""
        self.out_size = self.index_size = self.time_size = 0

    def finish(self) -> None:
        """Add the last entry of the time index, which is the segment's largest timestamp."""
        _add_time_entry(self)

    def copy_batches(self, chunk: Buffer, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
        """Take the batches between two positions; the position at which it stopped.

        `stop` says why: GOOD at the end, FULL if the output must be written first, CALLER before a
        good batch that it leaves to its caller (compressed, the beginning or end of a transaction that
        may be an aborted one, a marker that may go, or larger than the output), or the kind of error
        of the batch there (TRUNCATED if it is not whole).
        """
        c: Cursor = self.cursor
        place(c, chunk, start, end)
        with cython.nogil:
            self.stop = _copy_batches(self, c, end)
        return c.position

    def select(
        self,
        payload: Buffer,
        start: cython.Py_ssize_t,
        header: BatchHeader,
        keeps_all: cython.bint,
        needs_horizon: cython.bint,
    ) -> int:
        """Choose among one batch's uncompressed records, which begin at `start`; an error kind.

        `kept` then says how many stay, and `selected` gives their bytes if that, or a new delete
        horizon, makes the batch another one; `horizon_ms` is then its base timestamp if `rebased`.
        """
        c: Cursor = self.cursor
        size: cython.Py_ssize_t = len(memoryview(payload))
        place(c, payload, start, size)
        count: cython.longlong = header.count
        room: cython.Py_ssize_t = 61 + 2 * (size - start) + 12 * max(0, min(count, size))
        if cython.compiled:
            if self.scratch is None or self.scratch.shape[0] < room:
                self.scratch = bytearray(room)
        else:
            self.scratch = memoryview(bytearray(room))
        base_offset: cython.longlong = header.base_offset
        base_timestamp: cython.longlong = header.base_timestamp
        max_timestamp: cython.longlong = header.max_timestamp
        attributes: cython.int = header.attributes
        raw: cython.p_uchar
        if cython.compiled:
            raw = cython.address(self.scratch[0])
        else:
            raw = self.scratch
        error: cython.int
        with cython.nogil:
            error = _select(
                self,
                c,
                raw,
                61,
                count,
                base_offset,
                base_timestamp,
                max_timestamp,
                attributes,
                keeps_all,
                needs_horizon,
            )
        return error

    def selected(self) -> memoryview:
        """The records that `select` kept, behind room for a header."""
        return memoryview(self.scratch)[: self.records_end]

    def emit(self, batch: Buffer) -> bool:
        """Add a whole batch to the output; false if the output must be written first."""
        view = memoryview(batch)
        size: cython.Py_ssize_t = len(view)
        if size > len(self.out) - self.out_size or self.index_size + 8 > len(self.index_out):
            return False
        memoryview(self.out)[self.out_size : self.out_size + size] = view
        header = read_header(batch)
        self.note(header.last_offset, header.max_timestamp, size)
        self.out_size += size
        return True

    def note(
        self, last_offset: cython.longlong, max_timestamp: cython.longlong, size: cython.Py_ssize_t
    ) -> None:
        """Take a batch that is the next of the segment into the indexes' entries."""
        _note(self, last_offset, max_timestamp, size)

    def keeps_empty(self, last_offset: cython.longlong) -> int:
        """What stays of a batch that ends here if it has no records: NOTHING, NAMELESS or its HEADER."""
        return _keeps_empty(self, last_offset)

    def passed(self, last_offset: cython.longlong, records: cython.longlong, kept: cython.longlong) -> None:
        """Say that a batch left to the caller was seen to, and how many of its records stay."""
        self.next_offset = last_offset + 1
        self.batches_read += 1
        self.records_read += records
        self.records_kept += kept


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _store(
    raw: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong, size: cython.int
) -> cython.void:
    """Write an integer of `size` bytes, big-endian."""
    i: cython.int
    for i in range(size):
        raw[p + i] = (value >> (8 * (size - 1 - i))) & 0xFF


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    target: cython.p_uchar,
    at: cython.Py_ssize_t,
    source: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memmove(target + at, source + start, size)
    else:
        target[at : at + size] = bytes(source[start : start + size])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_listed(f: BatchFilter, last_offset: cython.longlong, is_begun: cython.bint) -> cython.bint:
    """Whether a batch is among those that were asked for: with `is_begun` among the first of epochs."""
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = f.begun_offsets.shape[0] if is_begun else f.kept_offsets.shape[0]
    found: cython.longlong
    while low < high:
        middle: cython.Py_ssize_t = (low + high) // 2
        found = f.begun_offsets[middle] if is_begun else f.kept_offsets[middle]
        if found == last_offset:
            return True
        if found < last_offset:
            low = middle + 1
        else:
            high = middle
    return False


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _keeps_empty(f: BatchFilter, last_offset: cython.longlong) -> cython.int:
    if last_offset + 1 == f.upper_offset or _is_listed(f, last_offset, False):
        return _header
    return _nameless if _is_listed(f, last_offset, True) else _nothing


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_time_entry(f: BatchFilter) -> cython.void:
    relative: cython.longlong = f.max_timestamp_offset - f.base_offset
    if f.max_timestamp > f.time_entry and (f.time_entry == -1 or relative > f.time_entry_offset):
        raw: cython.p_uchar
        if cython.compiled:
            raw = cython.address(f.time_out[0])
        else:
            raw = f.time_out
        _store(raw, f.time_size, f.max_timestamp, 8)
        _store(raw, f.time_size + 8, relative, 4)
        f.time_size += 12
        f.time_entry = f.max_timestamp
        f.time_entry_offset = relative


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note(
    f: BatchFilter, last_offset: cython.longlong, max_timestamp: cython.longlong, size: cython.Py_ssize_t
) -> cython.void:
    """Take the batch that is written at `f.size` into the indexes, as an append would."""
    if max_timestamp > f.max_timestamp:
        f.max_timestamp = max_timestamp
        f.max_timestamp_offset = last_offset
    if f.unindexed_bytes > f.index_interval_bytes:
        raw: cython.p_uchar
        if cython.compiled:
            raw = cython.address(f.index_out[0])
        else:
            raw = f.index_out
        _store(raw, f.index_size, last_offset - f.base_offset, 4)
        _store(raw, f.index_size + 4, f.size, 4)
        f.index_size += 8
        _add_time_entry(f)
        f.unindexed_bytes = 0
    f.unindexed_bytes += size
    f.size += size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _keeps(f: BatchFilter, c: Cursor, offset: cython.longlong, has_passed: cython.bint) -> cython.bint:
    """Whether the record that the cursor has just passed stays; `has_passed` speaks of the horizon."""
    if offset > f.map.latest_offset:
        return True
    if c.key_length < 0 or (c.value_length < 0 and has_passed):
        return False
    return offset >= find_key(f.map, c.raw, c.key_start, c.key_length)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _select(
    f: BatchFilter,
    c: Cursor,
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    attributes: cython.int,
    keeps_all: cython.bint,
    needs_horizon: cython.bint,
) -> cython.int:
    """Copy the records under the cursor that stay to `out`, with a new horizon if they need one.

    `out` has room for twice the records and 12 bytes for each. The records' bytes stay as they are
    while the base timestamp does.
    """
    has_horizon: cython.bint = attributes & 64 != 0
    has_passed: cython.bint = has_horizon and base_timestamp <= f.now_ms
    is_log_time: cython.bint = attributes & 8 != 0
    p: cython.Py_ssize_t = at
    run: cython.Py_ssize_t = c.position
    _: cython.longlong
    f.kept = 0
    f.has_tombstones = False
    f.largest = -1
    for _ in range(count):
        start: cython.Py_ssize_t = c.position
        if start >= c.end:
            return _bad_count
        if not advance(c):
            return _bad_record
        if keeps_all or _keeps(f, c, base_offset + c.offset_delta, has_passed):
            timestamp: cython.longlong = wrapping_sum(base_timestamp, c.timestamp_delta)
            if f.kept == 0 or timestamp > f.largest:
                f.largest = timestamp
            f.kept += 1
            if c.value_length < 0:
                f.has_tombstones = True
        else:
            _copy(out, p, c.raw, run, start - run)
            p += start - run
            run = c.position
    if c.position != c.end:
        return _bad_count
    if is_log_time:
        f.largest = max_timestamp
    f.rebased = not has_horizon and f.kept > 0 and (needs_horizon or (f.has_tombstones and not keeps_all))
    if f.kept < count or f.rebased:
        _copy(out, p, c.raw, run, c.end - run)
        p += c.end - run
    if f.rebased:
        p = _rebase(f, out, at, p, base_timestamp, is_log_time, max_timestamp)
    f.records_end = p
    return _good


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rebase(
    f: BatchFilter,
    out: cython.p_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    is_log_time: cython.bint,
    log_time: cython.longlong,
) -> cython.Py_ssize_t:
    """Write good records' timestamps anew, relative to the horizon; where the records then end."""
    p: cython.Py_ssize_t = end
    source: cython.Py_ssize_t = start
    while source < end:
        body: cython.Py_ssize_t = varint_end(out, source, end)
        length: cython.longlong = zigzag(out, source, body)
        rest: cython.Py_ssize_t = varlong_end(out, body + 1, end)
        delta: cython.longlong = wrapping_sum(base_timestamp, zigzag(out, body + 1, rest))
        delta = wrapping_sum(log_time if is_log_time else delta, -f.horizon_ms)
        p = put_varint(out, p, length - (rest - body - 1) + varint_size(delta))
        out[p] = out[body]
        p = put_varint(out, p + 1, delta)
        _copy(out, p, out, rest, body + length - rest)
        p += body + length - rest
        source = body + length
    _copy(out, start, out, end, p - end)
    return start + p - end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _seal(f: BatchFilter, out: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
    """Finish the header of a batch whose records changed: it lies there as it was before."""
    _store(out, at + 8, size - 12, 4)
    if f.rebased:
        out[at + 22] |= 64
        _store(out, at + 27, f.horizon_ms, 8)
    _store(out, at + 35, f.largest, 8)
    _store(out, at + 57, f.kept, 4)
    _store(out, at + 17, checksum_of(f.map.checksum, out, at + 21, at + size), 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _seal_empty(
    f: BatchFilter, out: cython.p_uchar, at: cython.Py_ssize_t, is_nameless: cython.bint
) -> cython.void:
    """Finish the header of a batch without records: offsets, time and, if it is to, the producer stay."""
    _store(out, at + 8, 49, 4)
    out[at + 22] &= 0xB8
    if is_nameless:
        out[at + 22] &= 0x8F
        _store(out, at + 43, -1, 8)
        _store(out, at + 51, -1, 2)
        _store(out, at + 53, -1, 4)
    _store(out, at + 27, -1, 8)
    _store(out, at + 57, 0, 4)
    _store(out, at + 17, checksum_of(f.map.checksum, out, at + 21, at + 61), 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_batches(f: BatchFilter, c: Cursor, end: cython.Py_ssize_t) -> cython.int:
    raw: cython.p_const_uchar = c.raw
    out: cython.p_uchar
    if cython.compiled:
        out = cython.address(f.out[0])
    else:
        out = f.out
    capacity: cython.Py_ssize_t = f.out.shape[0]
    p: cython.Py_ssize_t = c.position
    error: cython.int = _good
    while p < end:
        c.position = p
        error = judge(f.map.checksum, raw, p, end, f.next_offset)
        if error != _good:
            break
        size: cython.Py_ssize_t = read_i32(raw, p + 8) + 12
        count: cython.longlong = read_i32(raw, p + 57)
        room: cython.longlong = 2 * size + 12 * count
        if room > capacity:
            error = _caller
            break
        if room > capacity - f.out_size:
            error = _full
            break
        kind: cython.int = meet(f.transactions, c, p, p + size, f.now_ms)
        if kind == _caller:
            error = kind
            c.position = p
            break
        base_offset: cython.longlong = read_i64(raw, p)
        last_offset: cython.longlong = base_offset + read_i32(raw, p + 23)
        max_timestamp: cython.longlong = read_i64(raw, p + 35)
        at: cython.Py_ssize_t = f.out_size
        if kind == _lapsed:
            f.kept = 0
        elif kind == _stays:
            f.kept = count
            f.rebased = False
        else:
            c.position = p + 61
            c.end = p + size
            error = _select(
                f,
                c,
                out,
                at + 61,
                count,
                base_offset,
                read_i64(raw, p + 27),
                max_timestamp,
                raw[p + 22],
                False,
                False,
            )
            if error != _good:
                c.position = p
                break
        written: cython.Py_ssize_t = 0
        if f.kept == 0:
            stays: cython.int = _keeps_empty(f, last_offset)
            if stays != _nothing:
                _copy(out, at, raw, p, 61)
                _seal_empty(f, out, at, stays == _nameless)
                written = 61
        elif f.kept == count and not f.rebased:
            _copy(out, at, raw, p, size)
            written = size
        else:
            _copy(out, at, raw, p, 61)
            written = f.records_end - at
            _seal(f, out, at, written)
            max_timestamp = f.largest
        if written:
            _note(f, last_offset, max_timestamp, written)
            f.out_size += written
        f.batches_read += 1
        f.records_read += count
        f.records_kept += f.kept
        f.next_offset = last_offset + 1
        p += size
        c.position = p
    c.end = end
    return error
