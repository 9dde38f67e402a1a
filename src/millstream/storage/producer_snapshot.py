"""Snapshots of a log's producer state, so that it need not be replayed from the log's start.

On disk (`{offset}.snapshot`, the state before that offset), big-endian: int16 version (1), uint32
CRC-32C of what follows, int32 number of entries; an entry is int64 producer id, int16 producer
epoch, int32 last sequence, int64 last offset, int32 offset delta of the last batch, int64
timestamp, int32 coordinator epoch, int64 first offset of the open transaction (-1: none).

Each batch that is remembered of a producer has an entry, the latest last: after a restart all of
them must be recognised if they are sent again, not the latest alone. Apache Kafka writes only the
latest, and of several entries of one producer it takes the last one.
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
    entries: list[bytes] = []
    for producer in producers:
        none = SentBatch(NONE, NONE, 0, producer.last_timestamp)
        batches = producer.batches or [none]
        entries += [
            _ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                producer.last_timestamp if batch is batches[-1] else batch.timestamp,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
            for batch in batches
        ]
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
    producers: dict[int, Producer] = {}
    for fields in _ENTRY.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = fields
        producer = Producer(producer_id, epoch, timestamp)
        earlier = producers.get(producer_id)
        if earlier is not None and earlier.epoch == epoch:
            producer.batches = earlier.batches
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_start = start
        if offset >= 0:
            producer.batches.append(SentBatch(sequence, offset, delta, timestamp))
        producers[producer_id] = producer
    return list(producers.values())
