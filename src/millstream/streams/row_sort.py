"""RowSort: Arrow rows in order, in bounded memory however many they are.

What is over `max_bytes` is sorted and written to a temporary file, as a run; runs are merged when they are
read. The file has no name: it is gone with the process that wrote it, however that ends.
"""

from __future__ import annotations

import math
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

MAX_BYTES = 24 << 20
"""How much is held before it is written away. While it is sorted it is there twice."""
BLOCK_BYTES = 128 << 10
"""How much of each run is in memory while runs are merged."""
MAX_ROWS = 10_000
"""How many rows are given at a time, as Spark does."""

LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"
"""Where Spark has its workers put what does not fit into memory, divided by commas."""

Key = tuple[tuple[int, Any], ...]


class RowSort:
    """Sorts rows by columns, upwards, nulls last. Rows that are equal in these stay as they came."""

    def __init__(
        self, columns: Sequence[str], max_bytes: int = MAX_BYTES, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._columns = list(columns)
        self._max_bytes = max_bytes
        self._block_bytes = block_bytes

    def sorted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in order."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        with Spill() as spill:
            runs: list[_Run] = []
            for batch in batches:
                held.append(batch)
                held_bytes += batch.nbytes
                if held_bytes >= self._max_bytes:
                    runs.append(self._run(spill, held))
                    held, held_bytes = [], 0
            if not runs:
                yield from self._in_order(held).to_batches(MAX_ROWS) if held else ()
                return
            if held:
                runs.append(self._run(spill, held))
            del held
            yield from self._merged(runs)

    def _in_order(self, batches: list[pa.RecordBatch]) -> pa.Table:
        rows = pa.Table.from_batches(batches)
        keys = [(name, "ascending") for name in self._columns]
        return rows.take(pc.sort_indices(rows, sort_keys=keys))  # which is stable

    def _run(self, spill: Spill, held: list[pa.RecordBatch]) -> _Run:
        rows = self._in_order(held)
        per_block = max(1, rows.num_rows * self._block_bytes // max(1, rows.nbytes))
        places = [spill.write(batch) for batch in rows.combine_chunks().to_batches(per_block)]
        return _Run(spill, rows.schema, places, self._columns)

    def _merged(self, runs: list[_Run]) -> Iterator[pa.RecordBatch]:
        """Again and again, the rows of all blocks that no row of a block still to be read comes before."""
        while runs:
            more = [(run.last, number) for number, run in enumerate(runs) if run.has_more]
            if more:
                bound, of_run = min(more)  # of equal ones the earlier run, whose equal rows come first
                cut = [run.taken(bound, is_inclusive=number <= of_run) for number, run in enumerate(runs)]
            else:
                cut = [run.taken() for run in runs]
            yield from self._in_order(cut).to_batches(MAX_ROWS)
            runs = [run for run in runs if run.refill()]


class _Run:
    """Rows in order, of which one block is in memory."""

    def __init__(
        self, spill: Spill, schema: pa.Schema, places: list[tuple[int, int]], columns: list[str]
    ) -> None:
        self._spill = spill
        self._schema = schema
        self._columns = columns
        self._places = iter(places)
        self._left = len(places)
        self._block: pa.RecordBatch
        self.last: Key
        self._read()

    @property
    def has_more(self) -> bool:
        """Whether there is something behind the block in memory."""
        return self._left > 0

    def taken(self, bound: Key | None = None, *, is_inclusive: bool = True) -> pa.RecordBatch:
        """The block's rows up to a bound, or all of them, which then are not in it any more."""
        count = self._block.num_rows
        if bound is not None and bound <= self.last:
            bisect = bisect_right if is_inclusive else bisect_left
            count = bisect(range(count), bound, key=self._key)
        found, self._block = self._block.slice(0, count), self._block.slice(count)
        return found

    def refill(self) -> bool:
        """Read the next block if this one is used up; false if there is none."""
        if self._block.num_rows == 0 and self.has_more:
            self._read()
        return bool(self._block.num_rows)

    def _read(self) -> None:
        self._left -= 1
        self._block = self._spill.read(next(self._places), self._schema)
        self.last = self._key(self._block.num_rows - 1)

    def _key(self, row: int) -> Key:
        return tuple(_comparable(self._block.column(name)[row]) for name in self._columns)


class Spill:
    """A file without a name for record batches; there is one only if something is written."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Where it lies, and how long it is."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=_folder())  # noqa: SIM115 - closed by __exit__
        data = batch.serialize()
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(data)
        return start, data.size

    def read(self, place: tuple[int, int], schema: pa.Schema) -> pa.RecordBatch:
        assert self._file is not None
        start, size = place
        self._file.seek(start)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), schema)


def _folder() -> str | None:
    """The first of Spark's folders that is there; else the system's own."""
    given = os.environ.get(LOCAL_FOLDERS, "").split(",")
    return next((each for each in given if each and os.path.isdir(each)), None)


def _comparable(scalar: Any) -> tuple[int, Any]:
    """A value so that Python orders it as Arrow does: numbers, then what is no number, then null."""
    if not scalar.is_valid:
        return 2, 0
    if pa.types.is_string(scalar.type):
        return 0, scalar.as_buffer().to_pybytes()  # a record's key may be no UTF-8
    value = scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)
