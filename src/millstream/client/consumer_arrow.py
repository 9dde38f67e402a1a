"""Fetched records as Arrow record batches, straight from the bytes that came from the socket."""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from millstream.client.subscription import Assignment
from millstream.errors import BadRecords, CorruptMessage, MillstreamError
from millstream.protocol.columns import BinaryColumn, Columns, HeaderColumn, decode_columns
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
KEPT_BYTES = 1024 * 1024
KEPT_COLUMNS = 32
"""So many columns of one value are kept for the next records of the same partition, if they are no larger."""


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
            columns_bytes = _size_bytes(columns)
            if batches and columns_bytes > ENOUGH_BYTES:
                break  # it comes by itself: an Arrow column has a limit
            reader.skip(columns.next_offset)
            if len(columns):
                batches.append(to_arrow(columns, reader.topic, reader.partition))
                rows += len(columns)
                size += columns_bytes
        if reader.is_done:
            assignment.finish(reader)
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return _no_rows()
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


@cache
def _no_rows() -> pyarrow.RecordBatch:
    schema = arrow_schema()
    return _pyarrow().RecordBatch.from_arrays(
        [_pyarrow().nulls(0, kind) for kind in schema.types], schema=schema
    )


def _columns(reader: RecordReader) -> Columns:
    """What is left of an answer, up to a batch that cannot be read; BadRecords if that is the first."""
    try:
        return fetched_columns(
            reader.data, reader.position, reader.end_offset, reader.aborted, room=_pyarrow().allocate_buffer
        )
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


def _size_bytes(columns: Columns) -> int:
    parts = [columns.keys, columns.values]
    if columns.headers is not None:
        parts += [columns.headers.names, columns.headers.values]
    return sum(len(part.data) for part in parts)


def to_arrow(columns: Columns, topic: str, partition: int) -> pyarrow.RecordBatch:
    """Columns of one partition as a record batch; their buffers are wrapped, not copied."""
    pa = _pyarrow()
    rows = len(columns)
    name = topic.encode()
    schema = arrow_schema()
    kinds = schema.types
    arrays = [
        _constant(kinds[0], (_int32(0, len(name)), name), rows),
        _constant(kinds[1], (_int32(partition),), rows),
        pa.Array.from_buffers(kinds[2], rows, [None, pa.py_buffer(columns.offsets)]),
        pa.Array.from_buffers(kinds[3], rows, [None, pa.py_buffer(columns.timestamps)]),
        wrap_binary(kinds[4], columns.keys),
        wrap_binary(kinds[5], columns.values),
        _wrap_headers(kinds[6], columns.headers, rows),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _int32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, sys.byteorder, signed=True) for value in values)


def _wrap_headers(kind: Any, headers: HeaderColumn | None, rows: int) -> Any:
    if headers is None:
        raise ValueError("columns without their headers")
    pa = _pyarrow()
    pairs = _wrap_pairs(kind.value_type, headers) if len(headers.names) else _no_pairs()
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(headers.offsets)], children=[pairs])


def _wrap_pairs(kind: Any, headers: HeaderColumn) -> Any:
    name, value = kind
    children = [wrap_binary(name.type, headers.names), wrap_binary(value.type, headers.values)]
    return _pyarrow().Array.from_buffers(kind, len(headers.names), [None], children=children)


@cache
def _no_pairs() -> Any:
    return _pyarrow().nulls(0, arrow_schema().field("headers").type.value_type)


def _constant(kind: Any, buffers: tuple[bytes, ...], rows: int) -> Any:
    """One value in all rows: part of a longer column, which need not be made again for the next records.

    Nobody can change it for others: it lies in bytes. A pickle has all of the longer one.
    """
    longer = 1 << (rows - 1).bit_length()
    if longer * sum(map(len, buffers)) > KEPT_BYTES:
        return _repeated(kind, buffers, rows)
    return _kept(kind, buffers, longer)[:rows]


def _repeated(kind: Any, buffers: tuple[bytes, ...], rows: int) -> Any:
    """A value, which is given by its buffers: of a Python object, pyarrow would look whether it is one of
    pandas' and import that, half a second and tens of megabytes, in the event loop."""
    pa = _pyarrow()
    one = pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])
    return pa.repeat(one[0], rows)


@lru_cache(KEPT_COLUMNS)
def _kept(kind: Any, buffers: tuple[bytes, ...], rows: int) -> Any:
    pa = _pyarrow()
    made = [
        buffer and pa.py_buffer(buffer.to_pybytes()) for buffer in _repeated(kind, buffers, rows).buffers()
    ]
    return pa.Array.from_buffers(kind, rows, made)


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
