"""Fetched records as the Arrow batches that Spark expects, without a Python object for any record."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.consumer_arrow import wrap_binary
from millstream.protocol.columns import Columns
from millstream.streams.reading.schema import HEADERS, TIMESTAMP_TYPE

if TYPE_CHECKING:
    import pyarrow


MOST_MILLIS = (2**63 - 1) // 1000


class SparkColumns:
    """Makes record batches of one partition with exactly the given schema, whose fields are its columns.

    What is the same in every row is made once and sliced.
    """

    def __init__(self, schema: pyarrow.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        self._same: dict[str, tuple[Any, Any]] = {
            "topic": (pa.scalar(topic, pa.string()), None),
            "partition": (pa.scalar(partition, pa.int32()), None),
            "create time": (pa.scalar(0, pa.int32()), None),
        }
        make: dict[str, Callable[[Columns, Any], Any]] = {
            "key": lambda columns, kind: wrap_binary(kind, columns.keys),
            "value": lambda columns, kind: wrap_binary(kind, columns.values),
            "topic": lambda columns, _: self._repeated("topic", len(columns)),
            "partition": lambda columns, _: self._repeated("partition", len(columns)),
            "offset": lambda columns, kind: _numbers(kind, columns.offsets),
            "timestamp": lambda columns, kind: _micros(kind, columns.timestamps),
            TIMESTAMP_TYPE: lambda columns, kind: self._timestamp_types(kind, columns.timestamp_types),
            HEADERS: _headers,
        }
        self._makers = [(make[field.name], field.type) for field in schema]

    def batch(self, columns: Columns, end: int) -> pyarrow.RecordBatch:
        """The rows whose offsets lie before `end`."""
        arrays = [make(columns, kind) for make, kind in self._makers]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        rows = len(columns)
        if rows and columns.offsets[rows - 1] >= end:
            return batch.slice(0, bisect_left(columns.offsets, end))
        return batch

    def _repeated(self, name: str, rows: int) -> Any:
        value, array = self._same[name]
        if array is None or len(array) < rows:
            array = pa.repeat(value, rows)
            self._same[name] = (value, array)
        return array if len(array) == rows else array.slice(0, rows)

    def _timestamp_types(self, kind: Any, types: memoryview) -> Any:
        if not any_set(types):
            return self._repeated("create time", len(types))
        return _numbers(pa.int8(), types).cast(kind)


def any_set(numbers: memoryview) -> bool:
    """Whether any of these bytes is not 0."""
    return bytes(numbers).count(0) != len(numbers)


def _numbers(kind: Any, values: memoryview) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _micros(kind: Any, millis: memoryview) -> Any:
    """Times that are too far for Spark, as producers may send them, are the first or last it has."""
    times = _numbers(pa.int64(), millis)
    try:
        return pc.multiply_checked(times, 1000).view(kind)
    except pa.ArrowInvalid:
        bounded = pc.max_element_wise(pc.min_element_wise(times, MOST_MILLIS), -MOST_MILLIS)
        return pc.multiply(bounded, 1000).view(kind)


def _headers(columns: Columns, kind: Any) -> Any:
    """Null where a record has none, as the official connector has it."""
    headers = columns.headers
    if headers is None:
        raise ValueError("columns without their headers")
    names, values = (kind.value_type.field(i).type for i in range(2))
    pairs = pa.Array.from_buffers(
        kind.value_type,
        len(headers.names),
        [None],
        children=[wrap_binary(names, headers.names), wrap_binary(values, headers.values)],
    )
    buffers: Sequence[Any] = [None, pa.py_buffer(headers.offsets)]
    lists = pa.Array.from_buffers(kind, len(columns), buffers, children=[pairs])
    has_any = pc.not_equal(pc.list_value_length(lists), 0).buffers()[1]
    return pa.Array.from_buffers(kind, len(columns), [has_any, buffers[1]], children=[pairs])
