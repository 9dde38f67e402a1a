"""deduplicate: rows that say the same thing twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.window import Window

from millstream.streams.changes import WATERMARK, names, require
from millstream.streams.columns import OFFSET, PARTITION, TIMESTAMP, column
from millstream.streams.problems import StreamsError
from millstream.streams.row_sort import RowSort

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame


def deduplicate(
    frame: DataFrame, by: str | Iterable[str], within: str | None = None, time: str = TIMESTAMP
) -> DataFrame:
    """The first row of each value of `by`: by the column `time`, then by partition and offset. As a stream,
    the first of the micro-batch in which the value first comes.

    With `within` (such as "1 hour") a value is remembered for that long after its first row, by the column
    `time`, and then forgotten: state stays bounded. As a stream it is forgotten when the watermark is so far,
    which this sets unless there is one; rows older than the watermark are dropped. Without `within` every
    value is remembered for ever.
    """
    columns = names(by)
    for name in (*columns, *([time] if within is not None else [])):
        require(frame, name, "deduplicate")
    if not frame.isStreaming:
        return _of_batch(frame, columns, within, time)
    kept = [field.metadata[WATERMARK] for field in frame.schema.fields if WATERMARK in field.metadata]
    frame = _in_order(frame, columns, time, is_timed=bool(kept) or within is not None)
    if within is None:
        return frame.dropDuplicates(columns)
    if kept and kept[0] < _milliseconds(frame, within):
        raise StreamsError(
            f"deduplicate(within={within!r}) needs a watermark of at least that much, and this frame has one "
            f"of {kept[0] / 1000:g} seconds: make late= longer, or leave it out"
        )
    timed = frame if kept else frame.withWatermark(time, within)
    return timed.dropDuplicatesWithinWatermark(columns)


def _in_order(frame: DataFrame, columns: list[str], time: str, *, is_timed: bool) -> DataFrame:
    """The rows of a stream's micro-batch so that Spark keeps the first one of each value.

    Without a watermark that is all there is of a value. With one all rows stay, for the first may be too late
    and the next one not; they are in order, and Spark keeps what comes first. There is a shuffle in between:
    all rows of a value come from one task, and each of Spark's shuffles leaves those as they were written.
    """
    place = [name for name in (time, PARTITION, OFFSET) if name in frame.columns]
    if not place:
        return frame
    are_plain = all(isinstance(frame.schema[name].dataType, _SORTED) for name in columns)
    in_order = _Sorted(place) if is_timed or not are_plain else _First(columns, place)
    return frame.repartition(*map(column, columns)).mapInArrow(in_order, frame.schema)


_SORTED = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
"""Types that Arrow sorts."""


class _Sorted:
    """Sorts what a task has: Spark itself sorts no streams."""

    def __init__(self, place: list[str]) -> None:
        self._place = place

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return RowSort(self._place).sorted(batches)


class _First:
    """Gives the first row of each value that a task has."""

    def __init__(self, columns: list[str], place: list[str]) -> None:
        self._columns = columns
        self._place = [name for name in place if name not in columns]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last: pa.RecordBatch | None = None
        for batch in RowSort([*self._columns, *self._place]).sorted(batches):
            values = batch.select(self._columns)
            numbered = pa.Table.from_arrays(
                [*values.columns, pa.array(range(len(batch)))], [*map(str, range(len(self._columns))), "row"]
            )
            grouped = numbered.group_by(numbered.column_names[:-1], use_threads=False)
            firsts = grouped.aggregate([("row", "min")]).column("row_min").combine_chunks().sort()
            is_known = last is not None and values.slice(0, 1).equals(last)
            yield batch.take(firsts.slice(int(is_known)))
            last = values.slice(len(batch) - 1)


def _of_batch(frame: DataFrame, columns: list[str], within: str | None, time: str) -> DataFrame:
    by = [column(name) for name in columns]
    place = [column(name).asc_nulls_last() for name in (time, PARTITION, OFFSET) if name in frame.columns]
    if within is not None:
        apart = timedelta(milliseconds=_milliseconds(frame, within))
        in_order = frame.repartition(*by).sortWithinPartitions(*by, *place)
        return in_order.mapInArrow(_Apart(columns, time, apart), frame.schema)
    if not place:
        return frame.dropDuplicates(columns)
    rows = Window.partitionBy(*by).orderBy(*place)
    return frame.withColumn("_nth", F.row_number().over(rows)).where("_nth = 1").drop("_nth")


class _Apart:
    """Keeps the rows of a value that are further than a time behind the last one that was kept."""

    def __init__(self, columns: list[str], time: str, apart: timedelta) -> None:
        self._columns = columns
        self._time = time
        self._apart = apart

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        value: object = None
        until: datetime | None = None
        for batch in batches:
            keeps = []
            values = zip(*(_comparable(batch.column(name)) for name in self._columns), strict=True)
            for of_row, at in zip(values, batch.column(self._time).to_pylist(), strict=True):
                is_new = of_row != value or until is None or (at is not None and at > until)
                if is_new:
                    value, until = of_row, None if at is None else at + self._apart
                keeps.append(is_new)
            yield batch.filter(pa.array(keeps, pa.bool_()))


def _comparable(values: pa.Array) -> list[object]:
    """Values that are equal where a column's are. Text as bytes, for a record's key may be no UTF-8."""
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    found: list[object] = values.to_pylist()
    return ["NaN" if each != each else each for each in found]  # which are equal in Spark


def _milliseconds(frame: DataFrame, within: str) -> int:
    """A time as Spark reads it where it takes a watermark."""
    ticks = frame.sparkSession.readStream.format("rate").load()
    return int(ticks.withWatermark("timestamp", within).schema["timestamp"].metadata[WATERMARK])
