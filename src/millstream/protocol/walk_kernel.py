# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505 (a branch on cython.compiled is decided by the compiler)
"""What a walk over the batches of a log meets: whether each is whole, and the transactions it goes through.

Compaction walks a log twice, once to learn its keys (offset_map_kernel.py) and once to copy what stays
(filter_kernel.py). Both are in Cython's pure-Python mode, as kernel.py, which describes the bytes, and run
without the interpreter's lock; walk_kernel.pxd holds the C layout of the classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from millstream.protocol.header import BAD_CRC, BAD_LENGTH, BAD_MAGIC, BAD_OFFSET, GOOD, TRUNCATED

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.stdlib import free, realloc
else:
    from millstream.protocol.kernel import Cursor, advance, read_i16, read_i32, read_i64, read_u32

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)

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

COUNTS = 0
"""The records of a batch count."""
LAPSED = 1
"""They do not: their transaction was aborted."""
STAYS = 2
"""A batch is a marker that needs nothing done to it."""

# C integers, for loops that hold no Python object
_caller = cython.declare(cython.int, CALLER)
_counts = cython.declare(cython.int, COUNTS)
_lapsed = cython.declare(cython.int, LAPSED)
_stays = cython.declare(cython.int, STAYS)
_kept = cython.declare(cython.int, KEPT)
_aborted = cython.declare(cython.int, ABORTED)
_truncated = cython.declare(cython.int, TRUNCATED)
_bad_length = cython.declare(cython.int, BAD_LENGTH)
_bad_magic = cython.declare(cython.int, BAD_MAGIC)
_bad_crc = cython.declare(cython.int, BAD_CRC)
_bad_offset = cython.declare(cython.int, BAD_OFFSET)
_good = cython.declare(cython.int, GOOD)
_largest_offset = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFE)


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
            return checksum_of(self, cython.address(view[0]), 0, view.shape[0])
        else:
            return checksum_of(self, memoryview(data), 0, len(view))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def checksum_of(
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
def judge(
    checksum: Checksum,
    raw: cython.p_const_uchar,
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    next_offset: cython.longlong,
) -> cython.int:
    """What is wrong with the batch at `p`, whose offsets are to be at least `next_offset`."""
    if end - p < 61:
        return _truncated
    size: cython.longlong = read_i32(raw, p + 8) + 12
    if size < 61:
        return _bad_length
    if raw[p + 16] != 2:
        return _bad_magic
    if size > end - p:
        return _truncated
    base: cython.longlong = read_i64(raw, p)
    delta: cython.longlong = read_i32(raw, p + 23)
    if base < next_offset or delta < 0 or base > _largest_offset - delta or read_i32(raw, p + 57) < 0:
        return _bad_offset
    if checksum_of(checksum, raw, p + 21, p + size) != read_u32(raw, p + 17):
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
def meet(
    t: OpenTransactions,
    c: Cursor,
    p: cython.Py_ssize_t,
    following: cython.Py_ssize_t,
    now_ms: cython.longlong,
) -> cython.int:
    """What a good batch is to a walk: COUNTS, LAPSED or STAYS; CALLER if that is not plain here. `now_ms` is
    -1 where markers are only passed by."""
    raw: cython.p_const_uchar = c.raw
    attributes: cython.int = raw[p + 22]
    if attributes & 7:
        return _caller
    if not attributes & 0x30:
        return _counts
    producer_id: cython.longlong = read_i64(raw, p + 43)
    state: cython.int = _state_of(t, producer_id)
    if not attributes & 0x20:
        if state == _kept:
            return _counts
        if state == 0:
            if read_i64(raw, p) + read_i32(raw, p + 23) >= t.next_aborted:
                return _caller
            return _counts if _set_state(t, producer_id, _kept) else _caller
        _set_state(t, producer_id, _aborted)
        return _lapsed
    if attributes & 0x40 and state == 0 and read_i64(raw, p + 27) > now_ms:
        return _stays  # it was all that was left of its transaction already, and its time has not come
    c.position = p + 61
    c.end = following
    if read_i32(raw, p + 57) != 1 or not advance(c) or c.key_length < 4:
        return _caller
    if read_i16(raw, c.key_start + 2) != 1 or state not in (0, _kept) or (state == 0 and now_ms >= 0):
        return _caller
    _set_state(t, producer_id, 0)
    return _stays
