# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# mypy: disallow-untyped-decorators=False, warn-return-any=False, warn-unreachable=False
# ruff: noqa: SIM108 (a branch on cython.compiled is decided by the compiler, an expression is not)
"""The loops that write records, and the hash of their keys, in Cython's pure-Python mode.

kernel.py describes the bytes of records. encode_kernel.pxd names the functions that other kernels call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from millstream.protocol import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    from millstream.protocol.kernel import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

IS_COMPILED = bool(cython.compiled)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def varint_size(value: cython.longlong) -> cython.int:
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
@cython.nogil
@cython.exceptval(check=False)
def put_varint(raw: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
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
    p = put_varint(raw, p, size)
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
        size: cython.Py_ssize_t = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
        length: cython.Py_ssize_t = -1 if record.key is None else len(record.key)
        size += varint_size(length) + max(0, length)
        length = -1 if record.value is None else len(record.value)
        size += varint_size(length) + max(0, length)
        headers = [(name.encode(), value) for name, value in record.headers] if record.headers else None
        length = 0 if headers is None else len(headers)
        size += varint_size(length)
        if headers is not None:
            for encoded, value in headers:
                size += (
                    varint_size(len(encoded))
                    + len(encoded)
                    + (1 if value is None else varint_size(len(value)) + len(value))
                )
        p = put_varint(raw, p, size)
        raw[p] = 0
        p = put_varint(raw, p + 1, timestamp_delta)
        p = put_varint(raw, p, offset_delta)
        p = _put_bytes(raw, p, record.key)
        p = _put_bytes(raw, p, record.value)
        p = put_varint(raw, p, length)
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
