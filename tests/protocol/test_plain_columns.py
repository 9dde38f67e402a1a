"""Columns in one walk: the same as in two, compiled and interpreted, or left to the other decoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptMessage
from millstream.protocol import consumer_kernel, plain_columns
from millstream.protocol.batch import (
    Codec,
    ControlMarker,
    Record,
    decode_columns,
    encode_batch,
    encode_marker,
    scan_batches,
)
from millstream.protocol.plain_columns import fetched_columns
from tests.protocol.test_consumer_kernel import INTERPRETED


@pytest.fixture(params=["compiled", "interpreted"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    kernel = consumer_kernel if request.param == "compiled" else INTERPRETED
    monkeypatch.setattr(plain_columns, "PlainColumns", kernel.PlainColumns)
    return kernel


def rows(columns: Any) -> list[tuple[Any, ...]]:
    assert len(columns.headers.offsets) == len(columns) + 1
    for column in (columns.keys, columns.values):
        nulls = sum(column[index] is None for index in range(len(columns)))
        assert column.null_count == nulls
    return [
        (
            columns.offsets[index],
            columns.timestamps[index],
            columns.timestamp_types[index],
            columns.keys[index],
            columns.values[index],
            columns.headers.offsets[index + 1] - columns.headers.offsets[index],
        )
        for index in range(len(columns))
    ]


def both(data: bytes, from_offset: int = 0, aborted: Any = None) -> tuple[Any, Any]:
    end = max(from_offset, scan_batches(data, 0, len(data), False).last_offset + 1)
    mine = fetched_columns(memoryview(data), from_offset, end, aborted)
    theirs = decode_columns(data, from_offset=from_offset, aborted=aborted, with_headers=True)
    assert mine.next_offset == theirs.next_offset
    return rows(mine), rows(theirs)


def batch(values: list[bytes | None], base_offset: int = 0, headers: Any = (), **options: Any) -> bytes:
    records = [
        Record(value=value, key=b"k%d" % i if i % 3 else None, timestamp=1_000 + i, headers=headers)
        for i, value in enumerate(values)
    ]
    return bytes(encode_batch(records, base_offset=base_offset, **options))


PLAIN: list[bytes | None] = [b"a", None, b"", b"long" * 100, b"e"]


def test_plain_batches_are_read_alike(kind: Any) -> None:
    data = batch(PLAIN) + batch(PLAIN, 5, log_append_time_ms=77)
    for from_offset in (0, 3, 7, 10):
        mine, theirs = both(data, from_offset)
        assert mine == theirs
        assert len(mine) == 10 - from_offset


def test_plain_batches_are_walked_once(kind: Any) -> None:
    columns = plain_columns._plain_columns(memoryview(batch(PLAIN)), 0, 5)
    assert columns is not None
    assert len(columns) == 5


def test_long_keys_are_left_to_the_other_decoder(kind: Any) -> None:
    data = bytes(encode_batch([Record(value=b"v", key=b"k" * 30, timestamp=1) for _ in range(9)]))
    assert plain_columns._plain_columns(memoryview(data), 0, 9) is None
    mine, theirs = both(data)
    assert mine == theirs


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_what_is_not_plain_is_left_to_the_other_decoder(kind: Any, codec: Codec) -> None:
    for data in (
        batch(PLAIN) + batch(PLAIN, 5, codec=codec),
        batch(PLAIN) + batch(PLAIN, 5, headers=(("h", b"1"),)),
    ):
        assert plain_columns._plain_columns(memoryview(data), 0, 10) is None
        mine, theirs = both(data)
        assert mine == theirs
        assert len(mine) == 10


def test_control_batches_and_aborted_transactions_are_not_shown(kind: Any) -> None:
    ours: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0}
    data = (
        batch(PLAIN, base_sequence=0, is_transactional=True, **ours)
        + bytes(encode_marker(ControlMarker(True, 0), base_offset=5, timestamp_ms=1, **ours))
        + batch(PLAIN, 6)
    )
    for aborted, count in ((None, 10), ([], 10), ([(9, 0)], 5)):
        mine, theirs = both(data, aborted=aborted)
        assert mine == theirs
        assert len(mine) == count


def test_batches_that_are_not_well_formed_are_corrupt(kind: Any) -> None:
    data = bytearray(batch([b"value"] * 3))
    data[61] = 0x7E
    with pytest.raises(CorruptMessage):
        fetched_columns(memoryview(data), 0, 3, None)


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=20),
    place=st.integers(0, 400),
    byte=st.integers(0, 255),
    kernel=st.sampled_from([consumer_kernel, INTERPRETED]),
)
def test_hostile_bytes_are_read_alike_or_refused(
    values: list[bytes | None], place: int, byte: int, kernel: Any
) -> None:
    data = bytearray(batch(values))
    if 61 + place < len(data):
        data[61 + place] = byte
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_columns, "PlainColumns", kernel.PlainColumns)
        try:
            theirs = rows(decode_columns(data, with_headers=True, verify_crc=False))
        except CorruptMessage:
            with pytest.raises(CorruptMessage):
                fetched_columns(memoryview(data), 0, len(values), None)
        else:
            assert rows(fetched_columns(memoryview(data), 0, len(values), None)) == theirs
