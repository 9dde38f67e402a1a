from __future__ import annotations

import pytest

from millstream.storage.producer_snapshot import BadSnapshot, decode_snapshot, encode_snapshot
from millstream.storage.producer_state import Producer, SentBatch


def _producers() -> list[Producer]:
    busy = Producer(7, 3, 1_700_000_000_000)
    busy.batches = [SentBatch(4, 9, 4, 1_600_000_000_000), SentBatch(9, 20, 4, 1_700_000_000_000)]
    busy.coordinator_epoch = 12
    busy.transaction_start = 16
    return [busy, Producer(8, 0, 5)]


def test_the_file_is_kafkas() -> None:
    data = encode_snapshot(_producers())
    assert data[:2] == b"\x00\x01"
    assert data[6:10] == b"\x00\x00\x00\x03"
    assert data[56:102] == bytes.fromhex(
        "0000000000000007 0003 00000009 0000000000000014 00000004 0000018bcfe56800 0000000c 0000000000000010"
    )
    assert len(data) == 10 + 3 * 46


def test_all_remembered_batches_of_each_producer_are_kept() -> None:
    busy, idle = decode_snapshot(encode_snapshot(_producers()))
    assert (busy.producer_id, busy.epoch, busy.coordinator_epoch, busy.transaction_start) == (7, 3, 12, 16)
    assert busy.batches == _producers()[0].batches
    assert (idle.producer_id, idle.last_sequence, idle.last_offset, idle.last_timestamp) == (8, -1, -1, 5)
    assert decode_snapshot(encode_snapshot([])) == []


def test_every_changed_or_missing_byte_is_found() -> None:
    data = encode_snapshot(_producers())
    for at in range(len(data)):
        with pytest.raises(BadSnapshot):
            decode_snapshot(data[:at])
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(BadSnapshot):
            decode_snapshot(bytes(changed))
