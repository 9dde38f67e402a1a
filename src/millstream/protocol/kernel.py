# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505, SIM108 (a branch on cython.compiled is decided by the compiler, an expression is not)
"""The loops over record batches (format v2), in Cython's pure-Python mode.

The same source runs compiled, where a C compiler was at hand when the package was built, and
interpreted, where not. kernel.pxd holds the C layout of the classes. It is one long module because the
loops share small functions that the C compiler inlines, and because it must be compiled as a whole or not
at all. Nothing here does I/O or keeps state, and no input, however hostile, is read beyond its end: every
length is compared with what remains before it is used.

A batch, big-endian, its CRC-32C covering everything from the attributes on:

    0  base_offset i64        21  attributes i16           43  producer_id i64
    8  length i32             23  last_offset_delta i32    51  producer_epoch i16
    12 leader_epoch i32       27  base_timestamp i64       53  base_sequence i32
    16 magic i8               35  max_timestamp i64        57  count i32
    17 crc u32                                             61  records

A record; `varint` is zigzag, at most 32 bits, `varlong` at most 64:

    length varint, attributes i8, timestamp_delta varlong, offset_delta varint,
    key length varint (-1 is null), key, value length varint (-1 is null), value,
    count of headers varint, and for each: key length varint, key, value length varint, value
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from millstream.protocol.header import (
    BAD_COUNT,
    BAD_CRC,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_OFFSET_DELTA,
    BAD_RECORD,
    BatchHeader,
    Scan,
    Walk,
)
from millstream.protocol.header import GOOD as GOOD
from millstream.protocol.header import TRUNCATED as TRUNCATED

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.stdlib import calloc, free, realloc
    from cython.cimports.libc.string import memcpy, memmove

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)

_new_tuple: Any = tuple.__new__  # a named tuple's own constructor costs three times as much

CALLER = 100
"""A walk over batches stopped before one that its caller must see to."""
FULL = 101
"""A walk over batches stopped for want of room."""

KEPT = 1
"""Batches of a transaction were met, and it was not aborted."""
ABORTED = 2
"""Batches of a transaction were met, and it was aborted."""
ABORTING = 3
"""No batch was met yet of the transaction that comes, which was aborted."""

# the same kinds of error as C integers, for loops that hold no Python object
_caller = cython.declare(cython.int, CALLER)
_counts = cython.declare(cython.int, 0)
_lapsed = cython.declare(cython.int, 1)
_stays = cython.declare(cython.int, 2)
_kept = cython.declare(cython.int, KEPT)
_aborted = cython.declare(cython.int, ABORTED)
_full = cython.declare(cython.int, FULL)
_truncated = cython.declare(cython.int, TRUNCATED)
_bad_length = cython.declare(cython.int, BAD_LENGTH)
_bad_magic = cython.declare(cython.int, BAD_MAGIC)
_bad_crc = cython.declare(cython.int, BAD_CRC)
_bad_offset = cython.declare(cython.int, BAD_OFFSET)
_good = cython.declare(cython.int, GOOD)
_largest_offset = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFE)
_bad_record = cython.declare(cython.int, BAD_RECORD)
_bad_count = cython.declare(cython.int, BAD_COUNT)
_bad_offset_delta = cython.declare(cython.int, BAD_OFFSET_DELTA)

# Another thread may keep the interpreter for milliseconds once it has it, so only long loops let it go.
_long_bytes = cython.declare(cython.Py_ssize_t, 256 * 1024)


class Record:
    """One record. Headers are pairs of a string and bytes or None, in order, names may repeat."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def __init__(
        self,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp: int = -1,
        offset: int = -1,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamp = timestamp
        self.offset = offset

    def _values(self) -> tuple[Any, ...]:
        return (self.value, self.key, self.headers, self.timestamp, self.offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __reduce__(self) -> Any:
        return Record, self._values()

    def __repr__(self) -> str:
        return (
            f"Record(value={self.value!r}, key={self.key!r}, headers={self.headers!r}, "
            f"timestamp={self.timestamp}, offset={self.offset})"
        )


class Cursor:
    """A place among a batch's uncompressed records, the parts of the record before it, and a tally."""

    data: Any
    raw: Any
    position: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    headers_start: int
    header_count: int
    index: int
    rows: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    headers: int
    min_timestamp: int
    max_timestamp: int
    max_timestamp_index: int


@cython.cfunc
def _cursor(payload: object, start: cython.Py_ssize_t) -> Cursor:
    c: Cursor = Cursor()
    if cython.compiled:
        c.data = payload
        c.raw = cython.address(c.data[0])
        c.end = c.data.shape[0]
    else:
        c.raw = memoryview(payload)  # type: ignore[arg-type]
        c.end = len(c.raw)
    if start < 0 or start > c.end:
        raise ValueError(f"position {start} is not within {c.end} bytes")
    c.position = start
    return c


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _i16(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.int:
    value: cython.int = (raw[p] << 8) | raw[p + 1]
    return value - 0x10000 if value >= 0x8000 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _u32(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = (raw[p] << 8) | raw[p + 1]
    return (high << 16) + ((raw[p + 2] << 8) | raw[p + 3])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _i32(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = _i16(raw, p)
    return high * 0x10000 + ((raw[p + 2] << 8) | raw[p + 3])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _i64(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.longlong:
    return _i32(raw, p) * 0x10000 * 0x10000 + _u32(raw, p + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sum(left: cython.longlong, right: cython.longlong) -> cython.longlong:
    """A sum that wraps as 64-bit integers do."""
    if cython.compiled:
        return cython.cast(
            cython.longlong, cython.cast(cython.ulonglong, left) + cython.cast(cython.ulonglong, right)
        )
    else:
        return (left + right + 0x8000000000000000) % 0x10000000000000000 - 0x8000000000000000


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_end(raw: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the varint at `p` ends; -1 if it passes `end` or has more than 32 bits."""
    if p < end and raw[p] < 0x80:
        return p + 1
    i: cython.Py_ssize_t
    for i in range(1, 5):
        if p + i >= end:
            return -1
        if raw[p + i] < 0x80:
            return -1 if i == 4 and raw[p + i] > 0x0F else p + i + 1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong_end(
    raw: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the varlong at `p` ends; -1 if it passes `end` or has more than 64 bits."""
    i: cython.Py_ssize_t
    for i in range(10):
        if p + i >= end:
            return -1
        if raw[p + i] < 0x80:
            return -1 if i == 9 and raw[p + i] > 0x01 else p + i + 1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(raw: cython.p_const_uchar, p: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.longlong:
    """The value of the varint or varlong between `p` and `stop`."""
    value: cython.ulonglong = raw[p] & 0x7F
    shift: cython.int = 7
    p += 1
    while p < stop:
        value |= cython.cast(cython.ulonglong, raw[p] & 0x7F) << shift
        shift += 7
        p += 1
    if cython.compiled:
        return cython.cast(cython.longlong, (value >> 1) ^ (0 - (value & 1)))
    else:
        return (value >> 1) ^ -(value & 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _advance(c: Cursor) -> cython.bint:
    """Take the next record's parts apart; false if it is not well formed."""
    raw: cython.p_const_uchar = c.raw
    p: cython.Py_ssize_t = c.position
    end: cython.Py_ssize_t = c.end
    stop: cython.Py_ssize_t = _varint_end(raw, p, end)
    i: cython.Py_ssize_t
    if stop < 0:
        return False
    length: cython.longlong = _zigzag(raw, p, stop)
    if length < 1 or length > end - stop:
        return False
    end = stop + length
    p = stop + 1
    stop = _varlong_end(raw, p, end)
    if stop < 0:
        return False
    c.timestamp_delta = _zigzag(raw, p, stop)
    p = stop
    stop = _varint_end(raw, p, end)
    if stop < 0:
        return False
    c.offset_delta = _zigzag(raw, p, stop)
    p = stop
    stop = _varint_end(raw, p, end)
    if stop < 0:
        return False
    length = _zigzag(raw, p, stop)
    if length < -1 or length > end - stop:
        return False
    c.key_start = stop
    c.key_length = length
    p = stop + length if length > 0 else stop
    stop = _varint_end(raw, p, end)
    if stop < 0:
        return False
    length = _zigzag(raw, p, stop)
    if length < -1 or length > end - stop:
        return False
    c.value_start = stop
    c.value_length = length
    p = stop + length if length > 0 else stop
    stop = _varint_end(raw, p, end)
    if stop < 0:
        return False
    length = _zigzag(raw, p, stop)
    if length < 0 or length > end - stop:
        return False
    c.headers_start = stop
    c.header_count = length
    p = stop
    for i in range(2 * c.header_count):
        stop = _varint_end(raw, p, end)
        if stop < 0:
            return False
        length = _zigzag(raw, p, stop)
        if length > end - stop or length < -(i & 1):
            return False
        p = stop + length if length > 0 else stop
    c.position = end
    return p == end


@cython.cfunc
@cython.inline
def _bytes(raw: cython.p_const_uchar, start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return raw[start:stop]
    else:
        return bytes(raw[start:stop])


@cython.cfunc
def _headers(c: Cursor) -> tuple:  # type: ignore[type-arg]
    """The headers of the record that the cursor has just passed."""
    raw: cython.p_const_uchar = c.raw
    p: cython.Py_ssize_t = c.headers_start
    end: cython.Py_ssize_t = c.end
    found = []
    for _ in range(c.header_count):
        stop: cython.Py_ssize_t = _varint_end(raw, p, end)
        length: cython.Py_ssize_t = _zigzag(raw, p, stop)
        name = _bytes(raw, stop, stop + length).decode("utf-8", "replace")
        p = stop + length
        stop = _varint_end(raw, p, end)
        length = _zigzag(raw, p, stop)
        if length < 0:
            found.append((name, None))
            p = stop
        else:
            found.append((name, _bytes(raw, stop, stop + length)))
            p = stop + length
    return tuple(found)


@cython.cfunc
@cython.inline
def _header(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> object:
    magic: cython.int = raw[p + 16]
    return _new_tuple(
        BatchHeader,
        (
            _i64(raw, p),
            _i32(raw, p + 8) + 12,
            _i32(raw, p + 12),
            magic - 256 if magic > 127 else magic,
            _u32(raw, p + 17),
            _i16(raw, p + 21),
            _i32(raw, p + 23),
            _i64(raw, p + 27),
            _i64(raw, p + 35),
            _i64(raw, p + 43),
            _i16(raw, p + 51),
            _i32(raw, p + 53),
            _i32(raw, p + 57),
        ),
    )


def read_header(buf: Buffer, position: cython.Py_ssize_t = 0) -> BatchHeader:
    """The header at `position`, unjudged. ValueError if fewer than 61 bytes are there."""
    data = cython.declare(cython.const[cython.uchar][::1], buf)
    if position < 0 or len(data) - position < 61:
        raise ValueError(f"no batch header in {len(data)} bytes at {position}")
    if cython.compiled:
        return _header(cython.address(data[0]), position)
    else:
        return _header(memoryview(buf), position)


def scan_batches(
    buf: Buffer,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    verify_crc: cython.bint = True,
    next_offset: cython.longlong = -1,
) -> Scan:
    """Walk whole batches between two positions and stop at the first that is not good.

    A batch is good if it is whole, of magic 2, matches its CRC, and its offsets are not below
    `next_offset` (if given) nor below those of the batch before it.
    """
    data = cython.declare(cython.const[cython.uchar][::1], buf)
    if start < 0 or end > len(data) or start > end:
        raise ValueError(f"positions {start} to {end} are not within {len(data)} bytes")
    raw: cython.p_const_uchar
    if cython.compiled:
        raw = cython.address(data[0])
    else:
        raw = memoryview(buf)
    view = memoryview(buf)
    position: cython.Py_ssize_t = start
    error: cython.int = GOOD
    batches: cython.longlong = 0
    first: cython.longlong = -1
    last: cython.longlong = next_offset - 1
    largest: cython.longlong = 0x7FFFFFFFFFFFFFFE
    max_timestamp: cython.longlong = -1
    max_timestamp_offset: cython.longlong = -1
    if next_offset < 0:
        last = -1
    while position < end:
        if end - position < 17:
            error = TRUNCATED
            break
        size: cython.longlong = _i32(raw, position + 8) + 12
        if size < 61:
            error = BAD_LENGTH
            break
        if raw[position + 16] != 2:
            error = BAD_MAGIC
            break
        if size > end - position:
            error = TRUNCATED
            break
        base: cython.longlong = _i64(raw, position)
        delta: cython.longlong = _i32(raw, position + 23)
        if base <= last or delta < 0 or base > largest - delta:
            error = BAD_OFFSET
            break
        if verify_crc and crc32c(view[position + 21 : position + size], 0, 0) != _u32(raw, position + 17):
            error = BAD_CRC
            break
        last = base + delta
        timestamp: cython.longlong = _i64(raw, position + 35)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            max_timestamp_offset = last
        if batches == 0:
            first = base
        batches += 1
        position += size
    if batches == 0:
        last = -1
    return _new_tuple(Scan, (position, error, batches, first, last, max_timestamp, max_timestamp_offset))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk(
    c: Cursor,
    count: cython.longlong,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    from_offset: cython.longlong,
    is_consecutive: cython.bint,
) -> cython.int:
    """Pass all records, which must be `count` well-formed ones, and tally those from `from_offset` on."""
    error: cython.int = _good
    index: cython.longlong = 0
    rows: cython.Py_ssize_t = 0
    key_bytes: cython.Py_ssize_t = 0
    value_bytes: cython.Py_ssize_t = 0
    null_keys: cython.Py_ssize_t = 0
    null_values: cython.Py_ssize_t = 0
    headers: cython.Py_ssize_t = 0
    lowest: cython.longlong = -1
    highest: cython.longlong = -1
    highest_index: cython.longlong = 0
    while index < count:
        if c.position >= c.end:
            error = _bad_count
            break
        if not _advance(c):
            error = _bad_record
            break
        if is_consecutive and c.offset_delta != index:
            error = _bad_offset_delta
            break
        if _sum(base_offset, c.offset_delta) >= from_offset:
            timestamp: cython.longlong = _sum(base_timestamp, c.timestamp_delta)
            if rows == 0 or timestamp > highest:
                highest = timestamp
                highest_index = index
            if rows == 0 or timestamp < lowest:
                lowest = timestamp
            rows += 1
            headers += c.header_count
            if c.key_length < 0:
                null_keys += 1
            else:
                key_bytes += c.key_length
            if c.value_length < 0:
                null_values += 1
            else:
                value_bytes += c.value_length
        index += 1
    if error == _good and c.position != c.end:
        error = _bad_count
    c.index = index
    c.rows = rows
    c.key_bytes = key_bytes
    c.value_bytes = value_bytes
    c.null_keys = null_keys
    c.null_values = null_values
    c.headers = headers
    c.min_timestamp = lowest
    c.max_timestamp = highest
    c.max_timestamp_index = highest_index
    return error


def validate_records(
    payload: Buffer, count: cython.longlong, base_timestamp: cython.longlong, start: cython.Py_ssize_t = 0
) -> Walk:
    """Walk the uncompressed records from `start` to the end, which must be `count` consecutive ones."""
    c: Cursor = _cursor(payload, start)
    error: cython.int
    if c.end - start < _long_bytes:
        error = _walk(c, count, 0, base_timestamp, 0, True)
    else:
        with cython.nogil:
            error = _walk(c, count, 0, base_timestamp, 0, True)
    bad_index: cython.longlong = -1 if error == _good else c.index
    return _new_tuple(
        Walk, (error, bad_index, c.min_timestamp, c.max_timestamp, c.max_timestamp_index, c.null_keys)
    )


def keyless_records(payload: Buffer, start: cython.Py_ssize_t, count: cython.longlong) -> list[int]:
    """The indexes of the records without a key, among records that validate_records found good."""
    c: Cursor = _cursor(payload, start)
    index: cython.longlong
    found = []
    for index in range(count):
        if not _advance(c):
            break
        if c.key_length < 0:
            found.append(index)
    return found


def mistimed_records(
    payload: Buffer,
    start: cython.Py_ssize_t,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    earliest: cython.longlong,
    latest: cython.longlong,
) -> list[int]:
    """The indexes of the records whose timestamp is neither -1 nor within the two, among good ones."""
    c: Cursor = _cursor(payload, start)
    index: cython.longlong
    found = []
    for index in range(count):
        if not _advance(c):
            break
        timestamp: cython.longlong = _sum(base_timestamp, c.timestamp_delta)
        if timestamp != -1 and (timestamp < earliest or timestamp > latest):
            found.append(index)
    return found


def append_records(
    records: list[Record],
    payload: Buffer,
    header: BatchHeader,
    from_offset: cython.longlong,
    start: cython.Py_ssize_t,
) -> int:
    """Append the batch's records that are not before `from_offset`; an error kind, GOOD if all is well.

    `payload` holds the uncompressed records from `start` on. Offsets may have gaps, as compaction
    leaves them.
    """
    c: Cursor = _cursor(payload, start)
    index: cython.longlong = 0
    count: cython.longlong = header.count
    base_offset: cython.longlong = header.base_offset
    base_timestamp: cython.longlong = header.base_timestamp
    max_timestamp: cython.longlong = header.max_timestamp
    is_log_append_time: cython.bint = header.attributes & 8 != 0
    while index < count:
        if c.position >= c.end:
            return BAD_COUNT
        if not _advance(c):
            return BAD_RECORD
        index += 1
        offset: cython.longlong = _sum(base_offset, c.offset_delta)
        if offset < from_offset:
            continue
        record: Record = Record.__new__(Record)
        record.offset = offset
        record.timestamp = max_timestamp if is_log_append_time else _sum(base_timestamp, c.timestamp_delta)
        record.key = None if c.key_length < 0 else _bytes(c.raw, c.key_start, c.key_start + c.key_length)
        record.value = (
            None if c.value_length < 0 else _bytes(c.raw, c.value_start, c.value_start + c.value_length)
        )
        record.headers = () if c.header_count == 0 else _headers(c)
        records.append(record)
    return GOOD if c.position == c.end else BAD_COUNT


def measure_records(
    payload: Buffer, header: BatchHeader, start: cython.Py_ssize_t, from_offset: cython.longlong
) -> tuple[int, int, int, int, int, int, int]:
    """What a batch adds to columns, from `from_offset` on.

    An error kind, and if that is GOOD the number of rows, the bytes of keys, null keys, the bytes of
    values, null values, and headers.
    """
    c: Cursor = _cursor(payload, start)
    count: cython.longlong = header.count
    base_offset: cython.longlong = header.base_offset
    error: cython.int
    if c.end - start < _long_bytes:
        error = _walk(c, count, base_offset, 0, from_offset, False)
    else:
        with cython.nogil:
            error = _walk(c, count, base_offset, 0, from_offset, False)
    return error, c.rows, c.key_bytes, c.null_keys, c.value_bytes, c.null_values, c.headers


class ColumnWriter:
    """Fills columns, batch after batch, with what measure_records found good and counted.

    The buffers are the caller's and zeroed: int64 offsets and timestamps; for keys and values the
    bytes, int32 offsets into them (one more than rows) and a bitmap whose set bits, lowest first, are
    the rows that are not null; the same for headers' names and values, with int32 offsets by row. The
    records must not change between the two calls.
    """

    rows: int
    headers: int
    with_headers: bool
    offsets: Any
    timestamps: Any
    timestamp_types: Any
    key_data: Any
    key_offsets: Any
    key_validity: Any
    value_data: Any
    value_offsets: Any
    value_validity: Any
    header_offsets: Any
    name_data: Any
    name_offsets: Any
    header_data: Any
    header_data_offsets: Any
    header_validity: Any

    def __init__(self, columns: Any) -> None:
        self.rows = 0
        self.headers = 0
        self.offsets = columns.offsets
        self.timestamps = columns.timestamps
        self.timestamp_types = columns.timestamp_types
        self.key_data = columns.keys.data
        self.key_offsets = columns.keys.offsets
        self.key_validity = columns.keys.validity
        self.value_data = columns.values.data
        self.value_offsets = columns.values.offsets
        self.value_validity = columns.values.validity
        self.with_headers = columns.headers is not None
        if columns.headers is not None:
            self.header_offsets = columns.headers.offsets
            self.name_data = columns.headers.names.data
            self.name_offsets = columns.headers.names.offsets
            self.header_data = columns.headers.values.data
            self.header_data_offsets = columns.headers.values.offsets
            self.header_validity = columns.headers.values.validity

    def fill(
        self, payload: Buffer, header: BatchHeader, start: cython.Py_ssize_t, from_offset: cython.longlong
    ) -> None:
        """Add a batch's records, from `from_offset` on."""
        c: Cursor = _cursor(payload, start)
        count: cython.longlong = header.count
        base_offset: cython.longlong = header.base_offset
        base_timestamp: cython.longlong = header.base_timestamp
        log_time: cython.longlong = header.max_timestamp
        is_log_time: cython.bint = header.attributes & 8 != 0
        if c.end - start < _long_bytes:
            _fill(self, c, count, base_offset, base_timestamp, is_log_time, log_time, from_offset)
        else:
            with cython.nogil:
                _fill(self, c, count, base_offset, base_timestamp, is_log_time, log_time, from_offset)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    w: ColumnWriter,
    c: Cursor,
    count: cython.longlong,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    is_log_time: cython.bint,
    log_time: cython.longlong,
    from_offset: cython.longlong,
) -> cython.void:
    """Add the records under the cursor. It ends early if they are not those that were measured."""
    raw: cython.p_const_uchar = c.raw
    row: cython.Py_ssize_t = w.rows
    key_end: cython.Py_ssize_t = w.key_offsets[row]
    value_end: cython.Py_ssize_t = w.value_offsets[row]
    capacity: cython.Py_ssize_t = w.offsets.shape[0]
    key_room: cython.Py_ssize_t = w.key_data.shape[0]
    value_room: cython.Py_ssize_t = w.value_data.shape[0]
    size: cython.Py_ssize_t
    _: cython.longlong
    for _ in range(count):
        if not _advance(c):
            break
        offset: cython.longlong = _sum(base_offset, c.offset_delta)
        if offset < from_offset:
            continue
        if row >= capacity or key_end + c.key_length > key_room or value_end + c.value_length > value_room:
            break
        w.offsets[row] = offset
        w.timestamps[row] = log_time if is_log_time else _sum(base_timestamp, c.timestamp_delta)
        w.timestamp_types[row] = is_log_time
        size = c.key_length
        if size >= 0:
            w.key_validity[row >> 3] |= 1 << (row & 7)
            if cython.compiled:
                memcpy(cython.address(w.key_data[key_end]), raw + c.key_start, size)
            else:
                w.key_data[key_end : key_end + size] = raw[c.key_start : c.key_start + size]
            key_end += size
        size = c.value_length
        if size >= 0:
            w.value_validity[row >> 3] |= 1 << (row & 7)
            if cython.compiled:
                memcpy(cython.address(w.value_data[value_end]), raw + c.value_start, size)
            else:
                w.value_data[value_end : value_end + size] = raw[c.value_start : c.value_start + size]
            value_end += size
        if w.with_headers:
            _fill_headers(w, c, row)
        row += 1
        w.key_offsets[row] = key_end
        w.value_offsets[row] = value_end
    w.rows = row


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_headers(w: ColumnWriter, c: Cursor, row: cython.Py_ssize_t) -> cython.void:
    """Add the headers of the record that the cursor has just passed."""
    raw: cython.p_const_uchar = c.raw
    p: cython.Py_ssize_t = c.headers_start
    filled: cython.Py_ssize_t = w.headers
    end: cython.Py_ssize_t
    _: cython.Py_ssize_t
    name_room: cython.Py_ssize_t = w.name_data.shape[0]
    data_room: cython.Py_ssize_t = w.header_data.shape[0]
    capacity: cython.Py_ssize_t = w.name_offsets.shape[0] - 1
    for _ in range(c.header_count):
        stop: cython.Py_ssize_t = _varint_end(raw, p, c.end)
        size: cython.Py_ssize_t = _zigzag(raw, p, stop)
        end = w.name_offsets[filled]
        if filled >= capacity or size < 0 or size > name_room - end:
            break
        if cython.compiled:
            memcpy(cython.address(w.name_data[end]), raw + stop, size)
        else:
            w.name_data[end : end + size] = raw[stop : stop + size]
        w.name_offsets[filled + 1] = end + size
        p = stop + size
        stop = _varint_end(raw, p, c.end)
        size = _zigzag(raw, p, stop)
        end = w.header_data_offsets[filled]
        p = stop
        if size > data_room - end:
            break
        if size >= 0:
            w.header_validity[filled >> 3] |= 1 << (filled & 7)
            if cython.compiled:
                memcpy(cython.address(w.header_data[end]), raw + stop, size)
            else:
                w.header_data[end : end + size] = raw[stop : stop + size]
            p = stop + size
            end += size
        filled += 1
        w.header_data_offsets[filled] = end
    w.headers = filled
    w.header_offsets[row + 1] = filled


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _size_of(value: cython.longlong) -> cython.int:
    """How many bytes a number takes as a varint or varlong."""
    rest: cython.ulonglong
    if cython.compiled:
        rest = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
    else:
        rest = (value << 1) ^ (value >> 63)
    size: cython.int = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(raw: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number as a varint or varlong; the position after it."""
    rest: cython.ulonglong
    if cython.compiled:
        rest = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
    else:
        rest = (value << 1) ^ (value >> 63)
    while rest >= 0x80:
        raw[p] = (rest & 0x7F) | 0x80
        rest >>= 7
        p += 1
    raw[p] = rest
    return p + 1


@cython.cfunc
@cython.inline
def _put_bytes(raw: cython.p_uchar, p: cython.Py_ssize_t, data: bytes | None) -> cython.Py_ssize_t:
    """Write bytes behind their length, -1 for None; the position after them."""
    if data is None:
        raw[p] = 1
        return p + 1
    size: cython.Py_ssize_t = len(data)
    p = _put(raw, p, size)
    if cython.compiled:
        memcpy(raw + p, cython.cast(cython.p_const_uchar, data), size)
    else:
        raw[p : p + size] = data
    return p + size


def encode_records(
    records: Sequence[Record],
    base_timestamp: cython.longlong,
    base_offset: cython.longlong = -1,
    reserve: cython.Py_ssize_t = 0,
) -> bytearray:
    """The records in their wire format behind `reserve` zero bytes.

    Offset deltas count from 0, or are taken from the records if `base_offset` is not -1.
    """
    record: Record
    bound: cython.Py_ssize_t = reserve
    for record in records:
        # 5 + 1 + 10 + 5 for length, attributes and deltas, 5 each for key, value and header count
        bound += 36
        if record.key is not None:
            bound += len(record.key)
        if record.value is not None:
            bound += len(record.value)
        for name, value in record.headers:
            bound += 10 + 4 * len(name) + (0 if value is None else len(value))
    out = bytearray(bound)
    target = cython.declare(cython.uchar[::1], out)
    raw: cython.p_uchar
    if cython.compiled:
        raw = cython.address(target[0])
    else:
        raw = memoryview(out)
    p: cython.Py_ssize_t = reserve
    index: cython.longlong = 0
    for record in records:
        timestamp_delta: cython.longlong = record.timestamp - base_timestamp
        offset_delta: cython.longlong = index if base_offset < 0 else record.offset - base_offset
        size: cython.Py_ssize_t = 1 + _size_of(timestamp_delta) + _size_of(offset_delta)
        length: cython.Py_ssize_t = -1 if record.key is None else len(record.key)
        size += _size_of(length) + max(0, length)
        length = -1 if record.value is None else len(record.value)
        size += _size_of(length) + max(0, length)
        headers = [(name.encode(), value) for name, value in record.headers] if record.headers else None
        length = 0 if headers is None else len(headers)
        size += _size_of(length)
        if headers is not None:
            for encoded, value in headers:
                size += (
                    _size_of(len(encoded))
                    + len(encoded)
                    + (1 if value is None else _size_of(len(value)) + len(value))
                )
        p = _put(raw, p, size)
        raw[p] = 0
        p = _put(raw, p + 1, timestamp_delta)
        p = _put(raw, p, offset_delta)
        p = _put_bytes(raw, p, record.key)
        p = _put_bytes(raw, p, record.value)
        p = _put(raw, p, length)
        if headers is not None:
            for encoded, value in headers:
                p = _put_bytes(raw, p, encoded)
                p = _put_bytes(raw, p, value)
        index += 1  # noqa: SIM113 (enumerate would count in Python objects)
    if cython.compiled:
        target = None
    else:
        raw.release()
    del out[p:]
    return out


def murmur2(key: Buffer) -> int:
    """Java's murmur2 of a key, signed: `(murmur2(key) & 0x7FFFFFFF) % partitions` is Kafka's choice."""
    data = cython.declare(cython.const[cython.uchar][::1], key)
    raw: cython.p_const_uchar
    if cython.compiled:
        raw = cython.address(data[0])
    else:
        raw = memoryview(key)
    size: cython.Py_ssize_t = len(data)
    mask: cython.ulonglong = 0xFFFFFFFF
    h: cython.ulonglong = 0x9747B28C
    h ^= size & mask
    k: cython.ulonglong
    i: cython.Py_ssize_t = 0
    while i + 4 <= size:
        k = (
            raw[i]
            | (raw[i + 1] << 8)
            | (raw[i + 2] << 16)
            | (cython.cast(cython.ulonglong, raw[i + 3]) << 24)
        )
        k = (k * 0x5BD1E995) & mask
        k ^= k >> 24
        k = (k * 0x5BD1E995) & mask
        h = ((h * 0x5BD1E995) & mask) ^ k
        i += 4
    if i < size:
        if size - i == 3:
            h ^= raw[i + 2] << 16
        if size - i >= 2:
            h ^= raw[i + 1] << 8
        h ^= raw[i]
        h = (h * 0x5BD1E995) & mask
    h ^= h >> 13
    h = (h * 0x5BD1E995) & mask
    h ^= h >> 15
    signed: cython.longlong = h
    return signed - 0x100000000 if signed >= 0x80000000 else signed


# Compaction


class Checksum:
    """CRC-32C without the interpreter: eight tables, eight bytes at a time."""

    table: Any

    def __init__(self) -> None:
        if cython.compiled:
            index: cython.int
            _: cython.int
            crc: cython.uint
            for index in range(256):
                crc = index
                for _ in range(8):
                    crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
                self.table[index] = crc
            for index in range(256, 2048):
                crc = self.table[index - 256]
                self.table[index] = (crc >> 8) ^ self.table[crc & 0xFF]

    def of(self, data: Buffer) -> int:
        """The CRC-32C of some bytes."""
        view = cython.declare(cython.const[cython.uchar][::1], data)
        if len(view) == 0:
            return 0
        if cython.compiled:
            return _crc(self, cython.address(view[0]), 0, view.shape[0])
        else:
            return _crc(self, memoryview(data), 0, len(view))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _crc(
    checksum: Checksum, raw: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.uint:
    """The CRC-32C of the bytes between two positions."""
    if cython.compiled:
        table: cython.p_uint = checksum.table
        crc: cython.uint = 0xFFFFFFFF
        while end - p >= 8:
            crc ^= (
                raw[p] | (raw[p + 1] << 8) | (raw[p + 2] << 16) | (cython.cast(cython.uint, raw[p + 3]) << 24)
            )
            crc = (
                table[1792 + (crc & 0xFF)]
                ^ table[1536 + ((crc >> 8) & 0xFF)]
                ^ table[1280 + ((crc >> 16) & 0xFF)]
                ^ table[1024 + (crc >> 24)]
                ^ table[768 + raw[p + 4]]
                ^ table[512 + raw[p + 5]]
                ^ table[256 + raw[p + 6]]
                ^ table[raw[p + 7]]
            )
            p += 8
        while p < end:
            crc = (crc >> 8) ^ table[(crc ^ raw[p]) & 0xFF]
            p += 1
        return ~crc
    else:
        return crc32c(raw[p:end])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _judge(
    checksum: Checksum,
    raw: cython.p_const_uchar,
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    next_offset: cython.longlong,
) -> cython.int:
    """What is wrong with the batch at `p`, whose offsets are to be at least `next_offset`."""
    if end - p < 61:
        return _truncated
    size: cython.longlong = _i32(raw, p + 8) + 12
    if size < 61:
        return _bad_length
    if raw[p + 16] != 2:
        return _bad_magic
    if size > end - p:
        return _truncated
    base: cython.longlong = _i64(raw, p)
    delta: cython.longlong = _i32(raw, p + 23)
    if base < next_offset or delta < 0 or base > _largest_offset - delta or _i32(raw, p + 57) < 0:
        return _bad_offset
    if _crc(checksum, raw, p + 21, p + size) != _u32(raw, p + 17):
        return _bad_crc
    return _good


class OpenTransactions:
    """The transactions that a walk over batches, in offset order, is in the middle of, by producer id.

    A producer is KEPT or ABORTED once a batch of its transaction was met, ABORTING before that if the
    transaction that comes is known to be an aborted one. `next_aborted` is the first offset of the next
    aborted transaction: batches below it that open a transaction open one that was committed.
    """

    pairs: Any
    used: int
    capacity: int
    next_aborted: int

    def __init__(self) -> None:
        self.used = self.capacity = 0
        self.next_aborted = 0x7FFFFFFFFFFFFFFF
        if not cython.compiled:
            self.pairs = {}

    def __dealloc__(self) -> None:
        if cython.compiled:
            free(self.pairs)

    def __len__(self) -> int:
        return self.used

    def expect(self, next_aborted: cython.longlong) -> None:
        """Say where the next aborted transaction starts."""
        self.next_aborted = next_aborted

    def state(self, producer_id: cython.longlong) -> int:
        """What a producer's transaction is; 0 if none is open."""
        return _state_of(self, producer_id)

    def put(self, producer_id: cython.longlong, state: cython.int) -> None:
        """Set what a producer's transaction is, 0 if it has ended."""
        if not _set_state(self, producer_id, state):
            raise MemoryError


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _state_of(t: OpenTransactions, producer_id: cython.longlong) -> cython.int:
    if cython.compiled:
        i: cython.Py_ssize_t
        for i in range(t.used):
            if t.pairs[2 * i] == producer_id:
                return cython.cast(cython.int, t.pairs[2 * i + 1])
        return 0
    else:
        return t.pairs.get(producer_id, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _set_state(t: OpenTransactions, producer_id: cython.longlong, state: cython.int) -> cython.bint:
    """Set a producer's state, 0 to forget it; false if there is no memory."""
    if cython.compiled:
        i: cython.Py_ssize_t = 0
        while i < t.used and t.pairs[2 * i] != producer_id:
            i += 1
        if state == 0:
            if i < t.used:
                t.used -= 1
                t.pairs[2 * i] = t.pairs[2 * t.used]
                t.pairs[2 * i + 1] = t.pairs[2 * t.used + 1]
            return True
        if i == t.capacity:
            larger: cython.p_longlong = cython.cast(
                cython.p_longlong, realloc(t.pairs, (t.capacity * 2 + 16) * 16)
            )
            if larger == cython.NULL:
                return False
            t.pairs = larger
            t.capacity = t.capacity * 2 + 16
        if i == t.used:
            t.used += 1
        t.pairs[2 * i] = producer_id
        t.pairs[2 * i + 1] = state
        return True
    else:
        t.pairs[producer_id] = state
        if state == 0:
            del t.pairs[producer_id]
        t.used = len(t.pairs)
        return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _meet(
    t: OpenTransactions,
    c: Cursor,
    p: cython.Py_ssize_t,
    following: cython.Py_ssize_t,
    now_ms: cython.longlong,
) -> cython.int:
    """What a good batch is to a walk: its records count (_counts), do not (_lapsed), or it is a marker that
    needs nothing done to it (_stays); _caller if that is not plain here. `now_ms` is -1 where markers
    are only passed by."""
    raw: cython.p_const_uchar = c.raw
    attributes: cython.int = raw[p + 22]
    if attributes & 7:
        return _caller
    if not attributes & 0x30:
        return _counts
    producer_id: cython.longlong = _i64(raw, p + 43)
    state: cython.int = _state_of(t, producer_id)
    if not attributes & 0x20:
        if state == _kept:
            return _counts
        if state == 0:
            if _i64(raw, p) + _i32(raw, p + 23) >= t.next_aborted:
                return _caller
            return _counts if _set_state(t, producer_id, _kept) else _caller
        _set_state(t, producer_id, _aborted)
        return _lapsed
    if attributes & 0x40 and state == 0 and _i64(raw, p + 27) > now_ms:
        return _stays  # it was all that was left of its transaction already, and its time has not come
    c.position = p + 61
    c.end = following
    if _i32(raw, p + 57) != 1 or not _advance(c) or c.key_length < 4:
        return _caller
    if _i16(raw, c.key_start + 2) != 1 or state not in (0, _kept) or (state == 0 and now_ms >= 0):
        return _caller
    _set_state(t, producer_id, 0)
    return _stays


class OffsetMap:
    """The last offset of every key put into it, within bounded memory.

    Compiled it is a table with open addressing. A slot is two words: 64 bits of the key's SipHash; 32
    more bits of it, and below them the offset, counted from `first_offset` and 1. The secret makes
    96 equal bits of two keys as unlikely for an adversary as for chance. The table grows as it fills,
    old and new together within `max_bytes`. Interpreted it is a dictionary by digest.
    """

    checksum: Checksum
    cursor: Cursor
    words: Any
    slots: int
    used: int
    limit: int
    max_slots: int
    load_factor: float
    first_offset: int
    latest_offset: int
    next_offset: int
    stop: int
    secret_low: int
    secret_high: int
    digest_low: int
    digest_high: int
    secret: bytes

    def __init__(self, max_bytes: int, load_factor: float, secret: bytes) -> None:
        self.checksum = Checksum()
        self.cursor = Cursor()
        self.max_slots = max(16, min(max_bytes // 24, 0xFFFFFFFF))
        self.load_factor = min(load_factor, 0.95)
        self.secret = secret
        self.secret_low = int.from_bytes(secret[:8], "little")
        self.secret_high = int.from_bytes(secret[8:16], "little")
        self.clear(0)

    def __len__(self) -> int:
        return self.used

    def clear(self, first_offset: cython.longlong) -> None:
        """Forget all keys. No offset below `first_offset` will be put from now on."""
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self.next_offset = 0
        self.used = 0
        self.stop = GOOD
        slots: cython.Py_ssize_t = 4096 if self.max_slots >= 16384 else self.max_slots
        if cython.compiled:
            with cython.nogil:
                free(self.words)
            self.words = cython.cast(cython.p_ulonglong, calloc(slots, 16))
            if self.words == cython.NULL:
                self.slots = self.limit = 0
                raise MemoryError
        else:
            self.words = {}
        self.slots = slots
        self.limit = _limit(self, slots)

    def __dealloc__(self) -> None:
        if cython.compiled:
            free(self.words)

    def reach(self, offset: cython.longlong) -> None:
        """Say that everything up to `offset` has been put."""
        self.latest_offset = max(self.latest_offset, offset)

    def begin(self, next_offset: cython.longlong) -> None:
        """Say that the batches given next have at least this offset."""
        self.next_offset = next_offset

    def put(self, key: bytes, offset: cython.longlong) -> bool:
        """Note a key's offset, which is above all that were put before; false if there is no room."""
        if cython.compiled:
            return _put_key(self, cython.cast(cython.p_const_uchar, key), 0, len(key), offset)
        else:
            return _put_key(self, memoryview(key), 0, len(key), offset)

    def get(self, key: bytes) -> int:
        """The last offset of a key, -1 if it was not put."""
        if cython.compiled:
            return _find_key(self, cython.cast(cython.p_const_uchar, key), 0, len(key))
        else:
            return _find_key(self, memoryview(key), 0, len(key))

    def add_batches(
        self,
        chunk: Buffer,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        transactions: OpenTransactions,
    ) -> int:
        """Put the keys of the records between two positions, those from `first_offset` on.

        The position at which it stopped; `stop` says why: GOOD at the end, CALLER before a good batch
        that is for the caller (compressed, or the beginning or end of a transaction that may be an
        aborted one), FULL in a batch whose keys found no room, or the kind of error of the batch there
        (TRUNCATED if it is not whole).
        """
        c: Cursor = self.cursor
        _place(c, chunk, start, end)
        with cython.nogil:
            self.stop = _add_batches(self, c, end, transactions)
        return c.position

    def add_records(self, payload: Buffer, start: cython.Py_ssize_t, header: BatchHeader) -> int:
        """Put the keys of one batch's uncompressed records; an error kind, or FULL."""
        c: Cursor = self.cursor
        _place(c, payload, start, len(memoryview(payload)))
        count: cython.longlong = header.count
        base_offset: cython.longlong = header.base_offset
        error: cython.int
        with cython.nogil:
            error = _add_records(self, c, count, base_offset)
        return error


@cython.cfunc
def _place(c: Cursor, payload: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.void:
    """Let a cursor that is there already stand at `start` of other bytes, which end at `end`."""
    size: cython.Py_ssize_t
    if cython.compiled:
        c.data = payload
        size = c.data.shape[0]
        c.raw = cython.address(c.data[0])
    else:
        c.raw = memoryview(payload)  # type: ignore[arg-type]
        size = len(c.raw)
    if start < 0 or end > size or start > end:
        raise ValueError(f"positions {start} to {end} are not within {size} bytes")
    c.position = start
    c.end = end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _limit(m: OffsetMap, slots: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """How many keys a table of so many slots holds before it grows, or is full."""
    share: cython.double = m.load_factor
    if slots < m.max_slots and share > 0.7:
        share = 0.7
    if cython.compiled:
        return cython.cast(cython.Py_ssize_t, slots * share)
    else:
        return int(slots * share)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _digest(
    m: OffsetMap, raw: cython.p_const_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.void:
    """SipHash-2-4 of a key, 128 bits of it."""
    if cython.compiled:
        v0: cython.ulonglong = m.secret_low ^ cython.cast(cython.ulonglong, 0x736F6D6570736575)
        v1: cython.ulonglong = m.secret_high ^ cython.cast(cython.ulonglong, 0x646F72616E646F6D) ^ 0xEE
        v2: cython.ulonglong = m.secret_low ^ cython.cast(cython.ulonglong, 0x6C7967656E657261)
        v3: cython.ulonglong = m.secret_high ^ cython.cast(cython.ulonglong, 0x7465646279746573)
        word: cython.ulonglong = 0
        blocks: cython.Py_ssize_t = size // 8 + 1
        block: cython.Py_ssize_t
        rounds: cython.int
        p: cython.Py_ssize_t = start
        i: cython.Py_ssize_t
        for block in range(blocks + 2):
            if block < blocks - 1:
                word = (
                    raw[p]
                    | (raw[p + 1] << 8)
                    | (raw[p + 2] << 16)
                    | (cython.cast(cython.ulonglong, raw[p + 3]) << 24)
                    | (cython.cast(cython.ulonglong, raw[p + 4]) << 32)
                    | (cython.cast(cython.ulonglong, raw[p + 5]) << 40)
                    | (cython.cast(cython.ulonglong, raw[p + 6]) << 48)
                    | (cython.cast(cython.ulonglong, raw[p + 7]) << 56)
                )
                p += 8
                v3 ^= word
                rounds = 2
            elif block == blocks - 1:
                word = cython.cast(cython.ulonglong, size & 0xFF) << 56
                for i in range(size & 7):
                    word |= cython.cast(cython.ulonglong, raw[p + i]) << (8 * i)
                v3 ^= word
                rounds = 2
            elif block == blocks:
                v2 ^= 0xEE
                rounds = 4
            else:
                m.digest_low = v0 ^ v1 ^ v2 ^ v3
                v1 ^= 0xDD
                rounds = 4
            while rounds:
                v0 += v1
                v1 = ((v1 << 13) | (v1 >> 51)) ^ v0
                v0 = (v0 << 32) | (v0 >> 32)
                v2 += v3
                v3 = ((v3 << 16) | (v3 >> 48)) ^ v2
                v0 += v3
                v3 = ((v3 << 21) | (v3 >> 43)) ^ v0
                v2 += v1
                v1 = ((v1 << 17) | (v1 >> 47)) ^ v2
                v2 = (v2 << 32) | (v2 >> 32)
                rounds -= 1
            if block < blocks:
                v0 ^= word
        m.digest_high = v0 ^ v1 ^ v2 ^ v3
    else:
        m.digest_low = blake2b(raw[start : start + size], digest_size=12, key=m.secret).digest()  # type: ignore[assignment]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _slot(
    words: cython.p_ulonglong, slots: cython.Py_ssize_t, low: cython.ulonglong, high: cython.ulonglong
) -> cython.Py_ssize_t:
    """The slot of a digest, or the free one where it belongs. There always is a free one."""
    slot: cython.Py_ssize_t = (((low >> 32) * cython.cast(cython.ulonglong, slots)) >> 32) * 2
    while words[slot + 1] != 0 and (words[slot] != low or (words[slot + 1] ^ high) >> 32 != 0):
        slot += 2
        if slot == 2 * slots:
            slot = 0
    return slot


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _grow(m: OffsetMap) -> cython.bint:
    """Move to a larger table; false if the largest is not large enough."""
    if cython.compiled:
        if m.slots >= m.max_slots:
            return False
        # old and new together are at most the bound: the last step goes to two thirds of it
        slots: cython.Py_ssize_t = m.slots * 2 if m.slots * 4 <= m.max_slots else m.max_slots
        words: cython.p_ulonglong = cython.cast(cython.p_ulonglong, calloc(slots, 16))
        if words == cython.NULL:
            return False
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        for i in range(m.slots):
            if m.words[2 * i + 1] != 0:
                slot = _slot(words, slots, m.words[2 * i], m.words[2 * i + 1])
                words[slot] = m.words[2 * i]
                words[slot + 1] = m.words[2 * i + 1]
        free(m.words)
        m.words = words
        m.slots = slots
        m.limit = _limit(m, slots)
        return True
    else:
        m.slots = m.max_slots
        m.limit = _limit(m, m.slots)
        return m.used < m.limit


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_key(
    m: OffsetMap,
    raw: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    offset: cython.longlong,
) -> cython.bint:
    """Note a key's offset; false if there is no room."""
    relative: cython.longlong = offset - m.first_offset + 1
    if relative < 1 or relative >> 32:
        return False
    _digest(m, raw, start, size)
    if cython.compiled:
        high: cython.ulonglong = (m.digest_high >> 32) << 32
        slot: cython.Py_ssize_t = _slot(m.words, m.slots, m.digest_low, high)
        if m.words[slot + 1] == 0:
            if m.used >= m.limit:
                if not _grow(m):
                    return False
                slot = _slot(m.words, m.slots, m.digest_low, high)
            m.words[slot] = m.digest_low
            m.used += 1
        m.words[slot + 1] = high | cython.cast(cython.ulonglong, relative)
    else:
        if m.digest_low not in m.words:
            if m.used >= m.limit and not _grow(m):
                return False
            m.used += 1
        m.words[m.digest_low] = offset
    m.latest_offset = offset
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_key(
    m: OffsetMap, raw: cython.p_const_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """The last offset of a key, -1 if it was not put."""
    _digest(m, raw, start, size)
    if cython.compiled:
        slot: cython.Py_ssize_t = _slot(m.words, m.slots, m.digest_low, (m.digest_high >> 32) << 32)
        if m.words[slot + 1] == 0:
            return -1
        return m.first_offset - 1 + cython.cast(cython.longlong, (m.words[slot + 1] << 32) >> 32)
    else:
        return m.words.get(m.digest_low, -1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_records(m: OffsetMap, c: Cursor, count: cython.longlong, base_offset: cython.longlong) -> cython.int:
    """Put the keys of the records under the cursor, which must be `count` well-formed ones."""
    _: cython.longlong
    for _ in range(count):
        if c.position >= c.end:
            return _bad_count
        if not _advance(c):
            return _bad_record
        offset: cython.longlong = base_offset + c.offset_delta
        if (
            c.key_length >= 0
            and offset >= m.first_offset
            and not _put_key(m, c.raw, c.key_start, c.key_length, offset)
        ):
            return _full
    return _good if c.position == c.end else _bad_count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_batches(
    m: OffsetMap, c: Cursor, end: cython.Py_ssize_t, transactions: OpenTransactions
) -> cython.int:
    p: cython.Py_ssize_t = c.position
    error: cython.int = _good
    while p < end:
        c.position = p
        error = _judge(m.checksum, c.raw, p, end, m.next_offset)
        if error != _good:
            break
        base_offset: cython.longlong = _i64(c.raw, p)
        last_offset: cython.longlong = base_offset + _i32(c.raw, p + 23)
        following: cython.Py_ssize_t = p + 12 + _i32(c.raw, p + 8)
        kind: cython.int = _meet(transactions, c, p, following, -1)
        if kind == _caller:
            error = kind
            c.position = p
            break
        if last_offset >= m.first_offset and kind == _counts:
            c.position = p + 61
            c.end = following
            error = _add_records(m, c, _i32(c.raw, p + 57), base_offset)
            if error != _good:
                c.position = p
                break
        if last_offset > m.latest_offset:
            m.latest_offset = last_offset
        m.next_offset = last_offset + 1
        p = following
        c.position = p
    c.end = end
    return error


class BatchFilter:
    """Copies batches, leaving out the records that a later one of the same key supersedes.

    What it keeps of a batch has the offsets, timestamps, codec, producer and sequences that it had.
    A batch of which nothing is left is dropped, unless `kept_offsets` (sorted) or `upper_offset` ask
    for its header. Tombstones go when the batch's delete horizon has passed; a batch with tombstones
    and no horizon yet gets one (KIP-534): its base timestamp becomes the horizon.

    The output waits in `out` for its caller to write, together with the entries for the offset index
    and the time index of the segment that it makes, in their formats.
    """

    map: OffsetMap
    transactions: OpenTransactions
    cursor: Cursor
    kept_offsets: Any
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
        upper_offset: cython.longlong,
        now_ms: cython.longlong,
        delete_retention_ms: cython.longlong,
        buffer_bytes: cython.Py_ssize_t,
    ) -> None:
        """`kept_offsets` is a memoryview of int64."""
        self.map = offsets
        self.transactions = transactions
        self.cursor = Cursor()
        self.kept_offsets = kept_offsets
        self.upper_offset = upper_offset
        self.now_ms = now_ms
        self.horizon_ms = _sum(now_ms, delete_retention_ms)
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
        _place(c, chunk, start, end)
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
        _place(c, payload, start, size)
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

    def keeps_empty(self, last_offset: cython.longlong) -> bool:
        """Whether a batch that ends here stays even if it has no records."""
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
def _keeps_empty(f: BatchFilter, last_offset: cython.longlong) -> cython.bint:
    if last_offset + 1 == f.upper_offset:
        return True
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = f.kept_offsets.shape[0]
    while low < high:
        middle: cython.Py_ssize_t = (low + high) // 2
        if f.kept_offsets[middle] < last_offset:
            low = middle + 1
        else:
            high = middle
    return low < f.kept_offsets.shape[0] and f.kept_offsets[low] == last_offset


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
    return offset >= _find_key(f.map, c.raw, c.key_start, c.key_length)


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
        if not _advance(c):
            return _bad_record
        if keeps_all or _keeps(f, c, base_offset + c.offset_delta, has_passed):
            timestamp: cython.longlong = _sum(base_timestamp, c.timestamp_delta)
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
        body: cython.Py_ssize_t = _varint_end(out, source, end)
        length: cython.longlong = _zigzag(out, source, body)
        rest: cython.Py_ssize_t = _varlong_end(out, body + 1, end)
        delta: cython.longlong = _sum(base_timestamp, _zigzag(out, body + 1, rest))
        delta = _sum(log_time if is_log_time else delta, -f.horizon_ms)
        p = _put(out, p, length - (rest - body - 1) + _size_of(delta))
        out[p] = out[body]
        p = _put(out, p + 1, delta)
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
    _store(out, at + 17, _crc(f.map.checksum, out, at + 21, at + size), 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _seal_empty(f: BatchFilter, out: cython.p_uchar, at: cython.Py_ssize_t) -> cython.void:
    """Finish the header of a batch without records: offsets, producer, sequences and time stay."""
    _store(out, at + 8, 49, 4)
    out[at + 22] &= 0xB8
    _store(out, at + 27, -1, 8)
    _store(out, at + 57, 0, 4)
    _store(out, at + 17, _crc(f.map.checksum, out, at + 21, at + 61), 4)


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
        error = _judge(f.map.checksum, raw, p, end, f.next_offset)
        if error != _good:
            break
        size: cython.Py_ssize_t = _i32(raw, p + 8) + 12
        count: cython.longlong = _i32(raw, p + 57)
        room: cython.longlong = 2 * size + 12 * count
        if room > capacity:
            error = _caller
            break
        if room > capacity - f.out_size:
            error = _full
            break
        kind: cython.int = _meet(f.transactions, c, p, p + size, f.now_ms)
        if kind == _caller:
            error = kind
            c.position = p
            break
        base_offset: cython.longlong = _i64(raw, p)
        last_offset: cython.longlong = base_offset + _i32(raw, p + 23)
        max_timestamp: cython.longlong = _i64(raw, p + 35)
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
                _i64(raw, p + 27),
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
            if _keeps_empty(f, last_offset):
                _copy(out, at, raw, p, 61)
                _seal_empty(f, out, at)
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
