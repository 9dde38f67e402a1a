"""Record batches (format v2): their header in place, writing them, and control markers.

kernel.py describes the bytes. What lies before the CRC's reach (base offset, length, leader epoch,
magic) is the broker's to write; everything else belongs to whoever computed the CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from millstream.errors import CorruptMessage
from millstream.protocol.columns import BinaryColumn, Columns, HeaderColumn, decode_columns
from millstream.protocol.compression import Codec, compress
from millstream.protocol.encode_kernel import encode_records, murmur2
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, decode_records
from millstream.protocol.header import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Scan,
)
from millstream.protocol.kernel import Record, read_header, scan_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "HEADER_SIZE",
    "MAX_DECOMPRESSED_BYTES",
    "BatchHeader",
    "BinaryColumn",
    "Codec",
    "Columns",
    "ControlMarker",
    "HeaderColumn",
    "Record",
    "Scan",
    "decode_columns",
    "decode_marker",
    "decode_records",
    "encode_batch",
    "encode_marker",
    "murmur2",
    "read_header",
    "scan_batches",
    "seal",
    "set_base_offset_and_epoch",
]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


def set_base_offset_and_epoch(buf: Buffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader decides into a batch, outside its CRC."""
    _OFFSET.pack_into(buf, position, base_offset)
    _EPOCH.pack_into(buf, position + 12, leader_epoch)


def seal(batch: memoryview) -> int:
    """Compute the CRC of a whole batch whose other fields are set, write it, and return it."""
    crc: int = crc32c(batch[21:], 0, 0)
    _CRC.pack_into(batch, 17, crc)
    return crc


def encode_batch(
    records: Sequence[Record],
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
) -> bytearray:
    """One batch of these records.

    Offsets count up from `base_offset`, or are the records' own with `keep_offsets` (a compacted
    batch, which has gaps; it may even be empty, and `last_offset_delta` then says how far it reached).
    With a `delete_horizon_ms`, that is the batch's base timestamp (KIP-534).
    """
    count = len(records)
    timestamps = [record.timestamp for record in records]
    max_timestamp = max(timestamps, default=-1)
    base_timestamp = timestamps[0] if timestamps else -1
    attributes = int(codec) | (TRANSACTIONAL if is_transactional else 0) | (CONTROL if is_control else 0)
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if keep_offsets and records else count - 1
    batch = encode_records(records, base_timestamp, base_offset if keep_offsets else -1, HEADER_SIZE)
    if codec:
        compressed = compress(codec, memoryview(batch)[HEADER_SIZE:], level)
        batch = bytearray(HEADER_SIZE)
        batch += compressed
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - 12,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    seal(memoryview(batch))
    return batch


class ControlMarker(NamedTuple):
    """The end of a transaction in a partition."""

    is_commit: bool
    coordinator_epoch: int


def encode_marker(
    marker: ControlMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a transaction: its record's key is (version, type), 1 for commit."""
    record = Record(
        key=_MARKER_KEY.pack(0, int(marker.is_commit)),
        value=_MARKER_VALUE.pack(0, marker.coordinator_epoch),
        timestamp=timestamp_ms,
    )
    return encode_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_marker(record: Record) -> ControlMarker | None:
    """What a control record says; None if it is of a kind other than commit and abort."""
    if record.key is None or len(record.key) < _MARKER_KEY.size:
        raise CorruptMessage("a control record without its key")
    version, kind = _MARKER_KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptMessage(f"a control record of version {version}")
    if kind not in (0, 1):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise CorruptMessage("an end of a transaction without its coordinator's epoch")
    return ControlMarker(kind == 1, _MARKER_VALUE.unpack_from(record.value)[1])
