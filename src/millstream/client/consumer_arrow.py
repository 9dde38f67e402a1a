"""Fetched records as Arrow record batches, straight from the bytes that came from the socket."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from millstream.client.subscription import Assignment
from millstream.errors import BadRecords, CorruptMessage, MillstreamError
from millstream.protocol.columns import BinaryColumn, Columns, decode_columns
from millstream.protocol.consumer_kernel import RecordReader
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of, readable_batches
from millstream.protocol.header import GOOD, BatchHeader
from millstream.protocol.kernel import append_records
from millstream.protocol.plain_columns import fetched_columns

if TYPE_CHECKING:
    import pyarrow

ENOUGH_ROWS = 4096
ENOUGH_BYTES = 16 * 1024 * 1024
"""With less than these, what is ready of other partitions is added."""


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MillstreamError("columns need pyarrow: pip install 'millstream[arrow]'") from None
    return pyarrow


@cache
def arrow_schema() -> pyarrow.Schema:
    """The columns that `poll_arrow` gives."""
    pa = _pyarrow()
    header = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(header), nullable=False),
        ]
    )


def take_arrow(assignment: Assignment) -> pyarrow.RecordBatch:
    """What lies ready, at least one answer of one partition; no rows where nothing does."""
    pa = _pyarrow()
    batches: list[Any] = []
    rows = size = 0
    while assignment.ready and rows < ENOUGH_ROWS and size < ENOUGH_BYTES:
        reader = assignment.ready[0]
        assignment.note(reader)
        if not reader.is_done:
            try:
                columns = _columns(reader)
            except BadRecords:
                if batches:
                    break  # what was taken comes first; the next call meets the bad ones
                raise
            if batches and len(columns.keys.data) + len(columns.values.data) > ENOUGH_BYTES:
                break  # it comes by itself: an Arrow column has a limit
            reader.skip(columns.next_offset)
            if len(columns):
                batches.append(to_arrow(columns, reader.topic, reader.partition))
                rows += len(columns)
                size += batches[-1].nbytes
        if reader.is_done:
            assignment.finish(reader)
    if len(batches) == 1:
        return batches[0]
    if not batches:
        schema = arrow_schema()
        return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _columns(reader: RecordReader) -> Columns:
    """What is left of an answer, up to a batch that cannot be read; BadRecords if that is the first."""
    try:
        return fetched_columns(reader.data, reader.position, reader.end_offset, reader.aborted)
    except CorruptMessage as error:
        header, at = _first_bad(reader)
        if header is None or header.base_offset <= reader.position:
            raise BadRecords(f"partition {reader.topic}-{reader.partition}, {error.message}") from None
        good = decode_columns(
            reader.data[:at],
            from_offset=reader.position,
            aborted=reader.aborted,
            with_headers=True,
            verify_crc=False,
        )
        good.next_offset = header.base_offset
        return good


def _first_bad(reader: RecordReader) -> tuple[BatchHeader | None, int]:
    """The header of the first batch that cannot be read, and its place."""
    for header, at in readable_batches(reader.data, reader.position, reader.aborted, False, False):
        try:
            payload, start = payload_of(reader.data, header, at, MAX_DECOMPRESSED_BYTES)
        except CorruptMessage:
            return header, at
        if append_records([], payload, header, reader.position, start) != GOOD:
            return header, at
    return None, 0


def to_arrow(columns: Columns, topic: str, partition: int) -> pyarrow.RecordBatch:
    """Columns of one partition as a record batch; their buffers are wrapped, not copied."""
    pa = _pyarrow()
    rows = len(columns)
    schema = arrow_schema()
    offset, timestamp, key, value, header = schema.types[2:]
    headers = columns.headers
    if headers is None:
        raise ValueError("columns without their headers")
    pairs = pa.Array.from_buffers(
        header.value_type,
        len(headers.names),
        [None],
        children=[
            wrap_binary(header.value_type[0].type, headers.names),
            wrap_binary(header.value_type[1].type, headers.values),
        ],
    )
    arrays = [
        _repeated(pa, pa.string(), [_ends(len(topic.encode())), topic.encode()], rows),
        _repeated(pa, schema.types[1], [partition.to_bytes(4, sys.byteorder, signed=True)], rows),
        pa.Array.from_buffers(offset, rows, [None, pa.py_buffer(columns.offsets)]),
        pa.Array.from_buffers(timestamp, rows, [None, pa.py_buffer(columns.timestamps)]),
        wrap_binary(key, columns.keys),
        wrap_binary(value, columns.values),
        pa.Array.from_buffers(header, rows, [None, pa.py_buffer(headers.offsets)], children=[pairs]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _repeated(pa: Any, kind: Any, buffers: list[bytes], rows: int) -> Any:
    """One value in all rows. From a Python object, pyarrow would look whether it is one of pandas' and import
    that: half a second and tens of megabytes, in the event loop."""
    one = pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])
    return pa.repeat(one[0], rows)


def _ends(size: int) -> bytes:
    """Where one text begins and ends."""
    return bytes(4) + size.to_bytes(4, sys.byteorder)


def wrap_binary(kind: Any, column: BinaryColumn) -> Any:
    """A column as an Arrow array of this type; its buffers are wrapped, not copied."""
    pa = _pyarrow()
    has_nulls = column.validity is not None and column.null_count > 0
    buffers = [
        pa.py_buffer(column.validity) if has_nulls else None,
        pa.py_buffer(column.offsets),
        pa.py_buffer(column.data),
    ]
    return pa.Array.from_buffers(kind, len(column), buffers, null_count=column.null_count)
