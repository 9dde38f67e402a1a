"""What a broker checks before it takes a producer's batch.

The rules are those of Kafka's LogValidator for the batches of clients. A batch that was checked is
whole, matches its CRC, and holds exactly the records its header counts, with consecutive offsets; its
header's largest timestamp is the true one. The function is pure and may run in any thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from millstream.protocol.batch import seal
from millstream.protocol.compression import Codec, Undecompressable, compress, decompress, is_linked_lz4
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES
from millstream.protocol.header import (
    GOOD,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Walk,
)
from millstream.protocol.kernel import keyless_records, mistimed_records, read_header, validate_records

if TYPE_CHECKING:
    from typing_extensions import Buffer

_THREAD_BYTES = 64 * 1024
_MAX_LONG = 2**63 - 1
_NO_TIMESTAMP = -1
_CODECS = {"none": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_MAX_RECORD_ERRORS = 1000

_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """What a topic asks of the batches it is sent. Levels are None where Kafka's default holds."""

    max_message_bytes: int = 1048588
    is_compacted: bool = False
    compression_type: str = "producer"
    gzip_level: int | None = None
    lz4_level: int | None = None
    zstd_level: int | None = None
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = _MAX_LONG
    timestamp_after_max_ms: int = 3_600_000
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES

    def level_of(self, codec: int) -> int | None:
        return (None, self.gzip_level, None, self.lz4_level, self.zstd_level)[codec]


@dataclass(slots=True)
class Checked:
    """A batch as it may be appended: what was sent, corrected in place, or encoded anew.

    `max_timestamp_delta` is the offset delta of the first record with the largest timestamp.
    """

    header: BatchHeader
    data: memoryview
    max_timestamp_delta: int


def needs_thread(records: Buffer) -> bool:
    """Whether checking this batch would hold up an event loop: it is compressed and over 64 KB."""
    view = memoryview(records)
    return len(view) > _THREAD_BYTES and view[22] & 7 != 0


def check_produced(records: Buffer, rules: ProduceRules, produce_version: int, now_ms: int) -> Checked:
    """Check a client's batch, and correct or encode it anew where the topic asks for that."""
    view = memoryview(records)
    header = _check_header(view, rules, produce_version)
    codec = header.attributes & 7
    if codec:
        payload, start = _decompressed(view, header, rules), 0
    else:
        payload, start = view, HEADER_SIZE
    walk = validate_records(payload, header.count, header.base_timestamp, start)
    if walk.error != GOOD:
        raise _refused(InvalidRecord, [(walk.bad_index, walk.reason)])
    if rules.is_compacted and walk.null_key_index >= 0:
        indexes = keyless_records(payload, start, header.count)
        raise _refused(InvalidRecord, [(index, "a compacted topic needs a key") for index in indexes])
    is_log_append_time = rules.timestamp_type == "LogAppendTime"
    if not is_log_append_time:
        _check_timestamps(payload, start, header, walk, rules, now_ms)
    target = codec
    if rules.compression_type != "producer":
        target = _CODECS[rules.compression_type]
    attributes, max_timestamp, delta = header.attributes, walk.max_timestamp, walk.max_timestamp_delta
    if is_log_append_time:
        attributes, max_timestamp, delta = attributes | LOG_APPEND_TIME, now_ms, 0
    if target != codec:
        view = _recompressed(view, payload[start:], target, rules.level_of(target))
        attributes = attributes & ~7 | target
    elif attributes == header.attributes and max_timestamp == header.max_timestamp:
        return Checked(header, view, delta)
    elif view.readonly:
        view = memoryview(bytearray(view))
    _ATTRIBUTES.pack_into(view, 21, attributes)
    _TIMESTAMP.pack_into(view, 35, max_timestamp)
    seal(view)
    return Checked(read_header(view), view, delta)


def _check_header(view: memoryview, rules: ProduceRules, produce_version: int) -> BatchHeader:
    if len(view) < HEADER_SIZE:
        raise InvalidRecord("a produce request holds exactly one record batch for each partition")
    header = read_header(view)
    size = header.size
    if header.magic != 2:
        raise InvalidRecord(f"a record batch of magic {header.magic} where only 2 is taken")
    if size < HEADER_SIZE:
        raise CorruptMessage(f"a record batch of {size} bytes is smaller than its header")
    if size != len(view):
        raise InvalidRecord(f"exactly one record batch is taken, not {len(view)} bytes with one of {size}")
    if size > rules.max_message_bytes:
        raise MessageTooLarge(
            f"the record batch has {size} bytes, max.message.bytes allows {rules.max_message_bytes}"
        )
    if crc32c(view[21:], 0, 0) != header.crc:
        raise CorruptMessage("the record batch does not match its checksum")
    attributes = header.attributes
    if attributes & 7 > Codec.ZSTD:
        raise UnsupportedCompressionType(f"there is no codec {attributes & 7}")
    if attributes & 7 == Codec.ZSTD and produce_version < 7:
        raise UnsupportedCompressionType("zstd needs version 7 of Produce")
    count = header.count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{count} records, but a last offset delta of {header.last_offset_delta}")
    if header.is_control:
        raise InvalidRecord("clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"producer {header.producer_id} gave a sequence of {header.base_sequence}")
    if attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a producer may not say that its timestamps are the log's append time")
    return header


def _decompressed(view: memoryview, header: BatchHeader, rules: ProduceRules) -> memoryview:
    compressed = view[HEADER_SIZE:]
    if header.codec == Codec.LZ4 and is_linked_lz4(compressed):
        raise InvalidRecord("an lz4 frame whose blocks depend on each other: Kafka's clients cannot read it")
    try:
        return decompress(header.codec, compressed, rules.max_decompressed_bytes)
    except Undecompressable as error:
        raise InvalidRecord(str(error)) from error


def _check_timestamps(
    payload: memoryview, start: int, header: BatchHeader, walk: Walk, rules: ProduceRules, now_ms: int
) -> None:
    """A timestamp of -1 says nothing and is taken; others must be near enough to now."""
    earliest = max(now_ms - rules.timestamp_before_max_ms, -_MAX_LONG)
    latest = min(now_ms + rules.timestamp_after_max_ms, _MAX_LONG)
    if walk.min_timestamp >= earliest and walk.max_timestamp <= latest:
        return
    if indexes := mistimed_records(payload, start, header.count, header.base_timestamp, earliest, latest):
        raise _refused(
            InvalidTimestamp,
            [(index, f"its timestamp is not within {earliest} and {latest}") for index in indexes],
        )


def _refused(kind: type[KafkaError], errors: list[tuple[int, str]]) -> KafkaError:
    index, message = errors[0]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    error = kind(f"record {index}: {message}{more}")
    error.record_errors = errors[:_MAX_RECORD_ERRORS]  # type: ignore[attr-defined]
    return error


def _recompressed(view: memoryview, payload: memoryview, codec: int, level: int | None) -> memoryview:
    batch = bytearray(view[:HEADER_SIZE])
    batch += compress(codec, payload, level)
    _LENGTH.pack_into(batch, 8, len(batch) - 12)
    return memoryview(batch)
