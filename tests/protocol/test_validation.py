from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from millstream.protocol.compression import Codec, compress, decompress
from millstream.protocol.header import HEADER_SIZE
from tests.protocol.kernels import Records, records_over

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
VERSION = 13
CODECS = list(Codec)


def batch(
    records: Records, count: int = 3, *, timestamps: list[int] | None = None, **options: Any
) -> bytearray:
    times = timestamps or [NOW_MS + i for i in range(count)]
    made = [records.kernel.Record(b"value-%d" % i, b"key-%d" % i, (), t) for i, t in enumerate(times)]
    return records.batch.encode_batch(made, **options)  # type: ignore[no-any-return]


def patched(data: bytearray, position: int, form: str, value: int, *, reseal: bool = True) -> bytearray:
    out = bytearray(data)
    struct.pack_into(form, out, position, value)
    if reseal:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return out


def with_payload(header: bytearray, payload: bytes) -> bytearray:
    out = header[:HEADER_SIZE] + payload
    return patched(out, 8, ">i", len(out) - 12)


def check(records: Records, data: bytearray | bytes, version: int = VERSION, **rules: Any) -> Any:
    return records.validation.check_produced(
        memoryview(data), records.validation.ProduceRules(**rules), version, NOW_MS
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_good_batch_is_taken_as_it_is(records: Records, codec: Codec) -> None:
    data = batch(records, 5, codec=codec, producer_id=7, producer_epoch=1, base_sequence=3)
    before = bytes(data)
    checked = check(records, data)
    assert checked.header == records.kernel.read_header(before)
    assert checked.max_timestamp_delta == 4
    assert bytes(checked.data) == before
    assert checked.data.obj is data
    assert (checked.header.last_sequence, checked.header.codec) == (7, codec)


def test_read_only_bytes_are_taken_too(records: Records) -> None:
    assert check(records, bytes(batch(records))).data.readonly


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_cut_off_anywhere_are_refused(records: Records, codec: Codec) -> None:
    data = batch(records, codec=codec)
    for size in range(len(data)):
        with pytest.raises(InvalidRecord):
            check(records, data[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_every_changed_byte_is_refused_or_harmless(records: Records, codec: Codec) -> None:
    """Only the leader epoch may differ: the leader overwrites it. The rest is refused."""
    data = batch(records, codec=codec)
    for position in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= change
            if 12 <= position < 16:
                assert check(records, changed).header.count == 3
                continue
            with pytest.raises((InvalidRecord, CorruptMessage)):
                check(records, changed)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_resealed_change_never_escapes_as_another_error(codec: Codec, data: st.DataObject) -> None:
    records = records_over("compiled")
    changed = batch(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(21, len(changed) - 1))] = data.draw(st.integers(0, 255))
    changed = patched(changed, 0, ">q", 0)
    try:
        checked = check(records, changed, max_decompressed_bytes=10_000, is_compacted=True)
    except KafkaError:
        return
    decoded = records.batch.decode_records(checked.data)
    assert [record.offset for record in decoded] == list(range(checked.header.count))
    assert checked.header.max_timestamp == max(record.timestamp for record in decoded)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((InvalidRecord, CorruptMessage)):
        check(records_over("compiled"), data)


@settings(max_examples=200)
@given(st.binary(max_size=60), st.integers(-2, 5))
def test_random_records_in_a_sealed_batch_are_refused_or_good(payload: bytes, count: int) -> None:
    records = records_over("compiled")
    made = with_payload(patched(batch(records), 57, ">i", count), payload)
    made = patched(made, 23, ">i", count - 1)
    try:
        checked = check(records, made)
    except (InvalidRecord, InvalidTimestamp):
        return
    assert len(records.batch.decode_records(checked.data)) == count


def test_exactly_one_batch(records: Records) -> None:
    with pytest.raises(InvalidRecord, match="exactly one"):
        check(records, batch(records) + batch(records))
    with pytest.raises(InvalidRecord, match="exactly one"):
        check(records, b"")
    with pytest.raises(InvalidRecord, match="exactly one"):
        check(records, batch(records) + b"\x00")


def test_the_checksum(records: Records) -> None:
    with pytest.raises(CorruptMessage, match="checksum"):
        check(records, patched(batch(records), 17, ">I", 1, reseal=False))


@pytest.mark.parametrize("length", [0, -1, HEADER_SIZE - 13, -(2**31)])
def test_a_length_below_the_header(records: Records, length: int) -> None:
    with pytest.raises(CorruptMessage, match="smaller"):
        check(records, patched(batch(records), 8, ">i", length))


@pytest.mark.parametrize(
    ("magic", "error"), [(0, InvalidRecord), (1, InvalidRecord), (3, CorruptMessage), (-1, CorruptMessage)]
)
def test_other_magic(records: Records, magic: int, error: type[KafkaError]) -> None:
    with pytest.raises(error, match="magic"):
        check(records, patched(batch(records), 16, ">b", magic))


def test_the_size(records: Records) -> None:
    data = batch(records)
    assert check(records, data, max_message_bytes=len(data))
    with pytest.raises(MessageTooLarge, match=str(len(data))):
        check(records, data, max_message_bytes=len(data) - 1)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(records: Records, codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType):
        check(records, patched(batch(records), 21, ">h", codec))


def test_zstd_needs_produce_7(records: Records) -> None:
    data = batch(records, codec=Codec.ZSTD)
    assert check(records, data, 7)
    with pytest.raises(UnsupportedCompressionType, match="zstd"):
        check(records, data, 6)


@pytest.mark.parametrize(
    ("position", "value"),
    [(57, 0), (57, -1), (57, 2), (57, 4), (57, 2**31 - 1), (23, 1), (23, 3), (23, -1), (23, 2**31 - 1)],
)
def test_counts_must_agree(records: Records, position: int, value: int) -> None:
    with pytest.raises(InvalidRecord):
        check(records, patched(batch(records), position, ">i", value))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 4, 1000])
def test_records_must_be_as_many_as_the_header_says(records: Records, codec: Codec, count: int) -> None:
    data = patched(patched(batch(records, codec=codec), 57, ">i", count), 23, ">i", count - 1)
    with pytest.raises(InvalidRecord, match="as many records"):
        check(records, data)


def test_offsets_must_be_consecutive(records: Records) -> None:
    made = [records.kernel.Record(b"v", None, (), NOW_MS, offset) for offset in (0, 2, 1)]
    data = records.batch.encode_batch(made, keep_offsets=True, last_offset_delta=2)
    with pytest.raises(InvalidRecord, match="consecutive") as caught:
        check(records, data)
    assert caught.value.record_errors == [(1, "the records' offsets are not consecutive")]  # type: ignore[attr-defined]


def test_a_base_offset_is_the_brokers_to_give(records: Records) -> None:
    """Apache Kafka 4.3 answers INVALID_RECORD to a client's batch that does not begin at 0."""
    with pytest.raises(InvalidRecord, match="offset 0"):
        check(records, batch(records, base_offset=4))


def test_no_control_batches(records: Records) -> None:
    with pytest.raises(InvalidRecord, match="control"):
        check(records, batch(records, is_control=True, is_transactional=True))
    assert check(records, batch(records, is_transactional=True, producer_id=1, base_sequence=0))


def test_a_producer_gives_a_sequence(records: Records) -> None:
    with pytest.raises(InvalidRecord, match="sequence"):
        check(records, batch(records, producer_id=5, producer_epoch=0, base_sequence=-1))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_grows_beyond_the_limit_is_refused(records: Records, codec: Codec) -> None:
    made = [records.kernel.Record(bytes(1 << 20), b"k", (), NOW_MS)]
    data = records.batch.encode_batch(made, codec=codec)
    assert check(records, data)
    with pytest.raises(InvalidRecord):
        check(records, data, max_decompressed_bytes=1 << 20)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_payload_that_is_not_of_its_codec_is_refused(records: Records, codec: Codec) -> None:
    plain = batch(records)
    with pytest.raises(InvalidRecord):
        check(records, patched(plain, 21, ">h", codec))
    with pytest.raises(InvalidRecord):
        check(records, with_payload(patched(plain, 21, ">h", codec), b""))


def test_lz4_with_linked_blocks_is_refused_as_kafka_does(records: Records) -> None:
    plain = batch(records)
    frame = bytes(cramjam.lz4.compress(bytes(plain[HEADER_SIZE:])))
    with pytest.raises(InvalidRecord, match="depend"):
        check(records, with_payload(patched(plain, 21, ">h", Codec.LZ4), frame))


def test_bare_snappy_is_taken(records: Records) -> None:
    plain = batch(records)
    block = bytes(cramjam.snappy.compress_raw(bytes(plain[HEADER_SIZE:])))
    assert check(records, with_payload(patched(plain, 21, ">h", Codec.SNAPPY), block)).header.count == 3


@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_too_late(records: Records, codec: Codec) -> None:
    times = [NOW_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS + 1, NOW_MS]
    data = batch(records, timestamps=times, codec=codec)
    with pytest.raises(InvalidTimestamp, match="record 2") as caught:
        check(records, data)
    assert [index for index, _ in caught.value.record_errors] == [2]  # type: ignore[attr-defined]
    assert check(records, data, timestamp_after_max_ms=HOUR_MS + 1)
    assert check(records, data, timestamp_after_max_ms=2**63 - 1)


def test_timestamps_too_early(records: Records) -> None:
    data = batch(records, timestamps=[NOW_MS - 10, NOW_MS, NOW_MS - 11, 0])
    assert check(records, data)
    assert check(records, data, timestamp_before_max_ms=NOW_MS)
    with pytest.raises(InvalidTimestamp, match=r"record 2.* and 1 more") as caught:
        check(records, data, timestamp_before_max_ms=10)
    assert [index for index, _ in caught.value.record_errors] == [2, 3]  # type: ignore[attr-defined]


def test_records_without_a_timestamp_are_taken(records: Records) -> None:
    data = batch(records, timestamps=[-1, -1])
    assert check(records, data, timestamp_before_max_ms=10).header.max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_largest_timestamp_is_corrected(records: Records, codec: Codec) -> None:
    data = patched(batch(records, codec=codec), 35, ">q", NOW_MS + 999)
    checked = check(records, data)
    assert checked.header.max_timestamp == NOW_MS + 2
    assert checked.data.obj is data
    assert records.kernel.scan_batches(data, 0, len(data), True).error == 0
    assert records.kernel.read_header(data) == checked.header
    frozen = bytes(patched(batch(records, codec=codec), 35, ">q", 0))
    checked = check(records, frozen)
    assert checked.header.max_timestamp == NOW_MS + 2
    assert checked.data.obj is not frozen


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(records: Records, codec: Codec) -> None:
    data = batch(records, timestamps=[5, 2**62, 7], codec=codec)
    checked = check(records, data, timestamp_type="LogAppendTime", timestamp_before_max_ms=1)
    assert checked.header.is_log_append_time
    assert (checked.header.max_timestamp, checked.max_timestamp_delta) == (NOW_MS, 0)
    assert checked.header.codec == codec
    decoded = records.batch.decode_records(checked.data)
    assert {record.timestamp for record in decoded} == {NOW_MS}
    assert len(decoded) == 3


def test_producers_do_not_set_log_append_time(records: Records) -> None:
    """As Apache Kafka 4.3 answers: refused where the topic's time is the log's, else taken back."""
    data = batch(records, log_append_time_ms=5)
    with pytest.raises(InvalidTimestamp, match="append time"):
        check(records, data, timestamp_type="LogAppendTime")
    checked = check(records, data)
    assert not checked.header.is_log_append_time
    assert checked.header.max_timestamp == NOW_MS + 2
    decoded = records.batch.decode_records(checked.data)
    assert [record.timestamp for record in decoded] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_needs_keys(records: Records, codec: Codec) -> None:
    make = records.kernel.Record
    made = [make(b"v", key, (), NOW_MS) for key in (b"a", None, b"", None)]
    data = records.batch.encode_batch(made, codec=codec)
    assert check(records, data)
    with pytest.raises(InvalidRecord, match=r"record 1: a compacted topic needs a key, and 1 more") as caught:
        check(records, data, is_compacted=True)
    assert [index for index, _ in caught.value.record_errors] == [1, 3]  # type: ignore[attr-defined]
    assert check(records, records.batch.encode_batch(made[2:3], codec=codec), is_compacted=True)


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("name", ["none", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_own_compression(records: Records, source: Codec, name: str) -> None:
    target = {"uncompressed": Codec.NONE}.get(name) or Codec[name.upper().replace("UNCOMPRESSED", "NONE")]
    data = batch(records, 50, codec=source, producer_id=3, producer_epoch=1, base_sequence=8)
    before = bytes(data)
    checked = check(records, data, compression_type=name)
    assert bytes(data) == before
    assert (checked.data.obj is data) == (source == target)
    assert checked.header.codec == target
    assert checked.header.size == len(checked.data)
    assert checked.header == records.kernel.read_header(checked.data)
    assert checked.header[9:] == records.kernel.read_header(data)[9:]
    assert records.kernel.scan_batches(checked.data, 0, len(checked.data), True).error == 0
    assert records.batch.decode_records(checked.data) == records.batch.decode_records(data)


def test_a_batch_that_the_topics_own_compression_makes_too_large_is_refused(records: Records) -> None:
    made = [records.kernel.Record(b"\0" * 5000, None, (), NOW_MS)]
    data = records.batch.encode_batch(made, codec=Codec.ZSTD)
    assert check(records, data, max_message_bytes=5000).header.codec == Codec.ZSTD
    with pytest.raises(MessageTooLarge):
        check(records, data, max_message_bytes=5000, compression_type="uncompressed")
    assert check(records, data, max_message_bytes=6000, compression_type="uncompressed").header.codec == 0


def test_the_topics_own_level(records: Records) -> None:
    made = [records.kernel.Record(b"%d" % (i * i % 7919), None, (), NOW_MS) for i in range(20_000)]
    data = records.batch.encode_batch(made)
    low = check(records, data, compression_type="zstd", zstd_level=1)
    high = check(records, data, compression_type="zstd", zstd_level=19)
    assert len(high.data) < len(low.data)
    assert decompress(Codec.ZSTD, high.data[HEADER_SIZE:], 1 << 24) == data[HEADER_SIZE:]


def test_log_append_time_with_the_topics_own_compression(records: Records) -> None:
    checked = check(records, batch(records), compression_type="gzip", timestamp_type="LogAppendTime")
    assert checked.header.codec == Codec.GZIP
    assert {record.timestamp for record in records.batch.decode_records(checked.data)} == {NOW_MS}


def test_large_compressed_batches_go_to_a_thread(records: Records) -> None:
    needs_thread = records.validation.needs_thread
    small = batch(records, codec=Codec.LZ4)
    large = with_payload(small, bytes(compress(Codec.LZ4, b"".join(b"%d" % i for i in range(99_999)))))
    rules = records.validation.ProduceRules()
    assert len(large) > 64 * 1024
    assert needs_thread(memoryview(large), rules)
    assert not needs_thread(memoryview(small), rules)
    assert not needs_thread(memoryview(patched(large, 21, ">h", 0)), rules)
    assert not needs_thread(b"", rules)
    recompressing = records.validation.ProduceRules(compression_type="zstd")
    assert needs_thread(memoryview(patched(large, 21, ">h", 0)), recompressing)
    assert not needs_thread(memoryview(small), recompressing)


def test_a_small_batch_that_unfolds_to_much_is_left_to_a_thread(records: Records) -> None:
    rules = records.validation.ProduceRules()
    made = [records.kernel.Record(b"\0" * 2_000_000, None, (), NOW_MS)]
    bomb = records.batch.encode_batch(made, codec=Codec.ZSTD)
    assert len(bomb) < 16 * 1024
    with pytest.raises(records.validation.NotDecompressed):
        records.validation.check_produced(bomb, rules.unfolding_at_most(1 << 20), 9, NOW_MS)
    assert records.validation.check_produced(bomb, rules, 9, NOW_MS).header.count == 1


def test_many_threads_at_once(records: Records) -> None:
    """Batches over 256 KB are walked without the interpreter's lock."""
    made = [records.kernel.Record(b"v" * 50, b"k%d" % i, (("h", b"1"),), NOW_MS + i) for i in range(5000)]
    sent = [bytes(records.batch.encode_batch(made, codec=codec)) for codec in CODECS] * 4
    with ThreadPoolExecutor(4) as threads:
        checked = list(threads.map(lambda data: check(records, data, compression_type="lz4"), sent))
        columns = list(threads.map(records.batch.decode_columns, sent))
    assert {(c.header.codec, c.header.count, c.max_timestamp_delta) for c in checked} == {(3, 5000, 4999)}
    assert len({bytes(c.data) for c in checked}) == 1
    assert {bytes(c.keys.data) for c in columns} == {b"".join(record.key for record in made)}
