"""Columns of fetched batches in one walk, where the batches are plain; otherwise as columns.py does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.protocol.columns import MAX_COLUMN_BYTES, BinaryColumn, Columns, HeaderColumn, decode_columns
from millstream.protocol.consumer_kernel import PlainColumns
from millstream.protocol.types import Buffer

Room = Callable[[int], Buffer]

SHORT_KEY_BYTES = 24
"""Longer keys (on average) are left to the other decoder: fresh memory costs more than a second walk."""


def fetched_columns(
    data: memoryview,
    from_offset: int,
    end_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    *,
    with_headers: bool = True,
    max_column_bytes: int = MAX_COLUMN_BYTES,
    room: Room = bytearray,
) -> Columns:
    """The records of batches that were checked when they came, with their headers, from an offset on.

    Batches that are neither compressed, nor of aborted transactions, nor have records with headers or long
    keys are walked once, without holding the interpreter. CorruptMessage if one is not good. Of others, as
    many are taken as `max_column_bytes` allows; `next_offset` says how far that was. `room` gives memory for
    keys and values, which need not be zeroed.
    """
    if not aborted and len(data):
        columns = _plain_columns(data, from_offset, end_offset, room)
        if columns is not None:
            return columns
    return decode_columns(
        data,
        from_offset=from_offset,
        aborted=aborted,
        with_headers=with_headers,
        verify_crc=False,
        max_column_bytes=max_column_bytes,
    )


def _plain_columns(
    data: memoryview, from_offset: int, end_offset: int, room: Room = bytearray
) -> Columns | None:
    plain = PlainColumns(data)
    rows = plain.capacity(from_offset)
    if rows < 0:
        return None
    columns = Columns(
        offsets=_numbers(rows, "q", 8),
        timestamps=_numbers(rows, "q", 8),
        timestamp_types=_numbers(rows, "b", 1),
        keys=_binary(rows, min(len(data), SHORT_KEY_BYTES * rows), room),
        values=_binary(rows, len(data), room),
        headers=HeaderColumn(_numbers(rows + 1, "i", 4), _NONE, _NONE),
        next_offset=max(from_offset, end_offset),
    )
    if not plain.fill(columns, from_offset):
        return None
    return _trimmed(columns, plain)


def _trimmed(columns: Columns, plain: PlainColumns) -> Columns:
    """Without the room that was not needed."""
    rows = plain.rows
    if rows < len(columns.offsets):
        columns.offsets = columns.offsets[:rows]
        columns.timestamps = columns.timestamps[:rows]
        columns.timestamp_types = columns.timestamp_types[:rows]
        if columns.headers is not None:
            columns.headers.offsets = columns.headers.offsets[: rows + 1]
    for column, null_count in ((columns.keys, plain.null_keys), (columns.values, plain.null_values)):
        column.offsets = column.offsets[: rows + 1]
        used = column.offsets[rows]
        is_mostly_empty = used < len(column.data) // 2
        column.data = column.data[:used]
        if is_mostly_empty:  # do not keep much room for little
            column.data = memoryview(bytearray(column.data))
        column.null_count = null_count
    return columns


def _numbers(count: int, kind: str, size: int) -> memoryview:
    return memoryview(bytearray(count * size)).cast(kind)  # type: ignore[call-overload, no-any-return]


def _binary(rows: int, size_bytes: int, room: Room = bytearray) -> BinaryColumn:
    return BinaryColumn(
        data=memoryview(room(size_bytes)).cast("B"),
        offsets=_numbers(rows + 1, "i", 4),
        validity=memoryview(bytearray((rows + 7) // 8)),
        null_count=0,
    )


_NONE = _binary(0, 0)
