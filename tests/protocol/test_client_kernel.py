"""The loops that write a client's batches, compiled and interpreted: the same bytes as the kernel's own."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import tracemalloc
from array import array
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.protocol import client_kernel
from millstream.protocol.encode_kernel import encode_records, murmur2
from millstream.protocol.header import HEADER_SIZE
from millstream.protocol.kernel import Record


@cache
def interpreted() -> Any:
    """The module from its source, with Cython out of sight."""
    source = Path(client_kernel.__file__ or "").with_name("client_kernel.py")
    loader = importlib.machinery.SourceFileLoader("interpreted_client_kernel", str(source))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    kept = sys.modules.pop("cython", None)
    sys.modules["cython"] = None  # type: ignore[assignment]
    try:
        loader.exec_module(module)
    finally:
        del sys.modules["cython"]
        if kept is not None:
            sys.modules["cython"] = kept
    assert not module.IS_COMPILED
    return module


@pytest.fixture(params=["compiled", "interpreted"])
def kernel(request: pytest.FixtureRequest) -> Any:
    if request.param == "interpreted":
        return interpreted()
    assert client_kernel.IS_COMPILED, "python setup.py build_ext --inplace"
    return client_kernel


data = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=10), data), max_size=3).map(tuple)
timestamps = st.integers(-(2**62), 2**62 - 1)  # the difference of two fits 64 bits
records = st.lists(st.builds(Record, data, data, headers, timestamps), min_size=1, max_size=40)


@given(records)
def test_records_are_encoded_as_by_the_kernel(given_records: list[Record]) -> None:
    for kernel in (client_kernel, interpreted()):
        builder = kernel.BatchBuilder(1 << 20)
        for index, record in enumerate(given_records):
            assert builder.append(record.timestamp, record.key, record.value, record.headers) == index
        assert builder.base_timestamp == given_records[0].timestamp
        assert builder.max_timestamp == max(-1, *(record.timestamp for record in given_records))
        size = builder.size
        taken = builder.take()
        assert len(taken) == size
        assert taken[HEADER_SIZE:] == encode_records(given_records, given_records[0].timestamp)


def test_the_limit_holds_and_the_first_record_is_always_taken(kernel: Any) -> None:
    builder = kernel.BatchBuilder(1000)
    count = 0
    while builder.append(5, b"key", bytes(50)) >= 0:
        count += 1
        assert builder.size <= 1000
    assert builder.count == count == (1000 - HEADER_SIZE) // 61
    assert builder.append(5, None, bytes(3)) == count, "a smaller one still fits"
    large = kernel.BatchBuilder(100)
    assert large.append(5, None, bytes(5000)) == 0
    assert large.append(5, None, b"") == -1
    assert len(large.take()) > 5000
    assert large.append(5, None, b"") == -1, "it was taken"


def test_a_closed_builder_takes_no_more_and_holds_no_more_than_its_records(kernel: Any) -> None:
    builders = []
    tracemalloc.start()
    try:
        for _ in range(10):
            builder = kernel.BatchBuilder(1 << 20, 1 << 20)
            builder.append(5, b"key", bytes(100))
            builder.close()
            builders.append(builder)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
    for builder in builders:
        assert builder.append(5, None, b"") == -1
        assert builder.take()[HEADER_SIZE:] == encode_records([Record(bytes(100), b"key", timestamp=5)], 5)


def test_what_is_no_bytes_changes_nothing(kernel: Any) -> None:
    builder = kernel.BatchBuilder(1000)
    builder.append(5, None, b"good")
    before = builder.size
    for arguments in [(5, "text", b""), (5, None, "text"), (5, None, b"", [("name", "text")])]:
        with pytest.raises(TypeError):
            builder.append(*arguments)
    assert (builder.size, builder.count) == (before, 1)
    assert builder.take()[HEADER_SIZE:] == encode_records([Record(b"good", timestamp=5)], 5)


def test_rows_of_lists(kernel: Any) -> None:
    values = [b"%d" % number for number in range(100)]
    keys = [None if number % 3 else b"k%d" % number for number in range(100)]
    builder = kernel.BatchBuilder(400)
    row = builder.extend(values, keys, None, 7, None, None, 10, 100)
    assert 20 < row < 100
    expected = [Record(values[each], keys[each], (), 7) for each in range(10, row)]
    assert builder.take()[HEADER_SIZE:] == encode_records(expected, 7)
    order = array("i", [5, 3, 99])
    builder = kernel.BatchBuilder(4000)
    stamps = list(range(100))
    notes = [(("n", b"%d" % number),) for number in range(100)]
    assert builder.extend(values, None, stamps, 7, notes, order, 1, 3) == 3
    expected = [Record(values[each], None, notes[each], each) for each in (3, 99)]
    assert builder.take()[HEADER_SIZE:] == encode_records(expected, 3)


def column(kernel: Any, values: list[bytes | None], start: int = 0, stop: int | None = None) -> Any:
    rows = pa.array(values, pa.binary())[start:stop]
    validity, offsets, content = rows.buffers()
    return kernel.BinaryRows(content or b"", offsets, validity, rows.offset, len(rows))


def test_rows_of_columns(kernel: Any) -> None:
    random = Random(1)
    values = [random.choice([None, b"", random.randbytes(random.randrange(40))]) for _ in range(200)]
    keys = [random.choice([None, b"", b"key"]) for _ in range(200)]
    part, key_part = column(kernel, values, 17, 190), column(kernel, keys, 17, 190)
    assert [part[row] for row in range(part.rows)] == values[17:190]
    with pytest.raises(IndexError):
        part[173]
    builder = kernel.BatchBuilder(1000)
    row = builder.extend_columns(part, key_part, None, 9, None, 0, 173)
    assert 10 < row < 173
    expected = [Record(values[17 + each], keys[17 + each], (), 9) for each in range(row)]
    assert builder.take()[HEADER_SIZE:] == encode_records(expected, 9)
    order, stamps = array("i", [100, 2, 50]), array("q", range(1000, 1173))
    builder = kernel.BatchBuilder(1000)
    assert builder.extend_columns(part, None, stamps, 9, order, 0, 3) == 3
    expected = [Record(values[17 + each], None, (), 1000 + each) for each in (100, 2, 50)]
    assert builder.take()[HEADER_SIZE:] == encode_records(expected, 1100)


def test_columns_that_lie_are_refused(kernel: Any) -> None:
    rows = kernel.BinaryRows
    good = array("i", [0, 2, 4])
    assert rows(b"abcd", good, None, 0, 2)[1] == b"cd"
    for arguments in [
        (b"abc", good, None, 0, 2),
        (b"abcd", array("i", [0, 3, 2]), None, 0, 2),
        (b"abcd", array("i", [-1, 3, 4]), None, 0, 2),
        (b"abcd", good, None, 1, 2),
        (b"abcd", good, None, -1, 2),
        (b"abcd", good, b"", 0, 2),
    ]:
        with pytest.raises(ValueError):
            rows(*arguments)


def test_partitions_of_keys(kernel: Any) -> None:
    random = Random(2)
    keys = [None, b"", *(random.randbytes(random.randrange(30)) for _ in range(500))]
    out = array("i", bytes(4 * len(keys)))
    column(kernel, keys).partitions(7, -1, out)
    assert list(out) == [-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert all(
        kernel.partition_of(key, 7) == (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys if key is not None
    )


def test_rows_by_partition(kernel: Any) -> None:
    chosen = array("i", [2, -1, 0, 2, 2, -1, 0])
    order, starts = array("i", bytes(28)), array("i", bytes(20))
    kernel.group_rows(chosen, -1, 4, order, starts)
    assert list(order) == [1, 5, 2, 6, 0, 3, 4]
    assert list(starts) == [0, 2, 4, 4, 7]
    with pytest.raises(ValueError, match="row 1 is for partition 9"):
        kernel.group_rows(array("i", [0, 9]), 0, 2, order, starts)


def test_memory_that_is_to_be_filled(kernel: Any) -> None:
    for size in (0, 1, 5_000_000):
        memory = kernel.unfilled(size)
        memory[:] = b"x" * size
        assert type(memory) is bytearray
        assert len(memory) == size
