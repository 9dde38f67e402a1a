# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505, FURB136 (a branch on cython.compiled is decided by the compiler, an expression is not)
"""The loops that write record batches in a client, in Cython's pure-Python mode.

Like kernel.py, which describes the bytes, this source runs compiled where it can be and interpreted where
not; client_kernel.pxd holds the C layout of the classes. Records are encoded as they are given, so that a
batch is ready to leave without another look at them.

`_size_of`, `_put` and `_put_bytes` stand in encode_kernel.py too: a function of another extension module
cannot be inlined, and calling them there made a record of 100 bytes 15 % more expensive.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

from millstream.protocol.encode_kernel import murmur2
from millstream.protocol.header import HEADER_SIZE

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )
    from cython.cimports.cpython.time import time as c_time
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)

FIRST_CAPACITY = 2048
_header_size = cython.declare(cython.Py_ssize_t, HEADER_SIZE)


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


class BatchBuilder:
    """The records of a batch to come, encoded behind room for its header.

    It takes records while they fit into `limit` bytes; the first is always taken. `size` counts the header.
    """

    def __init__(self, limit: int, capacity: int = FIRST_CAPACITY) -> None:
        self.limit = limit
        self.capacity = capacity
        self.size = _header_size
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.out = unfilled(capacity)  # up to `size` it is, the header last; what lies behind never leaves
        if cython.compiled:
            self.raw = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.out))

    def append(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> cython.longlong:
        """Take one more record; its place in the batch, or -1, with nothing changed, if it does not fit."""
        encoded: list[Any] | None = None
        header_bytes: cython.Py_ssize_t = 1
        if headers:
            encoded = [(name.encode(), content) for name, content in headers]
            header_bytes = _size_of(len(encoded))
            for name, content in encoded:
                if content is not None and type(content) is not bytes:
                    raise TypeError(f"a header's value is bytes, not {type(content).__name__}")
                header_bytes += _size_of(len(name)) + len(name)
                header_bytes += 1 if content is None else _size_of(len(content)) + len(content)
        if cython.compiled:
            p: cython.Py_ssize_t = _start(
                self,
                timestamp,
                cython.NULL if key is None else cython.cast(cython.p_uchar, key),
                0 if key is None else len(key),
                cython.NULL if value is None else cython.cast(cython.p_uchar, value),
                0 if value is None else len(value),
                header_bytes,
            )
        else:
            p = _start(self, timestamp, key, 0, value, 0, header_bytes)
        if p < 0:
            return -1
        if encoded is None:
            self.raw[p] = 0
            return self.count - 1
        p = _put(self.raw, p, len(encoded))
        for name, content in encoded:
            p = _put_bytes(self.raw, p, name)
            p = _put_bytes(self.raw, p, content)
        return self.count - 1

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps: Sequence[int] | None,
        timestamp: cython.longlong,
        headers: Sequence[Any] | None,
        order: Buffer | None,
        start: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Take rows from `start` on while they fit; the first row that was not taken.

        With `order`, int32 numbers of rows, those are meant that stand there from `start` to `stop`.
        Without `timestamps` all rows have `timestamp`.
        """
        place: cython.Py_ssize_t = start
        row: cython.Py_ssize_t
        numbers = cython.declare(cython.const[cython.int][::1], None)
        has_order: cython.bint = order is not None
        if cython.compiled:
            if has_order:
                numbers = order
        else:
            numbers = order
        while place < stop:
            row = numbers[place] if has_order else place
            if timestamps is not None:
                timestamp = timestamps[row]
            if (
                self.append(
                    timestamp,
                    None if keys is None else keys[row],
                    values[row],
                    () if headers is None else headers[row],
                )
                < 0
            ):
                break
            place += 1
        return place

    def extend_columns(
        self,
        values: BinaryRows,
        keys: BinaryRows | None,
        timestamps: Buffer | None,
        timestamp: cython.longlong,
        order: Buffer | None,
        start: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Take rows from `start` on while they fit; the first row that was not taken.

        With `order`, int32 numbers of rows, those are meant that stand there from `start` to `stop`.
        `timestamps` are int64; without them all rows have `timestamp`.
        """
        times = cython.declare(cython.const[cython.longlong][::1], None)
        numbers = cython.declare(cython.const[cython.int][::1], None)
        has_times: cython.bint = timestamps is not None
        has_order: cython.bint = order is not None
        has_keys: cython.bint = keys is not None
        if cython.compiled:
            if has_times:
                times = timestamps
            if has_order:
                numbers = order
        else:
            times, numbers = timestamps, order
        place: cython.Py_ssize_t = start
        row: cython.Py_ssize_t
        key_size: cython.Py_ssize_t = 0
        value_size: cython.Py_ssize_t = 0
        key: cython.p_const_uchar = cython.NULL
        value: cython.p_const_uchar
        p: cython.Py_ssize_t
        if not cython.compiled:
            key = None
        while place < stop:
            row = numbers[place] if has_order else place
            if has_times:
                timestamp = times[row]
            if cython.compiled:
                if has_keys:
                    key_size = _row_size(keys, row)
                    key = cython.NULL
                    if key_size >= 0:
                        key = _row_start(keys, row)
                value_size = _row_size(values, row)
                value = cython.NULL
                if value_size >= 0:
                    value = _row_start(values, row)
            else:
                key = keys[row] if keys is not None else None
                value = values[row]
            p = _start(self, timestamp, key, key_size, value, value_size, 1)
            if p < 0:
                break
            self.raw[p] = 0
            place += 1
        return place

    def close(self) -> None:
        """Take no more records, and give back the memory that none has filled."""
        self.capacity = self.size
        self.limit = 0
        if cython.compiled:
            PyByteArray_Resize(self.out, self.size)
            self.raw = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.out))
        else:
            del self.out[self.size :]

    def take(self) -> bytearray:
        """The header's room and the records; nothing can be added afterwards."""
        out = self.out
        del out[self.size :]
        self.out = bytearray()
        self.capacity = 0
        self.limit = 0
        return out


if not cython.compiled:
    BatchBuilder.raw = property(lambda self: self.out)


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


@cython.cfunc
@cython.exceptval(-2)
def _start(
    b: BatchBuilder,
    timestamp: cython.longlong,
    key: cython.p_const_uchar,
    key_size: cython.Py_ssize_t,
    value: cython.p_const_uchar,
    value_size: cython.Py_ssize_t,
    header_bytes: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a record up to its headers, for which room is made; where they begin, -1 if all does not fit.

    Interpreted, key and value are bytes or None and say their sizes themselves.
    """
    if cython.compiled:
        if key == cython.NULL:
            key_size = -1
        if value == cython.NULL:
            value_size = -1
    else:
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
    if b.count == 0:
        b.base_timestamp = timestamp
    delta: cython.longlong = timestamp - b.base_timestamp
    length: cython.Py_ssize_t = (
        1 + _size_of(delta) + _size_of(b.count) + _size_of(key_size) + _size_of(value_size) + header_bytes
    )
    length += (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
    end: cython.Py_ssize_t = b.size + _size_of(length) + length
    if end > b.limit and (b.count > 0 or b.limit == 0):
        return -1
    if end > b.capacity:
        _grow(b, end)
    p: cython.Py_ssize_t = _put(b.raw, b.size, length)
    b.raw[p] = 0
    p = _put(b.raw, p + 1, delta)
    p = _put(b.raw, p, b.count)
    p = _put(b.raw, p, key_size)
    if key_size > 0:
        if cython.compiled:
            memcpy(b.raw + p, key, key_size)
        else:
            b.raw[p : p + key_size] = key
        p += key_size
    p = _put(b.raw, p, value_size)
    if value_size > 0:
        if cython.compiled:
            memcpy(b.raw + p, value, value_size)
        else:
            b.raw[p : p + value_size] = value
        p += value_size
    b.size = end
    b.count += 1
    if timestamp > b.max_timestamp:
        b.max_timestamp = timestamp
    return p


@cython.cfunc
def _grow(b: BatchBuilder, least: cython.Py_ssize_t) -> object:
    """Make room for `least` bytes: twice as much as there was, and no more than the limit if that does."""
    capacity: cython.Py_ssize_t = b.capacity * 2
    if capacity > b.limit:
        capacity = b.limit
    if capacity < least:
        capacity = least
    if cython.compiled:
        PyByteArray_Resize(b.out, capacity)
        b.raw = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(b.out))
    else:
        b.out += bytes(capacity - len(b.out))
    b.capacity = capacity
    return None


class Place:
    """A record's place in something that will be known: what is made for each record that is sent."""

    def __init__(self, outcome: Any, index: cython.longlong, timestamp_ms: cython.longlong) -> None:
        self.outcome = outcome
        self.index = index
        self.timestamp_ms = timestamp_ms


def now_ms() -> int:
    """Milliseconds since 1970."""
    if cython.compiled:
        milliseconds: cython.longlong = cython.cast(cython.longlong, c_time() * 1000.0)
        return milliseconds
    else:
        return time_ns() // 1_000_000


def unfilled(size: cython.Py_ssize_t) -> bytearray:
    """So many bytes that are not zeroed: all of them are to be filled before anybody looks at them."""
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)


class BinaryRows:
    """A binary column as Arrow keeps it: bytes, int32 offsets into them, a bitmap of rows that are not null.

    `first` is where the rows begin in offsets and bitmap.
    """

    def __init__(self, data: Buffer, offsets: Buffer, validity: Buffer | None, first: int, rows: int) -> None:
        if first < 0 or rows < 0:
            raise ValueError("a column does not begin before its first row")
        self.first = first
        self.rows = rows
        self.has_nulls = validity is not None
        self.data: Any = memoryview(data).cast("B") if len(memoryview(data)) else memoryview(b"\0")
        self.offsets: Any = memoryview(offsets).cast("B").cast("i")
        self.validity: Any = memoryview(b"\0" if validity is None else validity).cast("B")
        _check(self)

    def __getitem__(self, row: cython.Py_ssize_t) -> bytes | None:
        if not 0 <= row < self.rows:
            raise IndexError(row)
        if _row_size(self, row) < 0:
            return None
        start: cython.Py_ssize_t = self.offsets[self.first + row]
        return bytes(self.data[start : self.offsets[self.first + row + 1]])

    def partitions(self, count: cython.int, default: cython.int, out: Buffer) -> None:
        """Write each row's partition by Java's murmur2 to `out`, int32; null rows go to `default`."""
        target = cython.declare(cython.int[::1], out)
        row: cython.Py_ssize_t
        for row in range(self.rows):
            size: cython.Py_ssize_t = _row_size(self, row)
            if size < 0:
                target[row] = default
            elif cython.compiled:
                target[row] = (_murmur2(_row_start(self, row), size) & 0x7FFFFFFF) % count
            else:
                target[row] = partition_of(self[row] or b"", count)


def partition_of(key: bytes, count: cython.int) -> cython.int:
    """The partition that Java's client chooses for a key."""
    if cython.compiled:
        return (_murmur2(cython.cast(cython.p_const_uchar, key), len(key)) & 0x7FFFFFFF) % count
    else:
        return (murmur2(key) & 0x7FFFFFFF) % count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2(raw: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.uint:
    """What encode_kernel.murmur2 gives, unsigned, of bytes that no Python object holds."""
    h: cython.uint = 0x9747B28C
    h ^= cython.cast(cython.uint, size)
    k: cython.uint
    i: cython.Py_ssize_t = 0
    while i + 4 <= size:
        k = raw[i] | (raw[i + 1] << 8) | (raw[i + 2] << 16) | (cython.cast(cython.uint, raw[i + 3]) << 24)
        k = k * 0x5BD1E995
        k ^= k >> 24
        k = k * 0x5BD1E995
        h = (h * 0x5BD1E995) ^ k
        i += 4
    if i < size:
        if size - i == 3:
            h ^= raw[i + 2] << 16
        if size - i >= 2:
            h ^= raw[i + 1] << 8
        h ^= raw[i]
        h = h * 0x5BD1E995
    h ^= h >> 13
    h = h * 0x5BD1E995
    h ^= h >> 15
    return h


def _check(rows: BinaryRows) -> None:
    """No row may reach beyond the column's bytes."""
    limit: cython.Py_ssize_t = len(rows.data)
    if len(rows.offsets) < rows.first + rows.rows + 1:
        raise ValueError("a column with fewer offsets than rows")
    if rows.has_nulls and len(rows.validity) * 8 < rows.first + rows.rows:
        raise ValueError("a column with fewer bits than rows")
    before: cython.Py_ssize_t = rows.offsets[rows.first]
    row: cython.Py_ssize_t
    after: cython.Py_ssize_t
    if before < 0:
        raise ValueError("a column's offsets begin at 0 or later")
    for row in range(rows.first + 1, rows.first + rows.rows + 1):
        after = rows.offsets[row]
        if after < before or after > limit:
            raise ValueError("a column's offsets never fall and stay within its bytes")
        before = after


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _row_size(rows: BinaryRows, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The size of a row, -1 if it is null."""
    row += rows.first
    if rows.has_nulls and not (rows.validity[row >> 3] >> (row & 7)) & 1:
        return -1
    return rows.offsets[row + 1] - rows.offsets[row]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _row_start(rows: BinaryRows, row: cython.Py_ssize_t) -> cython.p_const_uchar:
    """Where a row's bytes are; only when compiled."""
    if cython.compiled:
        return cython.address(rows.data[0]) + rows.offsets[rows.first + row]
    else:
        return None


def group_rows(
    partitions: Buffer, least: cython.int, count: cython.int, order: Buffer, starts: Buffer
) -> None:
    """Sort row numbers by partition, keeping their order within each.

    `partitions` (int32, one for each row) is read, `count` different ones from `least` on; `order` (int32, as
    many) gets the rows, and those of partition least + i are the ones from `starts[i]` up to `starts[i + 1]`
    (int32, `count` + 1).
    """
    chosen = cython.declare(cython.const[cython.int][::1], partitions)
    numbers = cython.declare(cython.int[::1], order)
    begins = cython.declare(cython.int[::1], starts)
    rows: cython.Py_ssize_t = len(chosen)
    row: cython.Py_ssize_t
    index: cython.int
    for index in range(count + 1):
        begins[index] = 0
    for row in range(rows):
        index = chosen[row] - least
        if index < 0 or index >= count:
            raise ValueError(f"row {row} is for partition {index + least}")
        begins[index + 1] += 1
    for index in range(count):
        begins[index + 1] += begins[index]
    for row in range(rows):
        index = chosen[row] - least
        numbers[begins[index]] = row
        begins[index] += 1
    for index in range(count, 0, -1):
        begins[index] = begins[index - 1]
    begins[0] = 0
