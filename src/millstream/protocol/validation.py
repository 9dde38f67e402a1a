"""What a broker checks before it takes a producer's batch.

The rules are those of Kafka's LogValidator for the batches of clients. A batch that was checked is
whole, matches its CRC, and holds exactly the records its header counts, with consecutive offsets; its
header's largest timestamp is the true one. The function is pure and may run in any thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
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
from millstream.protocol.header import CODEC_MASK, CONTROL, GOOD, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader
from millstream.protocol.kernel import keyless_records, mistimed_records, read_header, validate_records

if TYPE_CHECKING:
    from typing_extensions import Buffer

_THREAD_BYTES = 64 * 1024
_RECOMPRESS_BYTES = 16 * 1024
_MAX_LONG = 2**63 - 1
_CODECS = {"none": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_MAX_RECORD_ERRORS = 1000

_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")


class NotDecompressed(InvalidRecord):
    """The records are not what their codec writes, or unfold to more than is allowed."""


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

    def unfolding_at_most(self, limit_bytes: int) -> ProduceRules:
        """The same rules for a check that may take only little time: NotDecompressed says it would not."""
        return replace(self, max_decompressed_bytes=min(self.max_decompressed_bytes, limit_bytes))

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


def needs_thread(records: Buffer, rules: ProduceRules) -> bool:
    """Whether checking this batch would hold up an event loop: it is large, and has to be (de)compressed.

    A small one may still unfold to much; `unfolding_at_most` bounds what is tried on the loop.
    """
    view = memoryview(records)
    size = len(view)
    if size <= _RECOMPRESS_BYTES:
        return False
    codec = view[22] & CODEC_MASK
    if rules.compression_type != "producer" and _CODECS[rules.compression_type] != codec:
        return True
    return size > _THREAD_BYTES and codec != 0


def check_produced(records: Buffer, rules: ProduceRules, produce_version: int, now_ms: int) -> Checked:
    """Check a client's batch, and correct or encode it anew where the topic asks for that."""
    view = memoryview(records)
    header = _check_header(view, rules, produce_version)
    attributes = header.attributes & ~LOG_APPEND_TIME  # not a producer's to set
    codec = attributes & CODEC_MASK
    payload, start = (_decompressed(view, codec, rules), 0) if codec else (view, HEADER_SIZE)
    walk = validate_records(payload, header.count, header.base_timestamp, start)
    error, bad_index, min_timestamp, max_timestamp, max_timestamp_delta, null_keys = walk
    if error != GOOD:
        raise _refused(InvalidRecord, [(bad_index, walk.reason)])
    if rules.is_compacted and null_keys:
        indexes = keyless_records(payload, start, header.count)
        raise _refused(InvalidRecord, [(index, "a compacted topic needs a key") for index in indexes])
    if rules.timestamp_type == "LogAppendTime":
        attributes |= LOG_APPEND_TIME
        max_timestamp = now_ms
        max_timestamp_delta = 0
    elif (
        max_timestamp - now_ms > rules.timestamp_after_max_ms
        or now_ms - min_timestamp > rules.timestamp_before_max_ms
    ):
        _check_timestamps(payload, start, header, rules, now_ms)
    target = codec if rules.compression_type == "producer" else _CODECS[rules.compression_type]
    if target != codec:
        view = _recompressed(view, payload[start:], target, rules.level_of(target))
        if len(view) > rules.max_message_bytes:
            raise MessageTooLarge(
                f"the record batch has {len(view)} bytes with the topic's compression.type,"
                f" max.message.bytes allows {rules.max_message_bytes}"
            )
        attributes = attributes & ~CODEC_MASK | target
    elif attributes == header.attributes and max_timestamp == header.max_timestamp:
        return Checked(header, view, max_timestamp_delta)
    elif view.readonly:
        view = memoryview(bytearray(view))
    _ATTRIBUTES.pack_into(view, 21, attributes)
    _TIMESTAMP.pack_into(view, 35, max_timestamp)
    seal(view)
    return Checked(read_header(view), view, max_timestamp_delta)


def _check_header(view: memoryview, rules: ProduceRules, produce_version: int) -> BatchHeader:
    if len(view) < HEADER_SIZE:
        raise InvalidRecord("a produce request holds exactly one record batch for each partition")
    header = read_header(view)
    # taken apart at once: this runs for every request
    base_offset, size, _, magic, crc, attributes, last_offset_delta, _, _, producer_id, _, sequence, count = (
        header
    )
    if magic != 2:
        kind = InvalidRecord if magic in (0, 1) else CorruptMessage
        raise kind(f"a record batch of magic {magic} where only 2 is taken")
    if size < HEADER_SIZE:
        raise CorruptMessage(f"a record batch of {size} bytes is smaller than its header")
    if size != len(view):
        raise InvalidRecord(f"exactly one record batch is taken, not {len(view)} bytes with one of {size}")
    if size > rules.max_message_bytes:
        raise MessageTooLarge(
            f"the record batch has {size} bytes, max.message.bytes allows {rules.max_message_bytes}"
        )
    if crc32c(view[21:], 0, 0) != crc:
        raise CorruptMessage("the record batch does not match its checksum")
    if count <= 0 or count != last_offset_delta + 1:
        raise InvalidRecord(f"{count} records, but a last offset delta of {last_offset_delta}")
    if base_offset != 0:
        raise InvalidRecord(f"a producer's batch begins at offset 0, not {base_offset}")
    if attributes:
        _check_attributes(attributes, rules, produce_version)
    if producer_id >= 0 and sequence < 0:
        raise InvalidRecord(f"producer {producer_id} gave a sequence of {sequence}")
    return header


def _check_attributes(attributes: int, rules: ProduceRules, produce_version: int) -> None:
    codec = attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise UnsupportedCompressionType(f"there is no codec {codec}")
    if codec == Codec.ZSTD and produce_version < 7:
        raise UnsupportedCompressionType("zstd needs version 7 of Produce")
    if attributes & CONTROL:
        raise InvalidRecord("clients may not write control batches")
    if attributes & LOG_APPEND_TIME and rules.timestamp_type == "LogAppendTime":
        raise InvalidTimestamp("a producer may not say that its timestamps are the log's append time")


def _decompressed(view: memoryview, codec: int, rules: ProduceRules) -> memoryview:
    compressed = view[HEADER_SIZE:]
    if codec == Codec.LZ4 and is_linked_lz4(compressed):
        raise InvalidRecord("an lz4 frame whose blocks depend on each other: Kafka's clients cannot read it")
    try:
        return decompress(codec, compressed, rules.max_decompressed_bytes)
    except Undecompressable as error:
        raise NotDecompressed(str(error)) from error


def _check_timestamps(
    payload: memoryview, start: int, header: BatchHeader, rules: ProduceRules, now_ms: int
) -> None:
    """A timestamp of -1 says nothing and is taken; others must be near enough to now."""
    earliest = max(now_ms - rules.timestamp_before_max_ms, -_MAX_LONG)
    latest = min(now_ms + rules.timestamp_after_max_ms, _MAX_LONG)
    if indexes := mistimed_records(payload, start, header.count, header.base_timestamp, earliest, latest):
        message = f"its timestamp is not within {earliest} and {latest}"
        raise _refused(InvalidTimestamp, [(index, message) for index in indexes])


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
