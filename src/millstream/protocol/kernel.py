# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505, SIM108 (a branch on cython.compiled is decided by the compiler, an expression is not)
"""The loops over record batches (format v2), in Cython's pure-Python mode.

The same source runs compiled, where a C compiler was at hand when the package was built, and
interpreted, where not. kernel.pxd holds the C layout of the classes. Nothing here does I/O or keeps
state, and no input, however hostile, is read beyond its end: every length is compared with what
remains before it is used.

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
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_SIZE = 61
LENGTH_END = 12
CRC_START = 17
CRC_END = 21

GOOD = 0
TRUNCATED = 1
BAD_LENGTH = 2
BAD_MAGIC = 3
BAD_CRC = 4
BAD_OFFSET = 5
BAD_RECORD = 6
BAD_COUNT = 7
BAD_OFFSET_DELTA = 8

REASONS = (
    "good",
    "the bytes end within a batch",
    "the batch's length is below that of its header",
    "the batch's magic is not 2",
    "the batch does not match its checksum",
    "the batch's offsets do not follow those before it",
    "a record is not well formed",
    "the batch does not hold as many records as it says",
    "the records' offsets are not consecutive",
)
"""What each error kind means, by number."""

IS_COMPILED = bool(cython.compiled)


class BatchHeader:
    """The fields of a batch's header. `size` is that of the whole batch: 12 + its length field."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "size",
    )

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    def __init__(
        self,
        base_offset: int = 0,
        size: int = 61,
        leader_epoch: int = -1,
        magic: int = 2,
        crc: int = 0,
        attributes: int = 0,
        last_offset_delta: int = 0,
        base_timestamp: int = -1,
        max_timestamp: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        count: int = 0,
    ) -> None:
        self.base_offset = base_offset
        self.size = size
        self.leader_epoch = leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.count = count

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence: after 2^31 - 1 comes 0."""
        if self.base_sequence < 0:
            return -1
        last: cython.longlong = self.base_sequence
        last += self.last_offset_delta
        return last & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & 8 != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & 16 != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & 32 != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp is the time at which tombstones and markers may go (KIP-534)."""
        return self.attributes & 64 != 0

    def fields(self) -> dict[str, int]:
        """All fields by name, in the order of the constructor."""
        return {
            "base_offset": self.base_offset,
            "size": self.size,
            "leader_epoch": self.leader_epoch,
            "magic": self.magic,
            "crc": self.crc,
            "attributes": self.attributes,
            "last_offset_delta": self.last_offset_delta,
            "base_timestamp": self.base_timestamp,
            "max_timestamp": self.max_timestamp,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "base_sequence": self.base_sequence,
            "count": self.count,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchHeader) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(tuple(self.fields().values()))

    def __repr__(self) -> str:
        return f"BatchHeader({', '.join(f'{name}={value}' for name, value in self.fields().items())})"


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


class Scan:
    """What a walk over batches found.

    `position` is that after the last whole good batch, `error` says why it ended there (GOOD if at
    the end). The others speak of the good batches only; offsets and timestamp are -1 if there are
    none. `max_timestamp_offset` is the last offset of the first batch with the largest timestamp.
    """

    __slots__ = (
        "batches",
        "error",
        "first_offset",
        "last_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "position",
    )

    position: int
    error: int
    batches: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int

    @property
    def reason(self) -> str:
        return REASONS[self.error]


class Walk:
    """What a walk over a batch's records found.

    `error` and `index` name the first bad record (GOOD, -1). `max_timestamp_delta` is the offset
    delta of the first record with the largest timestamp; `null_key_index` that of the first record
    without a key, or -1.
    """

    __slots__ = (
        "error",
        "index",
        "max_timestamp",
        "max_timestamp_delta",
        "min_timestamp",
        "null_key_index",
    )

    error: int
    index: int
    min_timestamp: int
    max_timestamp: int
    max_timestamp_delta: int
    null_key_index: int

    @property
    def reason(self) -> str:
        return REASONS[self.error]


class Cursor:
    """A place among a batch's uncompressed records, and the parts of the record before it."""

    __slots__ = (
        "data",
        "end",
        "header_count",
        "headers_start",
        "key_length",
        "key_start",
        "offset_delta",
        "position",
        "raw",
        "timestamp_delta",
        "value_length",
        "value_start",
    )

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


@cython.cfunc
def _cursor(payload: object) -> Cursor:
    cursor: Cursor = Cursor()
    if cython.compiled:
        cursor.data = payload
        cursor.raw = cython.address(cursor.data[0])
        cursor.end = cursor.data.shape[0]
    else:
        cursor.raw = memoryview(payload)  # type: ignore[arg-type]
        cursor.end = len(cursor.raw)
    cursor.position = 0
    return cursor


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
def _header(raw: cython.p_const_uchar, p: cython.Py_ssize_t) -> BatchHeader:
    header: BatchHeader = BatchHeader.__new__(BatchHeader)
    header.base_offset = _i64(raw, p)
    header.size = _i32(raw, p + 8) + 12
    header.leader_epoch = _i32(raw, p + 12)
    header.magic = raw[p + 16] - 256 if raw[p + 16] > 127 else raw[p + 16]
    header.crc = _u32(raw, p + 17)
    header.attributes = _i16(raw, p + 21)
    header.last_offset_delta = _i32(raw, p + 23)
    header.base_timestamp = _i64(raw, p + 27)
    header.max_timestamp = _i64(raw, p + 35)
    header.producer_id = _i64(raw, p + 43)
    header.producer_epoch = _i16(raw, p + 51)
    header.base_sequence = _i32(raw, p + 53)
    header.count = _i32(raw, p + 57)
    return header


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
    scan: Scan = Scan.__new__(Scan)
    scan.position = position
    scan.error = error
    scan.batches = batches
    scan.first_offset = first
    scan.last_offset = last if batches > 0 else -1
    scan.max_timestamp = max_timestamp
    scan.max_timestamp_offset = max_timestamp_offset
    return scan


def validate_records(
    payload: Buffer, count: cython.longlong, base_timestamp: cython.longlong, start: cython.Py_ssize_t = 0
) -> Walk:
    """Walk the uncompressed records from `start` to the end, which must be `count` consecutive ones."""
    c: Cursor = _cursor(payload)
    c.position = start
    good: cython.int = GOOD
    bad_record: cython.int = BAD_RECORD
    bad_count: cython.int = BAD_COUNT
    bad_offset_delta: cython.int = BAD_OFFSET_DELTA
    index: cython.longlong = 0
    error: cython.int = good
    lowest: cython.longlong = -1
    highest: cython.longlong = -1
    highest_index: cython.longlong = 0
    null_key_index: cython.longlong = -1
    with cython.nogil:
        while index < count:
            if c.position >= c.end:
                error = bad_count
                break
            if not _advance(c):
                error = bad_record
                break
            if c.offset_delta != index:
                error = bad_offset_delta
                break
            timestamp: cython.longlong = _sum(base_timestamp, c.timestamp_delta)
            if timestamp < lowest or index == 0:
                lowest = timestamp
            if timestamp > highest or index == 0:
                highest = timestamp
                highest_index = index
            if c.key_length < 0 and null_key_index < 0:
                null_key_index = index
            index += 1
        if error == good and c.position != c.end:
            error = bad_count
    walk: Walk = Walk.__new__(Walk)
    walk.error = error
    walk.index = -1 if error == GOOD else index
    walk.min_timestamp = lowest
    walk.max_timestamp = highest
    walk.max_timestamp_delta = highest_index
    walk.null_key_index = null_key_index
    return walk


def keyless_records(payload: Buffer, start: cython.Py_ssize_t, count: cython.longlong) -> list[int]:
    """The indexes of the records without a key, among records that validate_records found good."""
    c: Cursor = _cursor(payload)
    c.position = start
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
    c: Cursor = _cursor(payload)
    c.position = start
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
    c: Cursor = _cursor(payload)
    c.position = start
    index: cython.longlong = 0
    count: cython.longlong = header.count
    base_offset: cython.longlong = header.base_offset
    base_timestamp: cython.longlong = header.base_timestamp
    max_timestamp: cython.longlong = header.max_timestamp
    is_log_append_time: cython.bint = header.attributes & 8
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
