from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.protocol.header import (
    BAD_COUNT,
    BAD_CRC,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_OFFSET_DELTA,
    BAD_RECORD,
    GOOD,
    HEADER_SIZE,
    REASONS,
    TRUNCATED,
    BatchHeader,
)
from tests.protocol.kernels import KINDS, Records, records_over

NOW_MS = 1_700_000_000_000
COMPILED = records_over("compiled")
INTERPRETED = records_over("interpreted")


def zigzag(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def record(
    index: int = 0,
    *,
    key: bytes = sized(b"k"),
    value: bytes = sized(b"v"),
    headers: bytes = zigzag(0),
    timestamp_delta: bytes = zigzag(0),
    offset_delta: bytes | None = None,
    length_change: int = 0,
) -> bytes:
    """One record's bytes, written independently of the kernel, with parts that may be wrong."""
    body = b"\x00" + timestamp_delta + (zigzag(index) if offset_delta is None else offset_delta) + key + value
    body += headers
    return zigzag(len(body) + length_change) + body


def test_the_kernels_are_what_they_say() -> None:
    assert COMPILED.kernel.IS_COMPILED
    assert not COMPILED.kernel.__file__.endswith(".py")
    assert not INTERPRETED.kernel.IS_COMPILED
    assert INTERPRETED.kernel.__file__.endswith("kernel.py")
    assert INTERPRETED.kernel.cython.__name__ == "millstream.protocol.uncompiled"
    assert INTERPRETED.batch.decode_records is not COMPILED.batch.decode_records


def test_the_source_also_runs_beside_an_installed_cython() -> None:
    beside = records_over("interpreted", with_cython=True)
    assert beside.kernel.cython.__name__.lower().startswith("cython")
    made = [beside.kernel.Record(b"v" * 300, b"k", (("h", None),), NOW_MS + i, i) for i in range(3)]
    assert beside.batch.decode_records(beside.batch.encode_batch(made)) == made
    assert len(beside.batch.decode_columns(beside.batch.encode_batch(made), with_headers=True)) == 3
    assert beside.encode.murmur2(b"21") == -973932308


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(records: Records, key: bytes, expected: int) -> None:
    assert records.encode.murmur2(key) == expected


@given(st.binary(max_size=40))
def test_murmur2_is_the_same_interpreted(key: bytes) -> None:
    assert COMPILED.encode.murmur2(key) == INTERPRETED.encode.murmur2(memoryview(key))


def test_validate_counts_and_times(records: Records) -> None:
    payload = b"".join(
        record(i, key=sized(None if i in (3, 5) else b"k"), timestamp_delta=zigzag(delta))
        for i, delta in enumerate([0, -7, 12, 5, 12, 11])
    )
    walk = records.kernel.validate_records(payload, 6, NOW_MS)
    assert walk == (GOOD, -1, NOW_MS - 7, NOW_MS + 12, 2, 2)
    assert walk.reason == "good"
    assert records.kernel.keyless_records(payload, 0, 6) == [3, 5]
    assert records.kernel.mistimed_records(payload, 0, 6, NOW_MS, NOW_MS, NOW_MS + 11) == [1, 2, 4]


def test_a_timestamp_of_minus_one_is_not_mistimed(records: Records) -> None:
    payload = record(0) + record(1, timestamp_delta=zigzag(6))
    assert records.kernel.mistimed_records(payload, 0, 2, -1, 100, 200) == [1]


@pytest.mark.parametrize(
    ("payload", "count", "error", "index"),
    [
        (b"", 1, BAD_COUNT, 0),
        (record(0), 2, BAD_COUNT, 1),
        (record(0) + record(1), 1, BAD_COUNT, 1),
        (record(0) + b"\x00", 1, BAD_COUNT, 1),
        (record(0) + record(2), 2, BAD_OFFSET_DELTA, 1),
        (record(0) + record(0), 2, BAD_OFFSET_DELTA, 1),
        (record(1), 1, BAD_OFFSET_DELTA, 0),
        (record(-1), 1, BAD_OFFSET_DELTA, 0),
        (record(length_change=1), 1, BAD_RECORD, 0),
        (record(length_change=1) + b"\x00", 1, BAD_RECORD, 0),
        (record(length_change=-1), 1, BAD_RECORD, 0),
        (zigzag(0), 1, BAD_RECORD, 0),
        (zigzag(-1), 1, BAD_RECORD, 0),
        (zigzag(2**31 - 1) + b"\x00" * 20, 1, BAD_RECORD, 0),
        (zigzag(-(2**31)) + b"\x00" * 20, 1, BAD_RECORD, 0),
        (record(key=zigzag(-2)), 1, BAD_RECORD, 0),
        (record(key=zigzag(100) + b"k"), 1, BAD_RECORD, 0),
        (record(value=zigzag(-2)), 1, BAD_RECORD, 0),
        (record(value=zigzag(2**31 - 1)), 1, BAD_RECORD, 0),
        (record(headers=zigzag(-1)), 1, BAD_RECORD, 0),
        (record(headers=zigzag(1)), 1, BAD_RECORD, 0),
        (record(headers=zigzag(2**31 - 1)), 1, BAD_RECORD, 0),
        (record(headers=zigzag(1) + sized(None) + sized(b"v")), 1, BAD_RECORD, 0),
        (record(headers=zigzag(1) + sized(b"n") + zigzag(-2)), 1, BAD_RECORD, 0),
        (record(headers=zigzag(1) + sized(b"n") + zigzag(9)), 1, BAD_RECORD, 0),
        (record(headers=zigzag(2) + sized(b"n") + sized(b"v")), 1, BAD_RECORD, 0),
        (record(offset_delta=b"\x80\x80\x80\x80\x10"), 1, BAD_RECORD, 0),
        (record(offset_delta=b"\x80\x80\x80\x80\x80\x00"), 1, BAD_RECORD, 0),
        (record(timestamp_delta=b"\x80" * 9 + b"\x02"), 1, BAD_RECORD, 0),
        (record(timestamp_delta=b"\x80" * 10 + b"\x00"), 1, BAD_RECORD, 0),
    ],
)
def test_records_that_are_not_good(
    records: Records, payload: bytes, count: int, error: int, index: int
) -> None:
    walk = records.kernel.validate_records(payload, count, NOW_MS)
    assert (walk.error, walk.bad_index) == (error, index)
    assert walk.reason == REASONS[error]


@pytest.mark.parametrize(
    "payload",
    [
        record(offset_delta=b"\x80\x80\x80\x80\x00"),
        record(key=sized(None), value=sized(None)),
        record(key=sized(b""), value=sized(b"")),
        record(headers=zigzag(2) + sized(b"") + sized(None) + sized(b"n") + sized(b"")),
        record(timestamp_delta=zigzag(2**62)),
        record(timestamp_delta=b"\xff" * 9 + b"\x01"),
    ],
)
def test_records_that_are_unusual_but_good(records: Records, payload: bytes) -> None:
    assert records.kernel.validate_records(payload, 1, 0).error == GOOD


def test_timestamps_wrap_as_64_bit_integers_do(records: Records) -> None:
    walk = records.kernel.validate_records(record(timestamp_delta=zigzag(2)), 1, 2**63 - 1)
    assert walk.max_timestamp == -(2**63) + 1


def test_records_cut_off_at_every_byte(records: Records) -> None:
    headers = zigzag(1) + sized(b"name") + sized(b"value")
    payload = b"".join(record(i, headers=headers, value=sized(b"x" * 200)) for i in range(3))
    for size in range(len(payload)):
        walk = records.kernel.validate_records(payload[:size], 3, NOW_MS)
        assert walk.error in (BAD_RECORD, BAD_COUNT), size
        # the same bytes lie behind the end: nothing may be read there
        walk = records.kernel.validate_records(memoryview(payload)[:size], 3, NOW_MS)
        assert walk.error in (BAD_RECORD, BAD_COUNT), size


def outcomes(records: Records, payload: bytes, count: int) -> list[Any]:
    """Everything the kernel says about these bytes, in a form that two kernels can be compared by."""
    kernel = records.kernel
    header = BatchHeader(count=count, base_offset=5, base_timestamp=NOW_MS)
    found: list[Any] = []
    error = kernel.append_records(found, payload, header, 6, 0)
    measured = kernel.measure_records(payload, header, 0, 6)
    return [
        kernel.validate_records(payload, count, NOW_MS),
        kernel.keyless_records(payload, 0, count),
        error,
        [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found],
        measured if measured[0] == GOOD else measured[0],
    ]


@settings(max_examples=300)
@given(st.binary(max_size=80), st.integers(-1, 5))
def test_random_bytes_are_judged_the_same_interpreted(payload: bytes, count: int) -> None:
    assert outcomes(COMPILED, payload, count) == outcomes(INTERPRETED, payload, count)


@settings(max_examples=300)
@given(st.data())
def test_changed_records_are_judged_the_same_interpreted(data: st.DataObject) -> None:
    headers = zigzag(1) + sized(b"name") + sized(data.draw(st.none() | st.binary(max_size=3)))
    payload = bytearray(b"".join(record(i, headers=headers) for i in range(3)))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    assert outcomes(COMPILED, bytes(payload), 3) == outcomes(INTERPRETED, bytes(payload), 3)


def batches(records: Records, *sizes: int, first: int = 0) -> bytearray:
    out = bytearray()
    for size in sizes:
        made = [records.kernel.Record(b"v", None, (), NOW_MS + first + i) for i in range(size)]
        out += records.batch.encode_batch(made, base_offset=first)
        first += size
    return out


def test_scan_walks_to_the_end(records: Records) -> None:
    data = batches(records, 3, 1, 2, first=10)
    scan = records.kernel.scan_batches(data, 0, len(data), True)
    assert scan == (len(data), GOOD, 3, 10, 15, NOW_MS + 15, 15)
    assert scan.reason == "good"
    assert records.kernel.scan_batches(data, 0, len(data), True, 10).error == GOOD
    assert records.kernel.scan_batches(data, 0, len(data), True, 11).error == BAD_OFFSET
    assert records.kernel.scan_batches(b"", 0, 0, True) == (0, GOOD, 0, -1, -1, -1, -1)


def test_scan_names_the_first_largest_timestamp(records: Records) -> None:
    encode, make = records.batch.encode_batch, records.kernel.Record
    data = b"".join(
        encode([make(b"v", timestamp=timestamp)], base_offset=offset)
        for offset, timestamp in enumerate([5, 9, 9, 2])
    )
    scan = records.kernel.scan_batches(data, 0, len(data))
    assert (scan.max_timestamp, scan.max_timestamp_offset) == (9, 1)


def test_scan_between_positions(records: Records) -> None:
    data = batches(records, 1, 1, 1)
    size = len(data) // 3
    scan = records.kernel.scan_batches(data, size, 2 * size, True)
    assert scan[:5] == (2 * size, GOOD, 1, 1, 1)
    for start, end in ((-1, 5), (0, len(data) + 1), (5, 4)):
        with pytest.raises(ValueError, match="positions"):
            records.kernel.scan_batches(data, start, end, True)


def test_scan_stops_where_the_bytes_end(records: Records) -> None:
    data = bytes(batches(records, 2, 2))
    half = len(data) // 2
    for size in range(1, len(data)):
        scan = records.kernel.scan_batches(data[:size], 0, size, True)
        assert scan.position == (half if size >= half else 0)
        assert scan.error == (GOOD if size == half else TRUNCATED)
        assert scan.last_offset == (1 if size >= half else -1)


def patched(data: bytes, position: int, form: str, value: int) -> bytearray:
    out = bytearray(data)
    struct.pack_into(form, out, position, value)
    return out


@pytest.mark.parametrize(
    ("position", "form", "value", "error"),
    [
        (0, ">q", 0, BAD_OFFSET),
        (0, ">q", -5, BAD_OFFSET),
        (0, ">q", 2**63 - 1, BAD_OFFSET),
        (8, ">i", HEADER_SIZE - 13, BAD_LENGTH),
        (8, ">i", -1, BAD_LENGTH),
        (8, ">i", 2**31 - 1, TRUNCATED),
        (16, ">b", 1, BAD_MAGIC),
        (16, ">b", -2, BAD_MAGIC),
        (17, ">I", 1, BAD_CRC),
        (23, ">i", -1, BAD_OFFSET),
        (57, ">i", 7, BAD_CRC),
    ],
)
def test_scan_stops_at_what_is_wrong(
    records: Records, position: int, form: str, value: int, error: int
) -> None:
    data = bytes(batches(records, 2, 2, 2))
    third = len(data) // 3
    wrong = patched(data, third + position, form, value)
    scan = records.kernel.scan_batches(wrong, 0, len(wrong), True)
    assert (scan.position, scan.error, scan.last_offset) == (third, error, 1)


def test_scan_takes_gaps(records: Records) -> None:
    data = batches(records, 2) + batches(records, 2, first=7)
    assert records.kernel.scan_batches(data, 0, len(data), True).last_offset == 8


def test_a_header_needs_61_bytes(records: Records) -> None:
    data = batches(records, 1)
    for position in (-1, len(data) - 60, len(data) + 1, 2**62):
        with pytest.raises(ValueError, match="no batch header"):
            records.kernel.read_header(data, position)


def test_every_field_of_a_header_is_read(records: Records) -> None:
    data = struct.pack(
        ">qiibIhiqqqhii", -3, 600, 7, -2, 0xFEDCBA98, -2, 11, -(2**40), 2**62, 2**33, -9, 2**31 - 1, -(2**31)
    )
    header = records.kernel.read_header(b"xyz" + data, 3)
    assert header == (
        -3, 612, 7, -2, 0xFEDCBA98, -2, 11, -(2**40), 2**62, 2**33, -9, 2**31 - 1, -(2**31)
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_empty_input_is_not_read(kind: str) -> None:
    kernel, encode = records_over(kind).kernel, records_over(kind).encode
    assert kernel.validate_records(b"", 0, 0).error == GOOD
    assert encode.encode_records([], 0) == b""
    assert encode.murmur2(b"") == 275646681
    found: list[Any] = []
    assert kernel.append_records(found, b"", BatchHeader(count=3), 0, 0) == BAD_COUNT


@pytest.mark.parametrize("start", [-1, 4, 2**62])
def test_a_start_outside_the_payload_is_refused(records: Records, start: int) -> None:
    kernel, header = records.kernel, BatchHeader(count=1)
    asked: list[Callable[[], object]] = [
        lambda: kernel.validate_records(b"abc", 1, 0, start),
        lambda: kernel.keyless_records(b"abc", start, 1),
        lambda: kernel.mistimed_records(b"abc", start, 1, 0, 0, 0),
        lambda: kernel.append_records([], b"abc", header, 0, start),
        lambda: kernel.measure_records(b"abc", header, start, 0),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match="not within 3 bytes"):
            ask()


def test_the_encoder_writes_what_the_format_says(records: Records) -> None:
    make = records.kernel.Record
    made = [
        make(b"v" * 70, b"k", (("name", b"\x00"), ("é", None)), NOW_MS),
        make(None, None, (), NOW_MS - 3),
        make(b"", b"", (), NOW_MS + 1000),
    ]
    headers = zigzag(2) + sized(b"name") + sized(b"\x00") + sized("é".encode()) + sized(None)
    expected = (
        record(0, value=sized(b"v" * 70), headers=headers)
        + record(1, key=sized(None), value=sized(None), timestamp_delta=zigzag(-3))
        + record(2, key=sized(b""), value=sized(b""), timestamp_delta=zigzag(1000))
    )
    assert records.encode.encode_records(made, NOW_MS) == expected
    assert records.encode.encode_records(made, NOW_MS, -1, 4) == bytes(4) + expected


def test_the_encoder_refuses_what_is_no_record(records: Records) -> None:
    with pytest.raises((TypeError, AttributeError)):
        records.encode.encode_records([(b"k", b"v")], NOW_MS)


def test_the_crc_is_castagnoli(records: Records) -> None:
    data = batches(records, 1)
    assert records.kernel.read_header(data).crc == crc32c(bytes(data[21:]))
    assert crc32c(b"123456789") == 0xE3069283
