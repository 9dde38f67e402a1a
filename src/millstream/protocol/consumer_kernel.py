# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505 (a branch on cython.compiled is decided by the compiler)
"""Records one by one out of fetched bytes, in Cython's pure-Python mode.

kernel.py describes the bytes of batches and records. Here a record becomes an object only when it is asked
for, so what was fetched ahead stays the bytes that came from the socket. consumer_kernel.pxd holds the C
layout of the classes. No input is read beyond its end: every length is compared with what remains.

The readers of numbers are this module's own, since those of kernel.py, in another extension module, could not
be inlined into the loop over records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from millstream.errors import BadRecords, CorruptMessage
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of, readable_batches
from millstream.protocol.header import (
    BAD_COUNT,
    BAD_RECORD,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    REASONS,
    BatchHeader,
)

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

IS_COMPILED = bool(cython.compiled)

# C integers, for loops that hold no Python object
_codec_mask = cython.declare(cython.longlong, CODEC_MASK)
_control = cython.declare(cython.longlong, CONTROL)
_log_append_time = cython.declare(cython.longlong, LOG_APPEND_TIME)
_header_size = cython.declare(cython.Py_ssize_t, HEADER_SIZE)

Headers = tuple[tuple[str, "bytes | None"], ...]


class Record:
    """One record as a consumer gets it. Headers are pairs of a name and bytes or None; names may repeat."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp_ms", "topic", "value")

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Headers

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: Any,
        value: Any,
        headers: Headers = (),
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers

    def _values(self) -> tuple[Any, ...]:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self) -> Any:
        return Record, self._values()

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, "
            f"headers={self.headers!r})"
        )


class Cursor:
    """A place in bytes, and how far a record reaches; bad once something did not end within it."""

    raw: Any
    at: int
    limit: int
    is_bad: bool


class RecordReader(Cursor):
    """The records that one Fetch brought from one partition, taken one after the other.

    `position` is the offset at which reading goes on: that after the last record taken, and once
    `is_done` the one behind all that was fetched, where control batches and aborted transactions may
    lie that are never seen. `leader_epoch` is that of the batch last looked into, -1 before.

    The batches were checked when they came (checksums, continuity): `end_offset` is the offset after
    the last good one. A record that cannot be deserialised raises what the function raised, a batch whose
    compressed records are broken raises BadRecords, and neither is passed: the next call meets it again.
    `header` is that of the batch last looked into.

    A signal may raise wherever interpreted code calls something. So a record is passed, and a batch opened,
    by assignments between which nothing is called; `start` is where the next record begins until then.
    """

    topic: str
    partition: int
    position: int
    leader_epoch: int
    is_done: bool
    data: Any
    aborted: Any
    owner: Any
    size_bytes: int
    key_of: Any
    value_of: Any
    batches: Any
    header: Any
    from_offset: int
    payload: Any
    start: int
    end: int
    left: int
    base_offset: int
    next_offset: int
    end_offset: int
    base_timestamp: int
    has_log_time: bool

    def __init__(
        self,
        topic: str,
        partition: int,
        data: memoryview,
        from_offset: int,
        end_offset: int,
        aborted: Sequence[tuple[int, int]] | None = None,
        key_of: Callable[[bytes], Any] | None = None,
        value_of: Callable[[bytes], Any] | None = None,
        owner: Any = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.data = data
        self.from_offset = from_offset
        self.position = from_offset
        self.end_offset = end_offset
        self.aborted = aborted
        self.key_of = key_of
        self.value_of = value_of
        self.owner = owner
        self.size_bytes = len(data)
        self.leader_epoch = -1
        self.header = None
        self.is_done = False
        self.is_bad = False
        self.left = 0
        self.batches = readable_batches(data, from_offset, aborted, False, False)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record = _next(self)
        if record is None:
            raise StopIteration
        return record

    def take(self, count: cython.Py_ssize_t) -> list[Record]:
        """At most so many records. An error is raised once what lies before it was taken."""
        records: list[Record] = []
        try:
            while count > 0:
                record = _next(self)
                if record is None:
                    break
                records.append(record)
                count -= 1
        except Exception:
            if not records:
                raise
        return records

    def take_batch(self) -> list[Record]:
        """What is left of one batch, whose header is `header` then; nothing behind the last."""
        records: list[Record] = []
        try:
            while not records or self.left > 0:
                record = _next(self)
                if record is None:
                    break
                records.append(record)
        except Exception:
            if not records:
                raise
        return records

    def skip(self, position: int) -> None:
        """Go on at `position`, the caller having read what lies before it in another way."""
        self.from_offset = self.position = position
        self.left = 0
        if position >= self.end_offset:
            _finish(self)
        else:
            self.batches = readable_batches(self.data, position, self.aborted, False, False)


@cython.cfunc
def _finish(r: RecordReader) -> cython.void:
    r.is_done = True
    r.left = 0
    r.position = max(r.position, r.end_offset)
    r.batches = None
    r.data = None
    if cython.compiled:
        r.payload = None
    else:
        r.payload = r.raw = None


@cython.cfunc
def _open(r: RecordReader) -> cython.bint:
    """Go on to the next batch; false if there is none."""
    if r.is_done:
        return False
    try:
        found = next(r.batches, None)
        if found is None:
            _finish(r)
            return False
        header: BatchHeader = found[0]
        payload, start = payload_of(r.data, header, found[1], MAX_DECOMPRESSED_BYTES)
        end = len(payload)
        next_offset = header.next_offset
    except CorruptMessage as error:
        r.batches = readable_batches(r.data, r.position, r.aborted, False, False)
        raise BadRecords(f"partition {r.topic}-{r.partition}, {error.message}") from None
    except BaseException:  # a signal's, say: a generator in which one was raised has ended
        r.batches = readable_batches(r.data, r.position, r.aborted, False, False)
        raise
    r.header = header
    r.payload = payload
    if cython.compiled:
        r.raw = cython.address(r.payload[0])
    else:
        r.raw = payload
    r.start = start
    r.end = end
    r.left = header.count
    r.base_offset = header.base_offset
    r.next_offset = next_offset
    r.leader_epoch = header.leader_epoch
    r.has_log_time = header.attributes & LOG_APPEND_TIME != 0
    r.base_timestamp = header.max_timestamp if r.has_log_time else header.base_timestamp
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(r: Cursor) -> cython.longlong:
    """The varint under the cursor; one that does not end within the record makes the record bad."""
    raw: cython.p_const_uchar = r.raw
    at: cython.Py_ssize_t = r.at
    limit: cython.Py_ssize_t = r.limit
    shift: cython.int = 0
    byte: cython.ulonglong
    value: cython.ulonglong = 0
    while at < limit and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            r.at = at
            if cython.compiled:
                return cython.cast(cython.longlong, (value >> 1) ^ (0 - (value & 1)))
            else:
                value &= 0xFFFFFFFFFFFFFFFF
                return (value >> 1) ^ -(value & 1)
        shift += 7
    r.is_bad = True
    return -1


@cython.cfunc
@cython.inline
def _bytes(r: RecordReader, size: cython.longlong) -> bytes:
    """So many bytes under the cursor, which are known to be there."""
    at: cython.Py_ssize_t = r.at
    r.at = at + size
    if cython.compiled:
        return r.raw[at : at + size]
    else:
        return bytes(r.raw[at : at + size])


@cython.cfunc
@cython.inline
def _field(r: RecordReader) -> object:
    """The bytes under the cursor, their length before them, or None."""
    size: cython.longlong = _number(r)
    if size < 0:
        r.is_bad = r.is_bad or size != -1
        return None
    if size > r.limit - r.at:
        r.is_bad = True
        return None
    return _bytes(r, size)


@cython.cfunc
def _headers(r: RecordReader, count: cython.longlong) -> tuple:  # type: ignore[type-arg]
    found = []
    while count > 0 and not r.is_bad:
        name = _field(r)
        if name is None:
            r.is_bad = True
            break
        found.append((name.decode("utf-8", "replace"), _field(r)))
        count -= 1
    return tuple(found)


@cython.cfunc
def _bad(r: RecordReader, reason: cython.int) -> object:
    return BadRecords(
        f"partition {r.topic}-{r.partition}, the batch at offset {r.base_offset}: {REASONS[reason]}"
    )


@cython.cfunc
def _next(r: RecordReader) -> object:
    """The next record, or None behind the last."""
    while True:
        if r.left <= 0:
            if not _open(r):
                return None
            if r.left <= 0:
                continue
        r.at = r.start
        r.limit = r.end
        r.is_bad = False
        length: cython.longlong = _number(r)
        if r.is_bad:
            raise _bad(r, BAD_COUNT)
        if length < 1 or length > r.end - r.at:
            raise _bad(r, BAD_RECORD)
        r.limit = r.at + length
        r.at += 1  # the attributes, which mean nothing yet
        timestamp_delta: cython.longlong = _number(r)
        offset: cython.longlong = r.base_offset + _number(r)
        if offset < r.from_offset and not r.is_bad:
            r.start = r.limit
            r.left -= 1
            continue
        key = _field(r)
        value = _field(r)
        count: cython.longlong = _number(r)
        headers = () if count == 0 else _headers(r, count)
        if r.is_bad or count < 0 or r.at != r.limit or (r.left == 1 and r.at != r.end):
            raise _bad(r, BAD_RECORD)
        if r.key_of is not None or r.value_of is not None:
            try:
                if r.key_of is not None and key is not None:
                    key = r.key_of(key)
                if r.value_of is not None and value is not None:
                    value = r.value_of(value)
            except BaseException as error:
                error.add_note(f"in partition {r.topic}-{r.partition} at offset {offset}")
                raise
        record: Record = Record.__new__(Record)
        record.topic = r.topic
        record.partition = r.partition
        record.offset = offset
        record.timestamp_ms = r.base_timestamp if r.has_log_time else r.base_timestamp + timestamp_delta
        record.key = key
        record.value = value
        record.headers = headers
        r.start = r.limit
        r.left -= 1
        r.position = r.next_offset if r.left == 0 else offset + 1
        return record


class PlainColumns(Cursor):
    """Columns filled in one walk, for whole batches that are plain: not compressed, and without headers.

    `capacity` says how many rows there can be; the buffers are the caller's, laid out as ColumnWriter of
    kernel.py has them, and large enough for so many rows and all bytes. All but those of keys and values are
    zeroed. `fill` is false where something is not plain, or not well formed: another decoder is to look at it
    then.
    """

    rows: int
    null_keys: int
    null_values: int
    payload: Any
    offsets: Any
    timestamps: Any
    timestamp_types: Any
    key_data: Any
    key_offsets: Any
    key_validity: Any
    value_data: Any
    value_offsets: Any
    value_validity: Any

    def __init__(self, data: memoryview) -> None:
        self.payload = data
        self.rows = self.null_keys = self.null_values = 0
        self.at = self.limit = 0
        self.is_bad = False
        if cython.compiled:
            self.raw = cython.address(self.payload[0])
        else:
            self.raw = self.payload

    def capacity(self, from_offset: cython.longlong) -> int:
        """How many rows there are at most from an offset on; -1 where something is not plain."""
        return _capacity(self, len(self.payload), from_offset)

    def fill(self, columns: Any, from_offset: cython.longlong) -> bool:
        """Fill columns from an offset on; false where something is not plain."""
        self.offsets = columns.offsets
        self.timestamps = columns.timestamps
        self.timestamp_types = columns.timestamp_types
        self.key_data = columns.keys.data
        self.key_offsets = columns.keys.offsets
        self.key_validity = columns.keys.validity
        self.value_data = columns.values.data
        self.value_offsets = columns.values.offsets
        self.value_validity = columns.values.validity
        size: cython.Py_ssize_t = len(self.payload)
        is_good: cython.bint
        with cython.nogil:
            is_good = _fill_all(self, size, from_offset)
        return is_good


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _big(raw: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.longlong:
    """A signed big-endian number."""
    i: cython.Py_ssize_t
    value: cython.longlong = raw[at]
    if value > 127:
        value -= 256
    for i in range(1, size):
        value = value * 256 + raw[at + i]
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _capacity(c: PlainColumns, size: cython.Py_ssize_t, from_offset: cython.longlong) -> cython.Py_ssize_t:
    raw: cython.p_const_uchar = c.raw
    at: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = 0
    while size - at >= _header_size:
        length: cython.longlong = _big(raw, at + 8, 4) + 12
        count: cython.longlong = _big(raw, at + 57, 4)
        attributes: cython.longlong = _big(raw, at + 21, 2)
        if length < _header_size or length > size - at or count < 0 or count > length:
            return -1
        if not attributes & _control:
            if attributes & _codec_mask:
                return -1
            if _big(raw, at, 8) + _big(raw, at + 23, 4) >= from_offset:
                rows += count
        at += length
    return rows


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_all(c: PlainColumns, size: cython.Py_ssize_t, from_offset: cython.longlong) -> cython.bint:
    raw: cython.p_const_uchar = c.raw
    at: cython.Py_ssize_t = 0
    while size - at >= _header_size:
        end: cython.Py_ssize_t = at + 12 + _big(raw, at + 8, 4)
        if end - at < _header_size or end > size:
            return False
        is_shown: cython.bint = not _big(raw, at + 21, 2) & _control
        last_offset: cython.longlong = _big(raw, at, 8) + _big(raw, at + 23, 4)
        if is_shown and last_offset >= from_offset and not _fill_batch(c, at, end, from_offset):
            return False
        at = end
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_batch(
    c: PlainColumns, at: cython.Py_ssize_t, end: cython.Py_ssize_t, from_offset: cython.longlong
) -> cython.bint:
    raw: cython.p_const_uchar = c.raw
    base_offset: cython.longlong = _big(raw, at, 8)
    is_log_time: cython.bint = _big(raw, at + 21, 2) & _log_append_time != 0
    base_timestamp: cython.longlong = _big(raw, at + (35 if is_log_time else 27), 8)
    count: cython.longlong = _big(raw, at + 57, 4)
    row: cython.Py_ssize_t = c.rows
    key_end: cython.Py_ssize_t = c.key_offsets[row]
    value_end: cython.Py_ssize_t = c.value_offsets[row]
    capacity: cython.Py_ssize_t = c.offsets.shape[0]
    key_room: cython.Py_ssize_t = c.key_data.shape[0]
    value_room: cython.Py_ssize_t = c.value_data.shape[0]
    _: cython.longlong
    c.at = at + _header_size
    for _ in range(count):
        c.limit = end
        length: cython.longlong = _number(c)
        if c.is_bad or length < 1 or length > end - c.at:
            return False
        c.limit = c.at + length
        c.at += 1
        delta: cython.longlong = _number(c)
        offset: cython.longlong = base_offset + _number(c)
        key_size: cython.longlong = _number(c)
        key_start: cython.Py_ssize_t = c.at
        if c.is_bad or key_size < -1 or key_size > c.limit - key_start:
            return False
        if key_size > 0:
            c.at += key_size
        value_size: cython.longlong = _number(c)
        value_start: cython.Py_ssize_t = c.at
        if c.is_bad or value_size < -1 or value_size > c.limit - value_start:
            return False
        if value_size > 0:
            c.at += value_size
        if _number(c) != 0 or c.is_bad or c.at != c.limit:
            return False
        if offset < from_offset:
            continue
        if row >= capacity or key_end + key_size > key_room or value_end + value_size > value_room:
            return False
        c.offsets[row] = offset
        c.timestamps[row] = base_timestamp if is_log_time else base_timestamp + delta
        c.timestamp_types[row] = is_log_time
        if key_size < 0:
            c.null_keys += 1
        else:
            c.key_validity[row >> 3] |= 1 << (row & 7)
            if cython.compiled:
                memcpy(cython.address(c.key_data[key_end]), raw + key_start, key_size)
            else:
                c.key_data[key_end : key_end + key_size] = raw[key_start : key_start + key_size]
            key_end += key_size
        if value_size < 0:
            c.null_values += 1
        else:
            c.value_validity[row >> 3] |= 1 << (row & 7)
            if cython.compiled:
                memcpy(cython.address(c.value_data[value_end]), raw + value_start, value_size)
            else:
                c.value_data[value_end : value_end + value_size] = raw[value_start : value_start + value_size]
            value_end += value_size
        row += 1
        c.key_offsets[row] = key_end
        c.value_offsets[row] = value_end
    c.rows = row
    return c.at == end
