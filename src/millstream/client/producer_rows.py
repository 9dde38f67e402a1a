"""Many records at once, by the column: lists of Python objects, or Arrow's memory as it is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millstream.client.partitioners import PartitionFunction
from millstream.client.producer_buffer import Headers
from millstream.protocol.client_kernel import BatchBuilder, BinaryRows, group_rows, partition_of
from millstream.protocol.types import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

INT_BYTES = 4
ANYWHERE = -1
SMALL_CHUNK_BYTES = 1 << 20


class Rows(Protocol):
    """Records by the column."""

    @property
    def count(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """About how many bytes of records they are."""
        ...

    def key(self, row: int) -> bytes | None: ...

    def chosen(self, partitions: int) -> array[int] | None:
        """The partition of each row, where the rows or their keys say it."""
        ...

    def fill(self, builder: BatchBuilder, order: Buffer | None, start: int, stop: int, now_ms: int) -> int:
        """Move rows from `start` on (of `order`, if given) into a batch while they fit; the next one."""
        ...


class ListRows:
    """Values and keys as sequences of bytes."""

    def __init__(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partitions: array[int] | None = None,
    ) -> None:
        self.values, self.keys, self.timestamps, self.headers = values, keys, timestamps, headers
        self.partitions = partitions
        for name, column in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
            if column is not None and len(column) != len(values):
                raise ValueError(f"{len(column)} {name} for {len(values)} values")
        others = {*map(type, values), *map(type, keys or ())} - {bytes, type(None)}
        if others:
            named = ", ".join(sorted(kind.__name__ for kind in others))
            raise TypeError(f"keys and values are bytes, not {named}: give the producer a serializer")

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return sum(len(each) for column in (self.values, self.keys or ()) for each in column if each)

    def key(self, row: int) -> bytes | None:
        return None if self.keys is None else self.keys[row]

    def chosen(self, partitions: int) -> array[int] | None:
        if self.keys is None or _are_all_named(self.partitions):
            return self.partitions
        keyed = array("i", [ANYWHERE if key is None else partition_of(key, partitions) for key in self.keys])
        return _named_or(self.partitions, keyed)

    def fill(self, builder: BatchBuilder, order: Buffer | None, start: int, stop: int, now_ms: int) -> int:
        taken: int = builder.extend(
            self.values, self.keys, self.timestamps, now_ms, self.headers, order, start, stop
        )
        return taken


class ArrowRows:
    """Columns of an Arrow record batch, read where they lie."""

    def __init__(
        self,
        values: BinaryRows,
        keys: BinaryRows | None,
        timestamps: Buffer | None,
        partitions: array[int] | None,
        nbytes: int,
    ) -> None:
        self.values, self.keys, self.timestamps, self.partitions = values, keys, timestamps, partitions
        self.nbytes = nbytes

    @property
    def count(self) -> int:
        return self.values.rows

    def key(self, row: int) -> bytes | None:
        return None if self.keys is None else self.keys[row]

    def chosen(self, partitions: int) -> array[int] | None:
        if self.keys is None or _are_all_named(self.partitions):
            return self.partitions
        out = array("i", bytes(INT_BYTES * self.count))
        self.keys.partitions(partitions, ANYWHERE, out)
        return _named_or(self.partitions, out)

    def fill(self, builder: BatchBuilder, order: Buffer | None, start: int, stop: int, now_ms: int) -> int:
        taken: int = builder.extend_columns(
            self.values, self.keys, self.timestamps, now_ms, order, start, stop
        )
        return taken


def _are_all_named(partitions: array[int] | None) -> bool:
    return partitions is not None and ANYWHERE not in partitions


def _named_or(partitions: array[int] | None, keyed: array[int]) -> array[int]:
    """The partition that a row names, else that of its key."""
    if partitions is None:
        return keyed
    pairs = zip(partitions, keyed, strict=True)
    return array("i", [key if named == ANYWHERE else named for named, key in pairs])


def choose(rows: Rows, topic: str, partitions: int, function: PartitionFunction | None) -> array[int] | None:
    """The partition of each row; -1 for those that may go anywhere, None where all may."""
    if function is None:
        return rows.chosen(partitions)
    return array("i", [function(topic, rows.key(row), partitions) for row in range(rows.count)])


def grouped(chosen: array[int], partitions: int) -> tuple[memoryview, array[int]]:
    """The rows' numbers by partition, and where those of each begin; the first are those for anywhere."""
    order = array("i", bytes(INT_BYTES * len(chosen)))
    starts = array("i", bytes(INT_BYTES * (partitions + 2)))
    group_rows(chosen, ANYWHERE, partitions + 1, order, starts)
    return memoryview(order).cast("B").cast("i"), starts


def arrow_rows(table: pa.Table | pa.RecordBatch) -> list[Rows]:
    """The rows of an Arrow table. Columns: value, and if there are: key, timestamp, partition, headers.

    Others, such as topic and offset of records that were read, are passed over.
    """
    pa = import_arrow()
    if isinstance(table, pa.RecordBatch):
        batches = [table]
    else:
        wanted = [name for name in COLUMNS if name in table.column_names]
        table = table.select(wanted)
        chunks = max((column.num_chunks for column in table.columns), default=0)
        if chunks > 1 and table.nbytes / chunks < SMALL_CHUNK_BYTES:
            table = table.combine_chunks()
        batches = table.to_batches()
    return [_rows_of(batch, pa) for batch in batches if batch.num_rows]


COLUMNS = ("value", "key", "timestamp", "partition", "headers")


def import_arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("Arrow tables need pyarrow: pip install 'millstream[arrow]'") from error
    return pyarrow


def _rows_of(batch: pa.RecordBatch, pa: Any) -> Rows:
    columns = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
    if "value" not in columns:
        raise ValueError("a table of records has a column named value")
    partitions = None
    if "partition" in columns:
        partitions = _partitions(columns["partition"], pa)
    times = columns.get("timestamp")
    if times is not None and times.type != pa.int64():
        times = times.cast(pa.timestamp("ms")).cast(pa.int64())
    if times is not None and times.null_count:
        raise ValueError("a column of timestamps without nulls is needed")
    values, keys = columns["value"], columns.get("key")
    if "headers" in columns and columns["headers"].null_count < batch.num_rows:
        headers = [_headers(each) for each in columns["headers"].to_pylist()]
        stamps = None if times is None else times.to_pylist()
        return ListRows(_list(values, pa), _list(keys, pa), stamps, headers, partitions)
    stamps = None if times is None else memoryview(times.buffers()[1]).cast("q")[times.offset :]
    binary_keys = None if keys is None else _binary(keys, pa)
    return ArrowRows(_binary(values, pa), binary_keys, stamps, partitions, batch.nbytes)


def _partitions(column: pa.Array, pa: Any) -> array[int]:
    """The partitions that rows name; -1 for a null."""
    column = column.cast(pa.int32()).fill_null(ANYWHERE)
    start = column.offset * INT_BYTES
    out = array("i")
    out.frombytes(memoryview(column.buffers()[1])[start : start + len(column) * INT_BYTES])
    return out


def _binary(column: pa.Array, pa: Any) -> BinaryRows:
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    return BinaryRows(data or b"", offsets, validity, column.offset, len(column))


def _list(column: pa.Array | None, pa: Any) -> Any:
    return None if column is None else column.cast(pa.binary()).to_pylist()


def _headers(given: Any) -> Headers:
    """Headers as Arrow gives them: a list of {"key", "value"}, or a map's pairs."""
    if not given:
        return ()
    return [(each["key"], each["value"]) if isinstance(each, dict) else (each[0], each[1]) for each in given]
