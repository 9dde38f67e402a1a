from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptMessage
from millstream.protocol.compression import Codec
from millstream.protocol.header import HEADER_SIZE, BatchHeader
from tests.protocol.kernels import KINDS, Records, records_over

NOW_MS = 1_700_000_000_000
CODECS = list(Codec)

FLAGS = ("is_transactional", "is_control", "is_log_append_time", "has_delete_horizon")

header_lists = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.none() | st.binary(max_size=8)),
    max_size=4,
).map(tuple)
blobs = st.none() | st.binary(max_size=200)
fields = st.tuples(blobs, blobs, header_lists, st.integers(-1, 2**62))
record_lists = st.lists(fields, min_size=1, max_size=20)


def make(records: Records, parts: list[Any], first_offset: int = 0) -> list[Any]:
    return [records.kernel.Record(*part, first_offset + i) for i, part in enumerate(parts)]


def simple(records: Records, count: int, first_offset: int = 0, **fields: Any) -> list[Any]:
    return [
        records.kernel.Record(
            **{"value": b"v%d" % i, "key": b"k%d" % i, "timestamp": NOW_MS + i, "offset": i, **fields}
        )
        for i in range(first_offset, first_offset + count)
    ]


def rows(columns: Any) -> list[tuple[Any, ...]]:
    """The columns, read by Arrow's rules, as tuples."""
    found = []
    for row in range(len(columns)):
        headers: tuple[Any, ...] = ()
        if columns.headers is not None:
            span = range(columns.headers.offsets[row], columns.headers.offsets[row + 1])
            headers = tuple(
                (columns.headers.names[i].decode(errors="replace"), columns.headers.values[i]) for i in span
            )
        found.append(
            (columns.values[row], columns.keys[row], headers, columns.timestamps[row], columns.offsets[row])
        )
    return found


def as_rows(records: list[Any], with_headers: bool = True) -> list[tuple[Any, ...]]:
    return [(r.value, r.key, r.headers if with_headers else (), r.timestamp, r.offset) for r in records]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40, deadline=None)
@given(parts=record_lists, base_offset=st.integers(0, 2**62))
@example(parts=[(None, None, (), -1)], base_offset=0)
@example(parts=[(b"x" * 200_000, b"k" * 70_000, (("h" * 200, b"v" * 200),) * 130, 0)], base_offset=5)
def test_round_trip(kind: str, codec: Codec, parts: list[Any], base_offset: int) -> None:
    records = records_over(kind)
    made = make(records, parts, base_offset)
    data = records.batch.encode_batch(
        made,
        codec=codec,
        base_offset=base_offset,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=2,
        base_sequence=1,
    )
    header = records.batch.read_header(data)
    assert header.size == len(data)
    assert (header.base_offset, header.next_offset, header.count) == (
        base_offset,
        base_offset + len(made),
        len(made),
    )
    assert (header.leader_epoch, header.magic, header.codec) == (3, 2, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 1)
    assert header.max_timestamp == max(record.timestamp for record in made)
    assert records.batch.decode_records(data) == made
    assert rows(records.batch.decode_columns(data, with_headers=True)) == as_rows(made)
    assert rows(records.batch.decode_columns(data)) == as_rows(made, with_headers=False)


@settings(max_examples=60, deadline=None)
@given(parts=record_lists, codec=st.sampled_from(CODECS))
def test_both_kernels_write_the_same_bytes(parts: list[Any], codec: Codec) -> None:
    written = []
    for kind in KINDS:
        records = records_over(kind)
        written.append(records.batch.encode_batch(make(records, parts), codec=codec))
    # a gzip member may carry a time
    assert written[0] == written[1] or codec == Codec.GZIP


def several(records: Records, codec: Codec = Codec.NONE) -> tuple[bytes, list[Any]]:
    """Batches of 3, 1 and 4 records from offset 100 on."""
    data = b""
    made: list[Any] = []
    for count in (3, 1, 4):
        part = simple(records, count, 100 + len(made), headers=(("h", b"1"), ("n", None)))
        data += records.batch.encode_batch(part, codec=codec, base_offset=part[0].offset)
        made += part
    return data, made


@pytest.mark.parametrize("codec", CODECS)
def test_many_batches_from_any_offset(records: Records, codec: Codec) -> None:
    data, made = several(records, codec)
    for from_offset in range(99, 110):
        expected = [record for record in made if record.offset >= from_offset]
        assert records.batch.decode_records(data, from_offset=from_offset) == expected
        columns = records.batch.decode_columns(data, from_offset=from_offset, with_headers=True)
        assert rows(columns) == as_rows(expected)
        assert columns.next_offset == max(108, from_offset)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_at_every_byte_gives_the_whole_batches(records: Records, codec: Codec) -> None:
    data, made = several(records, codec)
    ends = [records.batch.read_header(data).size]
    ends.append(ends[0] + records.batch.read_header(data, ends[0]).size)
    for size in range(len(data)):
        whole = made[: 4 if size >= ends[1] else 3 if size >= ends[0] else 0]
        assert records.batch.decode_records(memoryview(data)[:size]) == whole
        columns = records.batch.decode_columns(data[:size], with_headers=True)
        assert rows(columns) == as_rows(whole)
        assert columns.next_offset == (whole[-1].offset + 1 if whole else 0)


@pytest.mark.parametrize("codec", CODECS)
def test_every_changed_byte_is_found_or_outside_the_checksum(records: Records, codec: Codec) -> None:
    """A reader cannot see a changed base offset or leader epoch by the batch alone; all else is found."""
    made = simple(records, 3)
    data = bytes(records.batch.encode_batch(made, codec=codec))
    for position in range(len(data)):
        for change in (0x01, 0x40, 0xFF):
            changed = bytearray(data)
            changed[position] ^= change
            try:
                decoded = records.batch.decode_records(changed, from_offset=-(2**63))
                columns = records.batch.decode_columns(changed, from_offset=-(2**63))
            except CorruptMessage:
                assert position >= 8
                assert not 12 <= position < 16
                continue
            assert as_rows(decoded) == rows(columns)
            if 8 <= position < 12:
                assert decoded == []  # longer than the bytes: cut off
            elif position < 8:
                assert [record.value for record in decoded] == [record.value for record in made]
            else:
                assert 12 <= position < 16
                assert decoded == made


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_unverified_changes_never_raise_another_error(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(CODECS))
    kinds = [records_over(kind) for kind in KINDS]
    changed = bytearray(several(kinds[0], codec)[0])
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    outcomes: list[Any] = []
    for records in kinds:
        options = {"from_offset": -(2**63), "verify_crc": False, "max_decompressed_bytes": 10_000}
        try:
            outcomes.append(as_rows(records.batch.decode_records(changed, **options)))
        except CorruptMessage as error:
            outcomes.append(error.message)
            with pytest.raises(CorruptMessage):
                records.batch.decode_columns(changed, **options)
        else:
            assert rows(records.batch.decode_columns(changed, with_headers=True, **options)) == outcomes[-1]
    assert outcomes[0] == outcomes[1]


def test_the_checksum_is_verified_unless_told_otherwise(records: Records) -> None:
    data = records.batch.encode_batch(simple(records, 2))
    data[-2] ^= 1
    with pytest.raises(CorruptMessage, match="checksum"):
        records.batch.decode_records(data)
    with pytest.raises(CorruptMessage, match="checksum"):
        records.batch.decode_columns(data)
    assert len(records.batch.decode_records(data, verify_crc=False)) == 2


def test_old_formats_are_refused_by_name(records: Records) -> None:
    data = records.batch.encode_batch(simple(records, 2))
    data[16] = 1
    with pytest.raises(CorruptMessage, match="magic"):
        records.batch.decode_records(data)


def test_what_the_leader_writes_is_outside_the_checksum(records: Records) -> None:
    made = simple(records, 2, 77)
    data = b"----" + records.batch.encode_batch(made)
    target = bytearray(data)
    records.batch.set_base_offset_and_epoch(target, 4, 77, 12)
    assert records.batch.decode_records(target[4:]) == made
    header = records.batch.read_header(target, 4)
    assert (header.base_offset, header.leader_epoch) == (77, 12)
    assert target[:4] == b"----"


def test_flags(records: Records) -> None:
    plain = records.batch.read_header(records.batch.encode_batch(simple(records, 1)))
    assert not [name for name in FLAGS if getattr(plain, name)]
    for option, flag in (
        ({"is_transactional": True}, "is_transactional"),
        ({"is_control": True}, "is_control"),
        ({"log_append_time_ms": 5}, "is_log_append_time"),
        ({"delete_horizon_ms": 5}, "has_delete_horizon"),
    ):
        header = records.batch.read_header(records.batch.encode_batch(simple(records, 1), codec=3, **option))
        assert {name for name in FLAGS if getattr(header, name)} == {flag}
        assert header.codec == 3


def test_log_append_time_is_every_records_time(records: Records) -> None:
    data = records.batch.encode_batch(simple(records, 2), log_append_time_ms=123)
    assert [record.timestamp for record in records.batch.decode_records(data)] == [123, 123]
    data += records.batch.encode_batch(simple(records, 1, 2), base_offset=2)
    columns = records.batch.decode_columns(data)
    assert list(columns.timestamps) == [123, 123, NOW_MS + 2]
    assert list(columns.timestamp_types) == [1, 1, 0]


def test_a_delete_horizon_is_the_base_timestamp(records: Records) -> None:
    made = simple(records, 3)
    data = records.batch.encode_batch(made, delete_horizon_ms=NOW_MS + 50_000)
    header = records.batch.read_header(data)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS + 50_000, NOW_MS + 2)
    assert records.batch.decode_records(data) == made


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_batches_keep_their_offsets(records: Records, codec: Codec) -> None:
    made = [record for record in simple(records, 10) if record.offset in (2, 5, 8)]
    data = records.batch.encode_batch(
        made,
        base_offset=0,
        keep_offsets=True,
        last_offset_delta=9,
        codec=codec,
        base_sequence=40,
        producer_id=1,
    )
    header = records.batch.read_header(data)
    assert (header.count, header.last_offset, header.last_sequence) == (3, 9, 49)
    assert records.batch.decode_records(data) == made
    assert records.batch.decode_records(data, from_offset=5) == made[1:]
    columns = records.batch.decode_columns(data, from_offset=6)
    assert list(columns.offsets) == [8]
    assert columns.next_offset == 10


def test_an_empty_batch_keeps_a_producers_place(records: Records) -> None:
    data = records.batch.encode_batch(
        [], base_offset=7, last_offset_delta=4, producer_id=1, producer_epoch=0, base_sequence=3
    )
    header = records.batch.read_header(data)
    assert (len(data), header.count, header.last_offset, header.last_sequence) == (HEADER_SIZE, 0, 11, 7)
    assert records.batch.decode_records(data) == []
    columns = records.batch.decode_columns(data)
    assert (len(columns), columns.next_offset) == (0, 12)


def test_the_last_sequence_wraps() -> None:
    assert BatchHeader(base_sequence=2**31 - 2, last_offset_delta=1).last_sequence == 2**31 - 1
    assert BatchHeader(base_sequence=2**31 - 2, last_offset_delta=2).last_sequence == 0
    assert BatchHeader(base_sequence=2**31 - 1, last_offset_delta=5).last_sequence == 4
    assert BatchHeader(base_sequence=-1, last_offset_delta=5).last_sequence == -1


@pytest.mark.parametrize("is_commit", [True, False])
def test_markers(records: Records, is_commit: bool) -> None:
    marker = records.batch.ControlMarker(is_commit, 9)
    data = records.batch.encode_marker(
        marker, producer_id=4, producer_epoch=1, timestamp_ms=NOW_MS, base_offset=50, leader_epoch=2
    )
    header = records.batch.read_header(data)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, -1)
    assert (header.base_offset, header.leader_epoch, header.count) == (50, 2, 1)
    (record,) = records.batch.decode_records(data, include_control=True)
    assert record.key == struct.pack(">hh", 0, int(is_commit))
    assert record.value == struct.pack(">hi", 0, 9)
    assert records.batch.decode_marker(record) == marker
    assert records.batch.decode_records(data) == []
    columns = records.batch.decode_columns(data)
    assert (len(columns), columns.next_offset) == (0, 51)


def test_other_control_records(records: Records) -> None:
    make_record, decode = records.kernel.Record, records.batch.decode_marker
    assert decode(make_record(b"", struct.pack(">hh", 0, 2))) is None
    assert decode(make_record(struct.pack(">hib", 1, 9, 0), struct.pack(">hhb", 1, 1, 0))) == (True, 9)
    for bad in (
        make_record(b"", None),
        make_record(b"", b"\x00"),
        make_record(None, struct.pack(">hh", 0, 1)),
        make_record(b"\x00\x00", struct.pack(">hh", 0, 0)),
        make_record(b"", struct.pack(">hh", -1, 0)),
    ):
        with pytest.raises(CorruptMessage):
            decode(bad)


def transactions(records: Records) -> bytes:
    """Producers 1 and 2 interleaved: 1 aborts, then commits; 2 commits; a plain producer between them."""
    encode, marker = records.batch.encode_batch, records.batch.encode_marker
    commit, abort = records.batch.ControlMarker(True, 0), records.batch.ControlMarker(False, 0)

    def part(offset: int, value: bytes, producer_id: int = -1) -> bytes:
        made = [records.kernel.Record(value, None, (), NOW_MS)] * 2
        open_one = producer_id >= 0
        return bytes(encode(made, base_offset=offset, producer_id=producer_id, is_transactional=open_one))

    def end(offset: int, kind: Any, producer_id: int) -> bytes:
        return bytes(
            marker(kind, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS, base_offset=offset)
        )

    return b"".join(
        [
            part(0, b"1 aborted", 1),
            part(2, b"2 committed", 2),
            part(4, b"plain"),
            part(6, b"1 aborted", 1),
            end(8, abort, 1),
            part(9, b"1 committed", 1),
            end(11, commit, 2),
            end(12, commit, 1),
            part(13, b"2 aborted", 2),
            part(15, b"plain"),
            end(17, abort, 2),
        ]
    )


def test_aborted_transactions_are_left_out(records: Records) -> None:
    data = transactions(records)
    aborted = [(2, 13), (1, 0)]
    seen = records.batch.decode_records(data, aborted=aborted)
    assert [(record.offset, record.value) for record in seen] == [
        (2, b"2 committed"),
        (3, b"2 committed"),
        (4, b"plain"),
        (5, b"plain"),
        (9, b"1 committed"),
        (10, b"1 committed"),
        (15, b"plain"),
        (16, b"plain"),
    ]
    columns = records.batch.decode_columns(data, aborted=aborted, from_offset=3)
    assert rows(columns) == as_rows(seen[1:])
    assert columns.next_offset == 18
    assert len(records.batch.decode_records(data)) == 14
    assert len(records.batch.decode_records(data, include_control=True)) == 18


def test_a_fetch_from_within_an_aborted_transaction(records: Records) -> None:
    data = transactions(records)
    size = records.batch.read_header(data).size
    seen = records.batch.decode_records(data[size:], aborted=[(1, 0), (2, 13)], from_offset=6)
    assert [record.offset for record in seen] == [9, 10, 15, 16]


def test_columns_are_laid_out_as_arrow_has_them(records: Records) -> None:
    make_record = records.kernel.Record
    made = [make_record(b"v" * i if i != 3 else None, None if i % 2 else b"k", (), i) for i in range(10)]
    columns = records.batch.decode_columns(records.batch.encode_batch(made))
    assert (columns.offsets.format, columns.timestamps.format, columns.timestamp_types.format) == (
        "q",
        "q",
        "b",
    )
    assert columns.keys.offsets.format == columns.values.offsets.format == "i"
    assert list(columns.keys.offsets) == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert bytes(columns.keys.data) == b"kkkkk"
    assert bytes(columns.keys.validity) == bytes([0b01010101, 0b01])
    assert bytes(columns.values.validity) == bytes([0b11110111, 0b11])
    assert (columns.keys.null_count, columns.values.null_count) == (5, 1)
    assert columns.values[3] is None
    assert columns.values[0] == b""
    assert len(columns.values.data) == columns.values.offsets[10]
    for row in (-1, 10):
        with pytest.raises(IndexError):
            columns.values[row]


def test_columns_of_headers(records: Records) -> None:
    make_record = records.kernel.Record
    made = [
        make_record(b"", headers=(("a", b"1"), ("b", None))),
        make_record(b""),
        make_record(b"", headers=(("c", b""),)),
    ]
    headers = records.batch.decode_columns(records.batch.encode_batch(made), with_headers=True).headers
    assert list(headers.offsets) == [0, 2, 2, 3]
    assert bytes(headers.names.data) == b"abc"
    assert bytes(headers.values.data) == b"1"
    assert list(headers.values.offsets) == [0, 1, 1, 1]
    assert (headers.names.null_count, headers.values.null_count) == (0, 1)
    assert bytes(headers.values.validity) == bytes([0b101])


def test_columns_of_nothing(records: Records) -> None:
    columns = records.batch.decode_columns(b"", from_offset=9, with_headers=True)
    assert (len(columns), columns.next_offset) == (0, 9)
    assert list(columns.keys.offsets) == [0]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_columns_stop_before_they_grow_too_large(records: Records, codec: Codec) -> None:
    encode = records.batch.encode_batch
    data = b"".join(
        encode(simple(records, 2, first, value=b"v" * 100), codec=codec, base_offset=first)
        for first in (0, 2, 4)
    )
    columns = records.batch.decode_columns(data, max_column_bytes=500)
    assert list(columns.offsets) == [0, 1, 2, 3]
    assert columns.next_offset == 4
    columns = records.batch.decode_columns(data, max_column_bytes=500, from_offset=columns.next_offset)
    assert list(columns.offsets) == [4, 5]
    assert columns.next_offset == 6
    # one batch is always taken, else nobody could go on
    assert list(records.batch.decode_columns(data, max_column_bytes=1).offsets) == [0, 1]


def test_a_payload_over_the_limit_is_corrupt(records: Records) -> None:
    data = records.batch.encode_batch([records.kernel.Record(bytes(100_000))], codec=Codec.ZSTD)
    assert len(records.batch.decode_records(data)) == 1
    for decode in (records.batch.decode_records, records.batch.decode_columns):
        with pytest.raises(CorruptMessage, match="more than 50000"):
            decode(data, max_decompressed_bytes=50_000)


def test_names_of_headers_that_are_not_utf8(records: Records) -> None:
    data = records.batch.encode_batch([records.kernel.Record(b"", headers=(("abcd", b"v"),))])
    position = bytes(data).index(b"abcd")
    data[position : position + 4] = b"a\xff\xc3d"
    (record,) = records.batch.decode_records(data, verify_crc=False)
    assert record.headers == (("a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}d", b"v"),)


def test_records_are_values(records: Records) -> None:
    make_record = records.kernel.Record
    one = make_record(b"v", b"k", (("h", None),), 5, 7)
    assert one == make_record(b"v", b"k", (("h", None),), 5, 7)
    assert one != make_record(b"v", b"k", (("h", None),), 5, 8)
    assert one != (b"v", b"k", (("h", None),), 5, 7)
    assert len({one, make_record(b"v", b"k", (("h", None),), 5, 7)}) == 1
    assert repr(one) == "Record(value=b'v', key=b'k', headers=(('h', None),), timestamp=5, offset=7)"
    assert make_record() == make_record(None, None, (), -1, -1)


def test_records_travel_between_processes() -> None:
    one = records_over("compiled").kernel.Record(b"v", b"k", (("h", None),), 5, 7)
    assert pickle.loads(pickle.dumps(one)) == one
