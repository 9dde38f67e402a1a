# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505, SIM108 (a branch on cython.compiled is decided by the compiler, an expression is not)
"""The loops that read record batches (format v2), in Cython's pure-Python mode.

The same source runs compiled, where a C compiler was at hand when the package was built, and
interpreted, where not. kernel.pxd holds the C layout of the classes, and names the functions that other
kernels call; the C compiler inlines them here, which is why columns are filled where records are decoded.
Nothing here does I/O or keeps state, and no input, however hostile, is read beyond its end: every length is
compared with what remains before it is used.

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
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)

_new_tuple: Any = tuple.__new__  # a named tuple's own constructor costs three times as much

# the same kinds of error as C integers, for loops that hold no Python object
_good = cython.declare(cython.int, GOOD)
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
def place(c: Cursor, payload: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.void:
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
def read_i16(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.int:
    value: cython.int = (raw[p] << 8) | raw[p + 1]
    return value - 0x10000 if value >= 0x8000 else value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_u32(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = (raw[p] << 8) | raw[p + 1]
    return (high << 16) + ((raw[p + 2] << 8) | raw[p + 3])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_i32(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = read_i16(raw, p)
    return high * 0x10000 + ((raw[p + 2] << 8) | raw[p + 3])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_i64(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.longlong:
    return read_i32(raw, p) * 0x10000 * 0x10000 + read_u32(raw, p + 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def wrapping_sum(left: cython.longlong, right: cython.longlong) -> cython.longlong:
    """A sum that wraps as 64-bit integers do."""
    if cython.compiled:
        return cython.cast(
            cython.longlong, cython.cast(cython.ulonglong, left) + cython.cast(cython.ulonglong, right)
        )
    else:
        return (left + right + 0x8000000000000000) % 0x10000000000000000 - 0x8000000000000000


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def varint_end(raw: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
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
@cython.nogil
@cython.exceptval(check=False)
def varlong_end(raw: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the varlong at `p` ends; -1 if it passes `end` or has more than 64 bits."""
    i: cython.Py_ssize_t
    for i in range(10):
        if p + i >= end:
            return -1
        if raw[p + i] < 0x80:
            return -1 if i == 9 and raw[p + i] > 0x01 else p + i + 1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def zigzag(raw: cython.p_const_uchar, p: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.longlong:
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
def advance(c: Cursor) -> cython.bint:
    """Take the next record's parts apart; false if it is not well formed."""
    raw: cython.p_const_uchar = c.raw
    p: cython.Py_ssize_t = c.position
    end: cython.Py_ssize_t = c.end
    stop: cython.Py_ssize_t = varint_end(raw, p, end)
    i: cython.Py_ssize_t
    if stop < 0:
        return False
    length: cython.longlong = zigzag(raw, p, stop)
    if length < 1 or length > end - stop:
        return False
    end = stop + length
    p = stop + 1
    stop = varlong_end(raw, p, end)
    if stop < 0:
        return False
    c.timestamp_delta = zigzag(raw, p, stop)
    p = stop
    stop = varint_end(raw, p, end)
    if stop < 0:
        return False
    c.offset_delta = zigzag(raw, p, stop)
    p = stop
    stop = varint_end(raw, p, end)
    if stop < 0:
        return False
    length = zigzag(raw, p, stop)
    if length < -1 or length > end - stop:
        return False
    c.key_start = stop
    c.key_length = length
    p = stop + length if length > 0 else stop
    stop = varint_end(raw, p, end)
    if stop < 0:
        return False
    length = zigzag(raw, p, stop)
    if length < -1 or length > end - stop:
        return False
    c.value_start = stop
    c.value_length = length
    p = stop + length if length > 0 else stop
    stop = varint_end(raw, p, end)
    if stop < 0:
        return False
    length = zigzag(raw, p, stop)
    if length < 0 or length > end - stop:
        return False
    c.headers_start = stop
    c.header_count = length
    p = stop
    for i in range(2 * c.header_count):
        stop = varint_end(raw, p, end)
        if stop < 0:
            return False
        length = zigzag(raw, p, stop)
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
        stop: cython.Py_ssize_t = varint_end(raw, p, end)
        length: cython.Py_ssize_t = zigzag(raw, p, stop)
        name = _bytes(raw, stop, stop + length).decode("utf-8", "replace")
        p = stop + length
        stop = varint_end(raw, p, end)
        length = zigzag(raw, p, stop)
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
            read_i64(raw, p),
            read_i32(raw, p + 8) + 12,
            read_i32(raw, p + 12),
            magic - 256 if magic > 127 else magic,
            read_u32(raw, p + 17),
            read_i16(raw, p + 21),
            read_i32(raw, p + 23),
            read_i64(raw, p + 27),
            read_i64(raw, p + 35),
            read_i64(raw, p + 43),
            read_i16(raw, p + 51),
            read_i32(raw, p + 53),
            read_i32(raw, p + 57),
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
        size: cython.longlong = read_i32(raw, position + 8) + 12
        if size < 61:
            error = BAD_LENGTH
            break
        if raw[position + 16] != 2:
            error = BAD_MAGIC
            break
        if size > end - position:
            error = TRUNCATED
            break
        base: cython.longlong = read_i64(raw, position)
        delta: cython.longlong = read_i32(raw, position + 23)
        if base <= last or delta < 0 or base > largest - delta:
            error = BAD_OFFSET
            break
        if verify_crc and crc32c(view[position + 21 : position + size], 0, 0) != read_u32(raw, position + 17):
            error = BAD_CRC
            break
        last = base + delta
        timestamp: cython.longlong = read_i64(raw, position + 35)
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
        if not advance(c):
            error = _bad_record
            break
        if is_consecutive and c.offset_delta != index:
            error = _bad_offset_delta
            break
        if wrapping_sum(base_offset, c.offset_delta) >= from_offset:
            timestamp: cython.longlong = wrapping_sum(base_timestamp, c.timestamp_delta)
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
        if not advance(c):
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
        if not advance(c):
            break
        timestamp: cython.longlong = wrapping_sum(base_timestamp, c.timestamp_delta)
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
        if not advance(c):
            return BAD_RECORD
        index += 1
        offset: cython.longlong = wrapping_sum(base_offset, c.offset_delta)
        if offset < from_offset:
            continue
        record: Record = Record.__new__(Record)
        record.offset = offset
        record.timestamp = (
            max_timestamp if is_log_append_time else wrapping_sum(base_timestamp, c.timestamp_delta)
        )
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
        if not advance(c):
            break
        offset: cython.longlong = wrapping_sum(base_offset, c.offset_delta)
        if offset < from_offset:
            continue
        if row >= capacity or key_end + c.key_length > key_room or value_end + c.value_length > value_room:
            break
        w.offsets[row] = offset
        w.timestamps[row] = log_time if is_log_time else wrapping_sum(base_timestamp, c.timestamp_delta)
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
        stop: cython.Py_ssize_t = varint_end(raw, p, c.end)
        size: cython.Py_ssize_t = zigzag(raw, p, stop)
        end = w.name_offsets[filled]
        if filled >= capacity or size < 0 or size > name_room - end:
            break
        if cython.compiled:
            memcpy(cython.address(w.name_data[end]), raw + stop, size)
        else:
            w.name_data[end : end + size] = raw[stop : stop + size]
        w.name_offsets[filled + 1] = end + size
        p = stop + size
        stop = varint_end(raw, p, c.end)
        size = zigzag(raw, p, stop)
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
