# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: RET505 (a branch on cython.compiled is decided by the compiler)
"""The last offset of every key in a part of a log, in Cython's pure-Python mode.

kernel.py describes the bytes of batches and records. offset_map_kernel.pxd holds the C layout of the class.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from millstream.protocol.header import BAD_COUNT, BAD_RECORD, GOOD, BatchHeader
from millstream.protocol.walk_kernel import CALLER, COUNTS, FULL

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.stdlib import calloc, free
else:
    from millstream.protocol.kernel import Cursor, advance, place, read_i32, read_i64
    from millstream.protocol.walk_kernel import Checksum, OpenTransactions, judge, meet

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)

# C integers, for loops that hold no Python object
_caller = cython.declare(cython.int, CALLER)
_counts = cython.declare(cython.int, COUNTS)
_full = cython.declare(cython.int, FULL)
_good = cython.declare(cython.int, GOOD)
_bad_record = cython.declare(cython.int, BAD_RECORD)
_bad_count = cython.declare(cython.int, BAD_COUNT)


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
            return find_key(self, cython.cast(cython.p_const_uchar, key), 0, len(key))
        else:
            return find_key(self, memoryview(key), 0, len(key))

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
        place(c, chunk, start, end)
        with cython.nogil:
            self.stop = _add_batches(self, c, end, transactions)
        return c.position

    def add_records(self, payload: Buffer, start: cython.Py_ssize_t, header: BatchHeader) -> int:
        """Put the keys of one batch's uncompressed records; an error kind, or FULL."""
        c: Cursor = self.cursor
        place(c, payload, start, len(memoryview(payload)))
        count: cython.longlong = header.count
        base_offset: cython.longlong = header.base_offset
        error: cython.int
        with cython.nogil:
            error = _add_records(self, c, count, base_offset)
        return error


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
def find_key(
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
        if not advance(c):
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
        error = judge(m.checksum, c.raw, p, end, m.next_offset)
        if error != _good:
            break
        base_offset: cython.longlong = read_i64(c.raw, p)
        last_offset: cython.longlong = base_offset + read_i32(c.raw, p + 23)
        following: cython.Py_ssize_t = p + 12 + read_i32(c.raw, p + 8)
        kind: cython.int = meet(transactions, c, p, following, -1)
        if kind == _caller:
            error = kind
            c.position = p
            break
        if last_offset >= m.first_offset and kind == _counts:
            c.position = p + 61
            c.end = following
            error = _add_records(m, c, read_i32(c.raw, p + 57), base_offset)
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
