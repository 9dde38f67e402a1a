"""Producer snapshots: what is written down of a producer is what is known of it after a restart."""

from __future__ import annotations

from struct import Struct

import pytest
from crc32c import crc32c

from millstream.storage.producer_snapshot import BadSnapshot, decode_snapshot, encode_snapshot
from millstream.storage.producer_state import Producer, SentBatch

ENTRY = Struct(">qhiqiqiq")


def producer(producer_id: int, batches: list[SentBatch]) -> Producer:
    made = Producer(producer_id, epoch=3, last_timestamp=500)
    made.batches = batches
    made.coordinator_epoch = 7
    made.transaction_start = 40
    return made


def test_every_remembered_batch_is_kept() -> None:
    """A restart between the append and a repeated request must not make a duplicate."""
    batches = [SentBatch(10 * n + 9, 100 * n + 9, 9, 100 * n) for n in range(1, 6)]
    (found,) = decode_snapshot(encode_snapshot([producer(5, list(batches))]))
    assert (found.producer_id, found.epoch, found.coordinator_epoch, found.transaction_start) == (5, 3, 7, 40)
    assert found.last_timestamp == 500
    assert [batch[:3] for batch in found.batches] == [batch[:3] for batch in batches]
    assert found.duplicate_of(3, 10, 19) == batches[0]


def test_producer_without_batches_is_kept() -> None:
    (found,) = decode_snapshot(encode_snapshot([producer(5, [])]))
    assert (found.producer_id, found.epoch, found.batches) == (5, 3, [])


def test_last_entry_of_a_producer_is_its_latest_batch() -> None:
    """Apache Kafka, which takes the last entry of a producer, sees the state it would have written."""
    data = encode_snapshot([producer(5, [SentBatch(1, 1, 1, 10), SentBatch(4, 9, 2, 20)]), producer(6, [])])
    entries = list(ENTRY.iter_unpack(data[10:]))
    assert entries[1] == (5, 3, 4, 9, 2, 500, 7, 40)
    assert [entry[0] for entry in entries] == [5, 5, 6]


def test_snapshot_of_apache_kafka_is_read() -> None:
    body = (
        (2).to_bytes(4, "big")
        + ENTRY.pack(1, 0, 9, 99, 4, 50, -1, -1)
        + ENTRY.pack(2, 1, -1, -1, 0, 60, 3, -1)
    )
    first, second = decode_snapshot(b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body)
    assert first.batches == [SentBatch(9, 99, 4, 50)]
    assert second.batches == []


def test_damage_is_found() -> None:
    data = bytearray(encode_snapshot([producer(5, [SentBatch(1, 1, 1, 10)])]))
    for position in range(len(data)):
        data[position] ^= 1
        with pytest.raises(BadSnapshot):
            decode_snapshot(bytes(data))
        data[position] ^= 1
    for size in range(len(data)):
        with pytest.raises(BadSnapshot):
            decode_snapshot(bytes(data[:size]))
