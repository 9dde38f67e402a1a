"""Snapshots of a log's producer state, so that it need not be replayed from the log's start.

On disk (`{offset}.snapshot`, the state before that offset), big-endian: int16 version (1), uint32
CRC-32C of what follows, int32 number of entries; an entry is int64 producer id, int16 producer
epoch, int32 last sequence, int64 last offset, int32 offset delta of the last batch, int64
timestamp, int32 coordinator epoch, int64 first offset of the open transaction (-1: none).
A snapshot that fails its CRC is worth nothing but costs nothing: an older one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from crc32c import crc32c

from millstream.errors import MillstreamError
from millstream.storage.producer_state import NONE, Producer, SentBatch

_HEADER: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_VERSION: Final = 1


class BadSnapshot(MillstreamError):
    """A producer snapshot that is torn or of another version."""


def encode_snapshot(producers: Iterable[Producer]) -> bytes:
    """The bytes of a snapshot file."""
    entries = []
    for producer in producers:
        last = producer.batches[-1] if producer.batches else SentBatch(NONE, NONE, 0, producer.last_timestamp)
        entries.append(
            _ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
        )
    body = _COUNT.pack(len(entries)) + b"".join(entries)
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[Producer]:
    """The producers in a snapshot file; BadSnapshot if it is not whole."""
    if len(data) < _HEADER.size + _COUNT.size:
        raise BadSnapshot("too short")
    version, crc = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if version != _VERSION:
        raise BadSnapshot(f"version {version}")
    if crc32c(body) != crc:
        raise BadSnapshot("wrong checksum")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise BadSnapshot("wrong length")
    producers = []
    for fields in _ENTRY.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = fields
        producer = Producer(producer_id, epoch, timestamp)
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_start = start
        if offset >= 0:
            producer.batches.append(SentBatch(sequence, offset, delta, timestamp))
        producers.append(producer)
    return producers
