"""The codecs of record batches, with decompression into a bounded buffer.

A few kilobytes may unfold into hundreds of megabytes, so how much a payload can become is worked out
from its own block structure before anything is allocated, and the caller's limit caps it. What a
payload claims about its size is only ever used to allocate less.

Framings are those that the Java client writes and reads: a gzip member; xerial's snappy blocks (a bare
snappy block is read too); one lz4 frame of independent blocks; a zstd frame.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

import cramjam

from millstream.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

_FIRST_TRY_BYTES = 1 << 20


class Codec(IntEnum):
    """The compression of a batch, as its attributes number it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Undecompressable(ProtocolError):
    """A payload that is not what its codec writes, or that would grow beyond the limit."""


DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""The levels that Kafka uses where none is configured; gzip's -1 means 6."""


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """The data in the codec's framing."""
    if level is None:
        level = DEFAULT_LEVELS.get(Codec(codec), 0)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return cramjam.gzip.compress(data, level=6 if level < 0 else level)
        case Codec.SNAPPY:
            return _compress_snappy(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4(memoryview(data), max(level, 0))
        case Codec.ZSTD:
            return cramjam.zstd.compress(data, level=level)
        case _:
            raise ValueError(f"there is no codec {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int) -> memoryview:
    """What the payload was before compression; Undecompressable if that is over the limit, or nonsense."""
    view = memoryview(data)
    match codec:
        case Codec.NONE:
            return view
        case Codec.GZIP:
            bound = min(_DEFLATE_RATIO * len(view), limit_bytes)
            return _decompress_into(cramjam.gzip.decompress_into, view, bound, _gzip_size(view))
        case Codec.SNAPPY:
            return _decompress_snappy(view, limit_bytes)
        case Codec.LZ4:
            return _decompress_into(cramjam.lz4.decompress_into, view, min(_lz4_bound(view), limit_bytes))
        case Codec.ZSTD:
            return _decompress_into(cramjam.zstd.decompress_into, view, min(_zstd_bound(view), limit_bytes))
        case _:
            raise Undecompressable(f"there is no codec {codec}")


def decompress_into(codec: int, data: memoryview, buffer: bytearray) -> int:
    """Decompress into a buffer that is there already; how many bytes that are, -1 if it cannot be done so.

    `decompress` then does it, or says why not.
    """
    try:
        match codec:
            case Codec.GZIP:
                return cramjam.gzip.decompress_into(data, buffer)
            case Codec.LZ4:
                return cramjam.lz4.decompress_into(data, buffer)
            case Codec.ZSTD:
                return cramjam.zstd.decompress_into(data, buffer)
            case _:
                return -1
    except cramjam.DecompressionError:
        return -1


def _decompress_into(
    codec: Callable[[memoryview, bytearray], int], data: memoryview, bound: int, guess: int | None = None
) -> memoryview:
    """Decompress into a buffer that grows, while it is too small, from a guess to at most `bound` bytes.

    Trying again costs a third more at worst, since the buffer grows fourfold.
    """
    if guess is None:
        guess = max(_FIRST_TRY_BYTES, 32 * len(data))
    capacity = min(bound, guess)
    while True:
        buffer = _room(capacity)
        try:
            size = codec(data, buffer)
        except cramjam.DecompressionError as error:
            if capacity < bound:
                capacity = min(bound, max(_FIRST_TRY_BYTES, capacity * 4))
                continue
            raise Undecompressable(
                f"{len(data)} compressed bytes are broken or become more than {bound}: {error}"
            ) from None
        return memoryview(buffer)[:size]


def _room(size: int) -> bytearray:
    """Room for `size` bytes, with anything in it if it is large.

    Filling 64 MB with zeros takes 45 ms, in which no other thread gets to run.
    """
    if size < _FIRST_TRY_BYTES:
        return bytearray(size)
    import ctypes

    make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
    made: bytearray = make(None, size)
    return made


_DEFLATE_RATIO = 1032


def _gzip_size(data: memoryview) -> int:
    """What the last member says it holds, which is all unless there are several."""
    return min(int.from_bytes(data[-4:], "little"), _DEFLATE_RATIO * len(data))


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024


def _compress_snappy(data: memoryview) -> bytes:
    """Xerial's framing: a header, then blocks of at most 32 KB, each behind its length."""
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _snappy_blocks(data: memoryview) -> list[memoryview]:
    if data[:8] != _XERIAL_MAGIC:
        if not data:
            raise Undecompressable("a snappy block has at least one byte")
        return [data]
    blocks = []
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise Undecompressable("a snappy stream without its header")
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size == 0 or size > len(data) - position:
            raise Undecompressable("a snappy block is longer than what is left")
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _decompress_snappy(data: memoryview, limit_bytes: int) -> memoryview:
    blocks = _snappy_blocks(data)
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        total = sum(sizes)
        # three bytes copy at most 64
        if total > limit_bytes or total > 22 * len(data) + 64:
            raise Undecompressable(f"{len(data)} bytes of snappy say they become {total}")
        buffer = memoryview(_room(total))
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, buffer[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise Undecompressable(f"broken snappy block: {error}") from None
    return buffer


_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
"""A frame of version 1 with independent blocks of at most 64 KB and no checksums but this header's own."""
_LZ4_HEADER_BYTES = 7
_LZ4_END = bytes(4)


def _compress_lz4(data: memoryview, level: int) -> bytes:
    """A frame whose blocks do not depend on each other: Kafka's reader refuses others.

    Each block is made as a frame of its own, the one way to compress well that lets the interpreter go.
    """
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES[4]):
        frame = memoryview(cramjam.lz4.compress(data[start : start + _LZ4_BLOCK_BYTES[4]], level=level))
        size = int.from_bytes(frame[_LZ4_HEADER_BYTES : _LZ4_HEADER_BYTES + 4], "little") & 0x7FFFFFFF
        parts.append(frame[_LZ4_HEADER_BYTES : _LZ4_HEADER_BYTES + 4 + size])
    parts.append(_LZ4_END)
    return b"".join(parts)


def is_linked_lz4(data: Buffer) -> bool:
    """Whether the frame's blocks depend on each other, which Kafka's clients cannot read."""
    view = memoryview(data)
    return len(view) > 4 and not view[4] & 0x20


def _lz4_bound(data: memoryview) -> int:
    """The sum of what the frame's blocks can hold at most."""
    position = 0
    bound = 0
    while position < len(data):
        if len(data) - position < 7 or int.from_bytes(data[position : position + 4], "little") != _LZ4_MAGIC:
            raise Undecompressable("not an lz4 frame")
        flags = data[position + 4]
        block_bytes = _LZ4_BLOCK_BYTES.get(data[position + 5] >> 4 & 7)
        if block_bytes is None:
            raise Undecompressable("an lz4 frame with an unknown block size")
        position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        checksum_bytes = 4 if flags & 0x10 else 0
        while True:
            if len(data) - position < 4:
                raise Undecompressable("an lz4 frame without its end")
            size = int.from_bytes(data[position : position + 4], "little")
            position += 4
            if size == 0:
                break
            stored = size & 0x7FFFFFFF
            bound += stored if size >> 31 else min(block_bytes, 255 * stored)
            position += stored + checksum_bytes
        position += 4 if flags & 0x04 else 0
    return bound


_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES = 128 * 1024


def _zstd_bound(data: memoryview) -> int:
    """The sum of what the blocks can hold at most, or what the frame says if that is less."""
    position = 0
    bound = 0
    while position < len(data):
        if len(data) - position < 6:
            raise Undecompressable("not a zstd frame")
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == 0x184D2A50:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            raise Undecompressable("not a zstd frame")
        descriptor = data[position + 4]
        is_single_segment = descriptor >> 5 & 1
        size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
        claimed = int.from_bytes(data[position : position + size_bytes], "little")
        if size_bytes == 2:
            claimed += 256
        position += size_bytes
        frame_bound = 0
        is_last = False
        while not is_last:
            if len(data) - position < 3:
                raise Undecompressable("a zstd frame without its end")
            block = int.from_bytes(data[position : position + 3], "little")
            is_last = bool(block & 1)
            kind = block >> 1 & 3
            size = block >> 3
            frame_bound += size if kind < 2 else _ZSTD_BLOCK_BYTES
            position += 3 + (1 if kind == 1 else size)
        position += 4 if descriptor & 4 else 0
        bound += min(frame_bound, claimed) if size_bytes else frame_bound
    return bound
