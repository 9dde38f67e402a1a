"""The kernel's part of compaction, compiled and interpreted, against plain Python."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.protocol.batch import (
    ControlMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    scan_batches,
    seal,
)
from millstream.protocol.fetched import whole_batches
from millstream.protocol.header import BAD_CRC, BAD_OFFSET, GOOD, TRUNCATED
from tests.protocol.kernels import Records, records_over

BOTH = [records_over("compiled"), records_over("interpreted")]
SECRET = bytes(range(16))
NOW_MS = 1_700_000_000_000
NONE = memoryview(array("q"))

keys = st.sampled_from([None, b"", b"a", b"b", b"1234567", b"12345678", b"123456789", b"x" * 300])
records_of_a_batch = st.lists(
    st.builds(
        Record,
        key=keys,
        value=st.none() | st.binary(max_size=20),
        headers=st.sampled_from([(), (("h", b"1"),), (("h", None), ("h", b""))]),
        timestamp=st.sampled_from([-1, 0, NOW_MS, NOW_MS + 300, NOW_MS - 5]),
    ),
    min_size=1,
    max_size=8,
)
kinds = st.sampled_from([{}, {"log_append_time_ms": NOW_MS}, {"delete_horizon_ms": NOW_MS}, {"codec": 3}])


def filled(records: Records, data: bytes, first_offset: int = 0, max_bytes: int = 1 << 20) -> Any:
    found = records.offset_map.OffsetMap(max_bytes, 0.9, SECRET)
    found.clear(first_offset)
    found.begin(0)
    found.add_batches(data, 0, len(data), records.walk.OpenTransactions())
    return found


def filtered(
    records: Records,
    offsets: Any,
    data: bytes,
    kept: tuple[int, ...] = (),
    upper: int = -1,
    buffer_bytes: int = 4000,
    begun: tuple[int, ...] = (),
) -> tuple[Any, bytes, bytes, bytes, int]:
    """What comes out of a filter until it ends, or stops for a reason other than want of room."""
    batches = records.filter.BatchFilter(
        offsets,
        records.walk.OpenTransactions(),
        memoryview(array("q", kept)),
        memoryview(array("q", begun)),
        upper,
        NOW_MS,
        1000,
        buffer_bytes,
    )
    batches.begin_segment(0, 100)
    batches.begin(0)
    parts: list[tuple[bytes, ...]] = []
    position = 0
    while True:
        position = batches.copy_batches(data, position, len(data))
        parts.append(tuple(map(bytes, batches.output())))
        batches.taken()
        if batches.stop != records.walk.FULL:
            break
    batches.finish()
    parts.append(tuple(map(bytes, batches.output())))
    log, index, times = (b"".join(part) for part in zip(*parts, strict=True))
    return batches, log, index, times, position


@given(st.binary(max_size=200))
def test_the_checksum_is_crc_32c(data: bytes) -> None:
    for kind in BOTH:
        assert kind.walk.Checksum().of(data) == crc32c(data)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=100))
def test_the_map_knows_the_last_offset_of_each_key(written: list[bytes]) -> None:
    for kind in BOTH:
        offsets = kind.offset_map.OffsetMap(1 << 16, 0.9, SECRET)
        offsets.clear(1 << 40)
        expected = {}
        for number, key in enumerate(written):
            assert offsets.put(key, (1 << 40) + number)
            expected[key] = (1 << 40) + number
        assert len(offsets) == len(expected)
        assert all(offsets.get(key) == offset for key, offset in expected.items())
        assert offsets.get(b"never put, and longer than any") == -1


def test_the_map_grows_within_its_bound_and_says_when_it_is_full(records: Records) -> None:
    offsets = records.offset_map.OffsetMap(24 * 50_000, 0.9, SECRET)
    expected = {}
    number = 0
    while offsets.put(b"%d" % number, number):
        expected[b"%d" % number] = number
        number += 1
    assert number == 45_000
    assert offsets.put(b"17", number)  # one that it has needs no room
    expected[b"17"] = number
    assert all(offsets.get(key) == offset for key, offset in expected.items())
    offsets.clear(0)
    assert len(offsets) == 0
    assert offsets.get(b"17") == -1
    assert offsets.put(b"17", 0)


def test_offsets_too_far_apart_count_as_full(records: Records) -> None:
    offsets = records.offset_map.OffsetMap(1 << 20, 0.9, SECRET)
    offsets.clear(100)
    assert offsets.put(b"a", 100 + 0xFFFFFFFE)
    assert not offsets.put(b"b", 100 + 0xFFFFFFFF)
    assert not offsets.put(b"c", 99)
    assert offsets.get(b"a") == 100 + 0xFFFFFFFE


def test_a_table_filled_to_its_limit_still_finds_what_is_not_there(records: Records) -> None:
    offsets = records.offset_map.OffsetMap(1, 1.0, SECRET)
    while offsets.put(b"%d" % len(offsets), len(offsets)):
        pass
    assert 10 < len(offsets) < 16
    assert offsets.get(b"nothing") == -1


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(records_of_a_batch, kinds), min_size=1, max_size=6), st.data())
def test_both_kernels_keep_the_same_records_and_those_that_they_should(
    written: list[tuple[list[Record], dict[str, Any]]], draw: st.DataObject
) -> None:
    data, base, boundaries = b"", 0, []
    for batch, options in written:
        data += encode_batch(batch, base_offset=base, **{**options, "codec": 0})
        base += len(batch)
        boundaries.append(base - 1)
    first_offset = draw.draw(st.integers(0, base))
    kept = tuple(sorted(draw.draw(st.sets(st.sampled_from(boundaries)))))
    begun = tuple(sorted(draw.draw(st.sets(st.sampled_from(boundaries)))))
    upper = draw.draw(st.sampled_from([-1, base]))
    outcomes = []
    for kind in BOTH:
        offsets = filled(kind, data, first_offset)
        assert (offsets.stop, offsets.latest_offset) == (GOOD, max(base, first_offset) - 1)
        batches, log, index, times, position = filtered(kind, offsets, data, kept, upper, begun=begun)
        assert (batches.stop, position) == (GOOD, len(data))
        outcomes.append((log, index, times, batches.records_read, batches.records_kept, batches.size))
    assert outcomes[0] == outcomes[1]
    log = outcomes[0][0]
    last = {record.key: record.offset for record in decode_records(data) if record.offset >= first_offset}
    expected = [
        record
        for record, passed in _with_horizon(data, written)
        if record.key is not None
        and not (record.value is None and passed)
        and last.get(record.key, -1) <= record.offset
    ]
    assert decode_records(log) == expected
    scan = scan_batches(log, 0, len(log))
    assert scan.error == GOOD
    reached = [header.last_offset for header in _headers(log)]
    assert {*kept, *begun} <= set(reached)
    assert upper == -1 or reached[-1] == upper - 1
    with_tombstones = {r.offset for r in expected if r.value is None}
    for header in _headers(log):
        if not header.count:
            is_named = header.last_offset in kept or header.last_offset + 1 == upper
            original = next(one for one in _headers(data) if one.last_offset == header.last_offset)
            assert header.producer_id == (original.producer_id if is_named else -1)
        if any(header.base_offset <= offset <= header.last_offset for offset in with_tombstones):
            assert header.has_delete_horizon


def _with_horizon(
    data: bytes, written: list[tuple[list[Record], dict[str, Any]]]
) -> list[tuple[Record, bool]]:
    passed = ["delete_horizon_ms" in options for batch, options in written for _ in batch]
    return list(zip(decode_records(data), passed, strict=True))


def _headers(log: bytes) -> list[Any]:
    return [header for header, _ in whole_batches(memoryview(log), True)]


def test_compressed_batches_are_left_to_the_caller(records: Records) -> None:
    plain = bytes(encode_batch([Record(key=b"a", value=b"1")]))
    special = bytes(encode_batch([Record(key=b"b", value=b"2")], base_offset=1, codec=1))
    offsets = filled(records, plain + special)
    assert (offsets.stop, offsets.latest_offset, len(offsets)) == (records.walk.CALLER, 0, 1)
    batches, log, _, _, position = filtered(records, offsets, plain + special)
    assert (batches.stop, position, log) == (records.walk.CALLER, len(plain), plain)


def marker(offset: int, producer_id: int, *, is_commit: bool = True) -> bytes:
    return bytes(
        encode_marker(
            ControlMarker(is_commit, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=NOW_MS,
            base_offset=offset,
        )
    )


def sent(offset: int, producer_id: int, key: bytes = b"a") -> bytes:
    return bytes(
        encode_batch(
            [Record(key=key, value=b"1", timestamp=NOW_MS)],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=offset,
            is_transactional=True,
        )
    )


def test_committed_transactions_are_followed_by_the_kernel(records: Records) -> None:
    data = sent(0, 7) + sent(1, 8) + sent(2, 7) + marker(3, 7) + sent(4, 7, b"b") + marker(5, 8)
    offsets = filled(records, data)
    assert (offsets.stop, offsets.get(b"a"), offsets.get(b"b")) == (GOOD, 2, 4)
    batches, log, _, _, position = filtered(records, offsets, data)
    assert (batches.stop, position) == (GOOD, len(data))
    assert [header.base_offset for header in _headers(log)] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (sent(0, 7) + sent(1, 8), 1),  # 8's transaction may be the one that was aborted
        (sent(0, 7) + marker(1, 7, is_commit=False), 1),
        (sent(0, 7) + marker(1, 8), 1),  # all that is left of a transaction: it may go
    ],
)
def test_what_may_be_an_aborted_transaction_is_left_to_the_caller(
    records: Records, data: bytes, position: int
) -> None:
    transactions = records.walk.OpenTransactions()
    transactions.expect(1)
    batches = records.filter.BatchFilter(
        filled(records, b""), transactions, NONE, NONE, -1, NOW_MS, 1000, 4000
    )
    batches.begin(0)
    assert batches.copy_batches(data, 0, len(data)) == len(sent(0, 7)) * position
    assert batches.stop == records.walk.CALLER
    assert transactions.state(7) == records.walk.KEPT


def test_records_of_transactions_known_to_be_aborted_do_not_count(records: Records) -> None:
    data = sent(0, 7) + sent(1, 8) + sent(2, 7, b"b")
    transactions = records.walk.OpenTransactions()
    transactions.put(7, records.walk.ABORTING)
    offsets = records.offset_map.OffsetMap(1 << 20, 0.9, SECRET)
    offsets.add_batches(data, 0, len(data), transactions)
    assert (offsets.stop, offsets.get(b"a"), offsets.get(b"b")) == (GOOD, 1, -1)
    assert (transactions.state(7), transactions.state(8)) == (records.walk.ABORTED, records.walk.KEPT)
    batches = records.filter.BatchFilter(
        offsets, transactions, memoryview(array("q", [2])), NONE, -1, NOW_MS, 1000, 4000
    )
    batches.begin(0)
    batches.copy_batches(data, 0, len(data))
    kept = _headers(bytes(batches.output()[0]))
    assert [(header.base_offset, header.count) for header in kept] == [(1, 1), (2, 0)]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=200))
def test_open_transactions_are_remembered_by_producer(changes: list[tuple[int, int]]) -> None:
    for kind in BOTH:
        transactions = kind.walk.OpenTransactions()
        expected: dict[int, int] = {}
        for producer_id, state in changes:
            transactions.put(producer_id, state)
            expected[producer_id] = state
        assert all(transactions.state(one) == state for one, state in expected.items())
        assert len(transactions) == sum(state != 0 for state in expected.values())


def test_a_batch_that_no_output_can_hold_is_left_to_the_caller(records: Records) -> None:
    large = bytes(encode_batch([Record(key=b"a", value=bytes(3000))]))
    batches, _, _, _, position = filtered(records, filled(records, large), large)
    assert (batches.stop, position) == (records.walk.CALLER, 0)


@pytest.mark.parametrize(("cut", "expected"), [(1, TRUNCATED), (60, TRUNCATED)])
def test_batches_that_are_not_whole_or_not_good_stop_the_walk(
    records: Records, cut: int, expected: int
) -> None:
    first = bytes(encode_batch([Record(key=b"a", value=b"1")], base_offset=5))
    second = bytes(encode_batch([Record(key=b"b", value=b"2")], base_offset=6))
    changed = second[:-1] + b"?"
    for data, error in (
        (first + second[:-cut], expected),
        (first + changed, BAD_CRC),
        (first + first, BAD_OFFSET),
    ):
        offsets = records.offset_map.OffsetMap(1 << 20, 0.9, SECRET)
        assert offsets.add_batches(data, 0, len(data), records.walk.OpenTransactions()) == len(first)
        assert offsets.stop == error
        batches, log, _, _, position = filtered(records, offsets, data)
        assert (batches.stop, position, log) == (error, len(first), first)


@settings(deadline=None, max_examples=300)
@given(records_of_a_batch, st.data())
def test_records_that_are_not_well_formed_are_noticed_by_both(
    batch: list[Record], draw: st.DataObject
) -> None:
    data = bytearray(encode_batch(batch))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(57, len(data) - 1))] = draw.draw(st.integers(0, 255))
    seal(memoryview(data))
    outcomes: list[tuple[Any, ...]] = []
    for kind in BOTH:
        offsets = filled(kind, bytes(data))
        batches, log, index, times, position = filtered(kind, offsets, bytes(data))
        header = kind.kernel.read_header(data)
        one = kind.filter.BatchFilter(
            offsets, kind.walk.OpenTransactions(), NONE, NONE, -1, NOW_MS, 1000, 4000
        )
        error = one.select(bytes(data), 61, header, False, True)
        outcomes.append((offsets.stop, len(offsets), batches.stop, log, index, times, position, error))
        if error == GOOD:
            outcomes[-1] += (bytes(one.selected()) if one.rebased else b"", one.kept, one.largest)
    assert outcomes[0] == outcomes[1]
