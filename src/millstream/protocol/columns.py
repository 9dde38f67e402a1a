"""Records by the column, in Apache Arrow's memory layout, so that Arrow wraps them without copying.

A binary column is one buffer of bytes, int32 offsets into it (one more than rows), and a bitmap whose
set bits, lowest first, are the rows that are not null. Offsets and timestamps are int64. All numbers
are in the machine's byte order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import CorruptMessage
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of, readable_batches
from millstream.protocol.header import GOOD, REASONS, BatchHeader
from millstream.protocol.kernel import ColumnWriter, measure_records, scan_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_COLUMN_BYTES = 2**31 - 1
"""What int32 offsets reach."""


@dataclass(slots=True)
class BinaryColumn:
    """Bytes or null by row: row i is `data[offsets[i]:offsets[i + 1]]` if bit i of `validity` is set.

    There is no `validity` where no row can be null.
    """

    data: memoryview
    offsets: memoryview
    validity: memoryview | None
    null_count: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes | None:
        if not 0 <= row < len(self):
            raise IndexError(row)
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])


@dataclass(slots=True)
class HeaderColumn:
    """The headers of all rows: row i has those from offsets[i] up to offsets[i + 1]. Names are UTF-8."""

    offsets: memoryview
    names: BinaryColumn
    values: BinaryColumn


@dataclass(slots=True)
class Columns:
    """Records by the column. `timestamp_types` are 0 for the producer's time, 1 for the log's.

    `next_offset` is where reading goes on: behind all batches that were looked at, also those of which
    nothing is to be seen (control batches, aborted transactions).
    """

    offsets: memoryview
    timestamps: memoryview
    timestamp_types: memoryview
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn | None
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)


def decode_columns(
    buf: Buffer,
    *,
    from_offset: int = 0,
    aborted: Sequence[tuple[int, int]] | None = None,
    with_headers: bool = False,
    verify_crc: bool = True,
    max_column_bytes: int = MAX_COLUMN_BYTES,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Columns:
    """The records of all whole batches from an offset on; CorruptMessage if one is not good.

    It stops before the batch with which a column would grow beyond `max_column_bytes` (the first batch
    is always taken); `next_offset` then names that batch.
    """
    view = memoryview(buf)
    limit_bytes = min(max_decompressed_bytes, MAX_COLUMN_BYTES)
    parts: list[tuple[memoryview, BatchHeader, int]] = []
    rows = key_bytes = null_keys = value_bytes = null_values = header_count = other_bytes = 0
    next_offset = -1
    for header, position in readable_batches(view, from_offset, aborted, False, verify_crc):
        payload, start = payload_of(view, header, position, limit_bytes)
        error, more_rows, more_key_bytes, more_null_keys, more_value_bytes, more_null_values, more_headers = (
            measure_records(payload, header, start, from_offset)
        )
        if error != GOOD:
            raise CorruptMessage(f"the batch at offset {header.base_offset}: {REASONS[error]}")
        more_bytes = len(payload) - start
        if parts and max(key_bytes, value_bytes, other_bytes) + more_bytes > max_column_bytes:
            next_offset = max(from_offset, header.base_offset)
            break
        rows += more_rows
        key_bytes += more_key_bytes
        null_keys += more_null_keys
        value_bytes += more_value_bytes
        null_values += more_null_values
        header_count += more_headers
        other_bytes += more_bytes - more_key_bytes - more_value_bytes
        parts.append((payload, header, start))
    if next_offset < 0:
        next_offset = max(from_offset, scan_batches(view, 0, len(view), False).last_offset + 1)
    headers = None
    if with_headers:
        headers = HeaderColumn(
            offsets=_numbers(rows + 1, "i"),
            names=_binary_column(header_count, other_bytes, None),
            values=_binary_column(header_count, other_bytes, 0),
        )
    columns = Columns(
        offsets=_numbers(rows, "q"),
        timestamps=_numbers(rows, "q"),
        timestamp_types=_numbers(rows, "b"),
        keys=_binary_column(rows, key_bytes, null_keys),
        values=_binary_column(rows, value_bytes, null_values),
        headers=headers,
        next_offset=next_offset,
    )
    writer = ColumnWriter(columns)
    for payload, header, start in parts:
        writer.fill(payload, header, start, from_offset)
    if headers is not None:
        _trim(headers.names)
        _trim(headers.values)
    return columns


_SIZES = {"q": 8, "i": 4, "b": 1}


def _numbers(count: int, kind: str) -> memoryview:
    return memoryview(bytearray(count * _SIZES[kind])).cast(kind)  # type: ignore[call-overload, no-any-return]


def _binary_column(rows: int, data_bytes: int, null_count: int | None) -> BinaryColumn:
    return BinaryColumn(
        data=memoryview(bytearray(data_bytes)),
        offsets=_numbers(rows + 1, "i"),
        validity=None if null_count is None else memoryview(bytearray((rows + 7) // 8)),
        null_count=null_count or 0,
    )


def _trim(column: BinaryColumn) -> None:
    """Show only the bytes that were filled, and count the nulls."""
    column.data = column.data[: column.offsets[-1]]
    if column.validity is not None:
        column.null_count = len(column) - int.from_bytes(column.validity, "little").bit_count()
