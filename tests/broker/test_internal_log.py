"""Entries of internal topics, out of the bytes of their log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.internal_log import decode_batches
from millstream.coordinator.internal_log import LoadedBatch
from millstream.coordinator.shard import Producer
from millstream.errors import CorruptMessage
from millstream.protocol.batch import Codec, ControlMarker, encode_batch, encode_marker
from millstream.protocol.record import Record


def batch(base: int, *entries: tuple[bytes | None, bytes | None], **settings: object) -> bytes:
    records = [Record(value, key, (), 1) for key, value in entries]
    return bytes(encode_batch(records, base_offset=base, **settings))  # type: ignore[arg-type]


def entries(loaded: LoadedBatch) -> list[tuple[int, bytes, bytes | None]]:
    return [(offset, entry.key, entry.value) for offset, entry in loaded.entries]


def test_of_entries_with_one_key_the_last_is_left_at_its_place() -> None:
    data = (
        batch(0, (b"a", b"1"), (b"b", b"1")) + batch(2, (b"a", b"2")) + batch(3, (b"c", None), (None, b"?"))
    )
    (loaded,) = decode_batches(memoryview(data))
    assert entries(loaded) == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", None)]
    assert (loaded.producer, loaded.is_commit) == (None, None)


def test_transactions_stand_apart_and_in_order() -> None:
    producer = {"producer_id": 7, "producer_epoch": 2, "is_transactional": True}
    marker = encode_marker(
        ControlMarker(is_commit=True, coordinator_epoch=0),
        producer_id=7,
        producer_epoch=2,
        timestamp_ms=1,
        base_offset=4,
    )
    data = (
        batch(0, (b"a", b"1"))
        + batch(1, (b"a", b"pending"), (b"a", b"pending too"), **producer)
        + batch(3, (b"a", b"2"))
        + marker
        + batch(5, (b"a", b"3"))
    )
    loaded = decode_batches(memoryview(data))
    assert [entries(each) for each in loaded] == [
        [(0, b"a", b"1")],
        [(1, b"a", b"pending"), (2, b"a", b"pending too")],
        [(3, b"a", b"2")],
        [],
        [(5, b"a", b"3")],
    ]
    assert [each.producer for each in loaded] == [None, Producer(7, 2), None, Producer(7, 2), None]
    assert [each.is_commit for each in loaded] == [None, None, None, True, None]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(codec: Codec) -> None:
    data = batch(0, *((b"%d" % n, b"value " * 20) for n in range(50)), codec=codec)
    (loaded,) = decode_batches(memoryview(data))
    assert [key for _, key, _ in entries(loaded)] == [b"%d" % n for n in range(50)]


def test_a_batch_that_lies_about_its_records() -> None:
    data = bytearray(batch(0, (b"a", b"1")))
    data[60] = 2  # the number of records
    with pytest.raises(CorruptMessage):
        decode_batches(memoryview(data))


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=3)), min_size=1
        )
    )
)
def test_a_log_loaded_in_bulk_says_what_it_says_one_by_one(
    batches: list[list[tuple[bytes, bytes | None]]],
) -> None:
    data = b""
    offset = 0
    expected: dict[bytes, bytes | None] = {}
    for one in batches:
        data += batch(offset, *one)
        offset += len(one)
        expected.update(one)
    found: dict[bytes, bytes | None] = {}
    for loaded in decode_batches(memoryview(data)):
        offsets = [at for at, _ in loaded.entries]
        assert offsets == sorted(offsets)
        found.update((entry.key, entry.value) for _, entry in loaded.entries)
    assert found == expected
