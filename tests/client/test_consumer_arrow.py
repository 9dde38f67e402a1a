"""Records by the column, as Arrow gets them: without a broker, from batches that lie ready."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from millstream.client.consumer_arrow import ENOUGH_BYTES, KEPT_COLUMNS, take_arrow
from millstream.client.subscription import Assignment
from millstream.model import TopicPartition
from millstream.protocol.batch import encode_batch
from millstream.protocol.compression import Codec
from millstream.protocol.consumer_kernel import RecordReader
from millstream.protocol.kernel import Record


@pytest.fixture
def assignment() -> Assignment:
    return Assignment(lambda: None, lambda: None)


def lie_ready(
    assignment: Assignment, topic: str, partition: int, records: Sequence[Record], codec: Codec = Codec.NONE
) -> None:
    place = TopicPartition(topic, partition)
    assignment.add([place])
    data = memoryview(encode_batch(records, codec=codec))
    state = assignment[place]
    assignment.put(state, RecordReader(topic, partition, data, 0, len(records), owner=state))


def numbered(count: int) -> list[Record]:
    return [Record(offset=row, timestamp=row, key=None, value=b"%d" % row) for row in range(count)]


@pytest.mark.parametrize("topic", ["t", "n" * 249])
@pytest.mark.parametrize("rows", [1, 2, 3, 1000, 4096, 4097, 60_000])
def test_columns_of_one_value_are_as_long_as_the_others(
    assignment: Assignment, topic: str, rows: int
) -> None:
    for partition in (3, 0, 3):
        lie_ready(assignment, topic, partition, numbered(rows))
        batch = take_arrow(assignment)
        batch.validate(full=True)
        assert batch.column("topic").to_pylist() == [topic] * rows
        assert batch.column("partition").to_pylist() == [partition] * rows
        assert batch.column("value").to_pylist() == [b"%d" % row for row in range(rows)]
        assert batch.column("headers").to_pylist() == [[]] * rows
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, batch.schema) as stream:
            stream.write_batch(batch)
        assert pa.ipc.open_stream(written.getvalue()).read_next_batch().equals(batch)
        assignment.remove(list(assignment.partitions))


def test_more_partitions_than_columns_are_kept(assignment: Assignment) -> None:
    for _ in range(2):
        for partition in range(KEPT_COLUMNS + 10):
            lie_ready(assignment, "many", partition, numbered(5000))
            batch = take_arrow(assignment)
            assert batch.column("partition").to_pylist() == [partition] * 5000
            assignment.remove(list(assignment.partitions))


def test_nobody_can_change_what_others_get_too(assignment: Assignment) -> None:
    lie_ready(assignment, "shared", 1, numbered(5))
    batch = take_arrow(assignment)
    for name in ("topic", "partition"):
        buffers = [buffer for buffer in batch.column(name).buffers() if buffer is not None]
        assert buffers
        assert not any(buffer.is_mutable for buffer in buffers), name


def test_headers_count_as_what_is_enough(assignment: Assignment) -> None:
    """What lies ready is joined, but not without a bound: an Arrow column has one."""
    large = Record(offset=0, timestamp=0, key=None, value=b"", headers=(("h", bytes(10 << 20)),))
    for partition in range(4):
        lie_ready(assignment, "headers", partition, [large], Codec.ZSTD)
    found = [take_arrow(assignment) for _ in range(2)]
    assert [batch.num_rows for batch in found] == [2, 2]
    assert all(ENOUGH_BYTES < batch.nbytes < 2 * ENOUGH_BYTES for batch in found)


def test_no_rows_have_the_same_columns(assignment: Assignment) -> None:
    empty = take_arrow(assignment)
    lie_ready(assignment, "t", 0, numbered(1))
    assert empty.num_rows == 0
    assert empty.schema == take_arrow(assignment).schema
