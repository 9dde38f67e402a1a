from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import textwrap
import zlib

import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.protocol.compression import Codec, Undecompressable, compress, decompress, is_linked_lz4

LIMIT = 1 << 20
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def linked_lz4(data: bytes) -> bytes:
    return bytes(cramjam.lz4.compress(data))


def streamed_zstd(*parts: bytes) -> bytes:
    """A frame that does not say how large its content is, with a block for each part."""
    stream = cramjam.zstd.Compressor(level=3)
    out = b""
    for part in parts:
        stream.compress(part)
        out += bytes(stream.flush())
    return out + bytes(stream.finish())


@pytest.mark.parametrize("codec", list(Codec))
@settings(max_examples=60)
@given(
    data=st.binary(max_size=2000)
    | st.builds(lambda b, n: b * n, st.binary(max_size=30), st.integers(0, 9000))
)
@example(data=b"")
@example(data=b"x" * 300_000)
def test_round_trip(codec: Codec, data: bytes) -> None:
    compressed = bytes(compress(codec, data))
    assert decompress(codec, compressed, LIMIT) == data
    assert decompress(codec, memoryview(compressed), max(len(data), 1)) == data


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("size", [1, 1000, 65_536, 131_073, 3_000_000])
def test_the_limit_is_exact(codec: Codec, size: int) -> None:
    data = os.urandom(size // 2) + b"a" * (size - size // 2)
    compressed = bytes(compress(codec, data))
    assert decompress(codec, compressed, size) == data
    with pytest.raises(Undecompressable):
        decompress(codec, compressed, size - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_cut_off_at_every_byte(codec: Codec) -> None:
    compressed = bytes(compress(codec, os.urandom(100) + b"a" * 500))
    for size in range(len(compressed)):
        if codec == Codec.SNAPPY and size == 16:
            continue  # a stream of no blocks is whole
        with pytest.raises(Undecompressable):
            decompress(codec, compressed[:size], LIMIT)


@pytest.mark.parametrize("codec", COMPRESSING)
@settings(max_examples=200)
@given(data=st.data())
def test_changed_bytes_raise_one_error_or_stay_within_the_limit(codec: Codec, data: st.DataObject) -> None:
    broken = bytearray(compress(codec, b"some text that repeats, " * 40))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, broken, 5000)) <= 5000
    except Undecompressable:
        pass


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(max_size=100))
def test_random_bytes_raise_one_error_or_stay_within_the_limit(codec: Codec, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 500)) <= 500
    except Undecompressable:
        pass


def test_unknown_codecs() -> None:
    with pytest.raises(Undecompressable, match="no codec 5"):
        decompress(5, b"", LIMIT)
    with pytest.raises(ValueError, match="5"):
        compress(5, b"")


def test_levels_are_used() -> None:
    data = b"".join(b"%d," % (i * i % 7919) for i in range(20_000))
    assert len(bytes(compress(Codec.GZIP, data, 9))) < len(bytes(compress(Codec.GZIP, data, 1)))
    assert len(bytes(compress(Codec.ZSTD, data, 19))) < len(bytes(compress(Codec.ZSTD, data, 1)))
    assert bytes(compress(Codec.GZIP, data, -1)) == bytes(compress(Codec.GZIP, data))
    for codec, level in ((Codec.GZIP, 9), (Codec.LZ4, 17), (Codec.ZSTD, -5), (Codec.ZSTD, 22)):
        assert decompress(codec, compress(codec, data, level), LIMIT) == data


def test_gzip_is_what_other_programs_write_and_read() -> None:
    data = b"hello " * 10_000
    assert gzip.decompress(bytes(compress(Codec.GZIP, data))) == data
    assert decompress(Codec.GZIP, gzip.compress(data), LIMIT) == data
    assert decompress(Codec.GZIP, zlib.compress(data, wbits=31), LIMIT) == data


def test_gzip_members_in_a_row() -> None:
    members = gzip.compress(b"a" * 70_000) + gzip.compress(b"b")
    assert decompress(Codec.GZIP, members, 70_001) == b"a" * 70_000 + b"b"
    with pytest.raises(Undecompressable):
        decompress(Codec.GZIP, members, 70_000)


def test_a_gzip_member_that_lies_about_its_size() -> None:
    member = bytearray(gzip.compress(b"a" * 1000))
    for claimed in (0, 999, 1001, 2**32 - 1):
        member[-4:] = struct.pack("<I", claimed)
        with pytest.raises(Undecompressable):
            decompress(Codec.GZIP, member, LIMIT)


def test_snappy_is_framed_as_xerial_does() -> None:
    data = os.urandom(40_000)
    compressed = bytes(compress(Codec.SNAPPY, data))
    assert compressed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (size,) = struct.unpack_from(">i", compressed, 16)
    assert bytes(cramjam.snappy.decompress_raw(compressed[20 : 20 + size])) == data[: 32 * 1024]


def test_bare_snappy_is_read() -> None:
    data = b"abc" * 50_000
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), LIMIT) == data


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x07a", b""])
def test_snappy_blocks_that_lie_about_their_size(block: bytes) -> None:
    header = compress(Codec.SNAPPY, b"")
    framed = bytes(header) + struct.pack(">i", len(block)) + block
    for data in (framed, block) if block else (framed,):
        with pytest.raises(Undecompressable):
            decompress(Codec.SNAPPY, data, 1 << 40)


def test_lz4_frames_have_independent_blocks() -> None:
    compressed = bytes(compress(Codec.LZ4, b"abc" * 50_000))
    assert compressed[:4] == b"\x04\x22\x4d\x18"
    assert not is_linked_lz4(compressed)
    assert is_linked_lz4(linked_lz4(b"abc" * 50_000))
    assert decompress(Codec.LZ4, linked_lz4(b"abc" * 50_000), LIMIT) == b"abc" * 50_000


def test_zstd_frames_without_a_content_size() -> None:
    parts = [os.urandom(1000), b"a" * 400_000, b"tail"]
    compressed = streamed_zstd(*parts)
    assert compressed[4] >> 6 == 0
    assert not compressed[4] & 0x20
    assert decompress(Codec.ZSTD, compressed, LIMIT) == b"".join(parts)
    with pytest.raises(Undecompressable):
        decompress(Codec.ZSTD, compressed, 401_003)


def test_zstd_frames_in_a_row_and_skippable_ones() -> None:
    skippable = struct.pack("<II", 0x184D2A5A, 5) + b"12345"
    frame = bytes(compress(Codec.ZSTD, b"abc" * 100))
    assert decompress(Codec.ZSTD, frame + skippable + frame, LIMIT) == b"abc" * 200


def test_a_zstd_frame_that_claims_much_allocates_little() -> None:
    # one raw block of three bytes in a frame that says it holds 2^40
    frame = struct.pack("<IBQ", 0xFD2FB528, 0b11100000, 1 << 40) + (3 << 3 | 1).to_bytes(3, "little") + b"abc"
    with pytest.raises(Undecompressable, match="more than 3"):
        decompress(Codec.ZSTD, frame, 1 << 50)


BOMB = """
    import resource, sys
    import cramjam
    from millstream.protocol.compression import Codec, Undecompressable, decompress

    def peak_mb():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    bomb = sys.stdin.buffer.read()
    before = peak_mb()
    try:
        decompress(Codec[sys.argv[1]], bomb, 16 << 20)
    except Undecompressable:
        print(peak_mb() - before)
"""


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_within_the_limit(codec: Codec) -> None:
    bomb = bytes(compress(codec, bytes(256 << 20)))
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BOMB), codec.name], input=bomb, capture_output=True, check=True
    )
    assert int(run.stdout) <= 32
