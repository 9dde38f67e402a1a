"""Records one by one out of fetched bytes, compiled and interpreted."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptMessage
from millstream.protocol import consumer_kernel
from millstream.protocol.batch import (
    Codec,
    ControlMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    scan_batches,
)


def _interpreted() -> Any:
    """The same source without Cython."""
    source = Path(consumer_kernel.__file__).with_name("consumer_kernel.py")
    loader = importlib.machinery.SourceFileLoader("consumer_kernel_interpreted", str(source))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    kept = sys.modules.get("cython")
    sys.modules["cython"] = None  # type: ignore[assignment]
    try:
        loader.exec_module(module)
    finally:
        if kept is None:
            del sys.modules["cython"]
        else:
            sys.modules["cython"] = kept
    assert not module.IS_COMPILED
    return module


INTERPRETED = _interpreted()


@pytest.fixture(params=["compiled", "interpreted"])
def kernel(request: pytest.FixtureRequest) -> Any:
    if request.param == "interpreted":
        return INTERPRETED
    if not consumer_kernel.IS_COMPILED:
        raise AssertionError("the compiled kernel is missing: python setup.py build_ext --inplace")
    return consumer_kernel


def reader(kernel: Any, data: bytes, from_offset: int = 0, **options: Any) -> Any:
    end = scan_batches(data, 0, len(data), True).last_offset + 1
    return kernel.RecordReader("t", 3, memoryview(data), from_offset, max(end, from_offset), **options)


def batch(values: Sequence[bytes | None], base_offset: int = 0, **options: Any) -> bytes:
    records = [
        Record(value=value, key=b"k", timestamp=1_000 + i, headers=(("h", b"1"), ("h", None)))
        for i, value in enumerate(values)
    ]
    return bytes(encode_batch(records, base_offset=base_offset, **options))


def test_gives_every_field_of_a_record(kernel: Any) -> None:
    records = reader(kernel, batch([b"v", None], base_offset=7, leader_epoch=4)).take(10)
    assert records == [
        kernel.Record("t", 3, 7, 1_000, b"k", b"v", (("h", b"1"), ("h", None))),
        kernel.Record("t", 3, 8, 1_001, b"k", None, (("h", b"1"), ("h", None))),
    ]
    assert repr(records[0]).startswith("Record(topic='t', partition=3, offset=7, timestamp_ms=1000, key=b'k'")
    assert len({*records, *records}) == 2
    assert records[0] != records[1]


class Interrupted(BaseException):
    """What a signal's handler raises."""


def interrupted_at(event: int, records: Any) -> tuple[list[int], bool]:
    """The offsets of all records, read on after a signal; false if they were read before it came.

    Python looks for signals where a function begins and where one in C has ended, which a profiler sees.
    """
    seen: list[int] = []
    left = event

    def ring(frame: Any, what: str, argument: Any) -> None:
        nonlocal left
        if what in ("call", "c_return") and frame.f_globals.get("__name__") == INTERPRETED.__name__:
            left -= 1
            if left < 0:
                raise Interrupted

    try:
        sys.setprofile(ring)
        try:
            for record in records:
                seen += (record.offset,)
        finally:
            sys.setprofile(None)
    except Interrupted:
        return [*seen, *(record.offset for record in records)], True
    return seen, False


def test_a_signal_within_a_record_loses_and_doubles_nothing() -> None:
    """In the interpreted kernel; within the compiled one there is none."""
    data = batch([b"a", None, b"c"], codec=Codec.GZIP) + batch([b"d", b"e"], base_offset=3)
    event, was_in_time = 0, True
    while was_in_time:
        seen, was_in_time = interrupted_at(event, reader(INTERPRETED, data, 1))
        assert seen == [1, 2, 3, 4], event
        event += 1
    assert event > 50


def test_a_record_can_be_pickled() -> None:
    record = consumer_kernel.Record("t", 3, 7, 1_000, b"k", {"a": 1}, (("h", None),))
    assert pickle.loads(pickle.dumps(record)) == record


def test_the_position_is_that_after_the_last_record_taken(kernel: Any) -> None:
    data = batch([b"a", b"b"], 10, leader_epoch=2) + batch([b"c", b"d"], 12, leader_epoch=5)
    records = reader(kernel, data, 10)
    assert (records.position, records.leader_epoch, records.is_done) == (10, -1, False)
    assert [record.value for record in records.take(1)] == [b"a"]
    assert (records.position, records.leader_epoch) == (11, 2)
    assert next(records).value == b"b"
    assert next(records).value == b"c"
    assert (records.position, records.leader_epoch) == (13, 5)
    assert [record.value for record in records] == [b"d"]
    assert (records.position, records.is_done) == (14, True)
    assert records.take(5) == []
    with pytest.raises(StopIteration):
        next(records)


def test_begins_within_a_batch_and_skips(kernel: Any) -> None:
    data = batch(numbered(10)) + batch(numbered(10), 10)
    records = reader(kernel, data, 4)
    assert [record.offset for record in records.take(3)] == [4, 5, 6]
    records.skip(15)
    assert records.position == 15
    assert [record.offset for record in records] == [15, 16, 17, 18, 19]
    records = reader(kernel, data)
    records.skip(20)
    assert (records.is_done, records.position, records.take(1)) == (True, 20, [])


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


@pytest.mark.parametrize("codec", list(Codec))
def test_unpacks_every_codec(kernel: Any, codec: Codec) -> None:
    data = batch(numbered(500), codec=codec) + batch([b"last"], 500)
    assert [record.value for record in reader(kernel, data)] == [*numbered(500), b"last"]


def test_log_append_time_is_that_of_all_records(kernel: Any) -> None:
    data = batch([b"a", b"b"], log_append_time_ms=5_555)
    assert [record.timestamp_ms for record in reader(kernel, data)] == [5_555, 5_555]


def test_shows_no_control_batches_and_no_aborted_transactions(kernel: Any) -> None:
    options: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "is_transactional": True}
    marker: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "timestamp_ms": 1}
    data = (
        batch([b"no"] * 2, 0, base_sequence=0, **options)
        + bytes(encode_marker(ControlMarker(False, 0), base_offset=2, **marker))
        + batch([b"yes"], 3, base_sequence=2, **options)
        + bytes(encode_marker(ControlMarker(True, 0), base_offset=4, **marker))
    )
    records = reader(kernel, data, aborted=[(9, 0)])
    assert [(record.offset, record.value) for record in records] == [(3, b"yes")]
    assert records.position == 5
    assert [record.value for record in reader(kernel, data)] == [b"no", b"no", b"yes"]


def test_gaps_of_compaction_are_kept(kernel: Any) -> None:
    records = [Record(value=b"a", offset=10, timestamp=1), Record(value=b"b", offset=17, timestamp=1)]
    data = bytes(encode_batch(records, base_offset=10, keep_offsets=True, last_offset_delta=9))
    found = reader(kernel, data, 10)
    assert [record.offset for record in found.take(1)] == [10]
    assert found.position == 11
    assert [record.offset for record in found] == [17]
    assert found.position == 20


def test_deserialises_and_meets_what_cannot_be_read_again(kernel: Any) -> None:
    records = reader(kernel, batch([b"1", None, b"x", b"4"]), key_of=bytes.decode, value_of=int)
    assert [(record.key, record.value) for record in records.take(9)] == [("k", 1), ("k", None)]
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal") as caught:
            records.take(9)
        assert caught.value.__notes__ == ["in partition t-3 at offset 2"]
        assert records.position == 2
    records.skip(3)
    assert [record.value for record in records] == [4]


def test_what_is_not_well_formed_is_corrupt_and_what_lies_before_it_is_given(kernel: Any) -> None:
    good, bad = batch([b"a", b"b"]), bytearray(batch([b"c"], 2))
    bad[61] = 0x7E  # a length beyond the end
    records = kernel.RecordReader("t", 3, memoryview(good + bytes(bad)), 0, 3)
    assert [record.value for record in records.take(10)] == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(CorruptMessage, match="partition t-3, the batch at offset 2"):
            records.take(10)
    assert records.position == 2


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=20),
    place=st.integers(0, 400),
    byte=st.integers(0, 255),
)
def test_hostile_bytes_read_alike_compiled_and_interpreted_and_never_crash(
    values: list[bytes | None], place: int, byte: int
) -> None:
    data = bytearray(batch(values))
    at = 61 + place
    if at < len(data):
        data[at] = byte
    results = []
    for module in (consumer_kernel, INTERPRETED):
        records = module.RecordReader("t", 3, memoryview(data), 0, len(values))
        found: list[Any] = []
        try:
            found.extend((r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records)
        except CorruptMessage as error:
            found.append(str(error))
        results.append(found)
    assert results[0] == results[1]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.none() | st.binary(max_size=70_000), min_size=1, max_size=4))
def test_agrees_with_the_other_decoder(values: list[bytes | None]) -> None:
    data = batch(values)
    theirs = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decode_records(data)]
    for module in (consumer_kernel, INTERPRETED):
        ours = [
            (r.offset, r.timestamp_ms, r.key, r.value, r.headers)
            for r in module.RecordReader("t", 0, memoryview(data), 0, len(values))
        ]
        assert ours == theirs


def test_batch_by_batch_with_headers(kernel: Any) -> None:
    first, second = (
        bytes(
            encode_batch(
                [Record(value=b"%d" % n, timestamp=1) for n in range(start, start + 5)],
                base_offset=start,
                leader_epoch=start,
                codec=codec,
            )
        )
        for start, codec in ((0, Codec.NONE), (5, Codec.ZSTD))
    )
    reader = kernel.RecordReader("t", 3, memoryview(first + second), 2, 10)
    assert [record.offset for record in reader.take_batch()] == [2, 3, 4]
    assert reader.header.leader_epoch == 0
    assert [record.offset for record in reader.take(1)] == [5]
    assert [record.offset for record in reader.take_batch()] == [6, 7, 8, 9]
    assert (reader.header.leader_epoch, reader.header.attributes & 7) == (5, Codec.ZSTD)
    assert reader.take_batch() == []
    assert reader.is_done
