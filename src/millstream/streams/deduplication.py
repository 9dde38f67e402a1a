"""deduplicate: rows that say the same thing twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.window import Window

from millstream.streams.changes import WATERMARK, names
from millstream.streams.columns import OFFSET, PARTITION, TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deduplicate(
    frame: DataFrame, by: str | Iterable[str], within: str | None = None, time: str = TIMESTAMP
) -> DataFrame:
    """The first row of each value of `by`.

    With `within` (such as "1 hour") a value is remembered for that long after its first row, by the column
    `time`, and forgotten then: state stays bounded, and rows older than the watermark that this sets are
    dropped. Without it every value is remembered for ever.
    """
    columns = names(by)
    if frame.isStreaming:
        if within is None:
            return frame.dropDuplicates(columns)
        has_watermark = any(WATERMARK in field.metadata for field in frame.schema.fields)
        timed = frame if has_watermark else frame.withWatermark(time, within)
        return timed.dropDuplicatesWithinWatermark(columns)
    place = [name for name in (time, PARTITION, OFFSET) if name in frame.columns]
    rows = Window.partitionBy(*columns).orderBy(*place)
    if within is None:
        kept = frame.withColumn("_nth", F.row_number().over(rows)).where("_nth = 1")
        return kept.drop("_nth")
    gap = F.expr(f"INTERVAL {within}")
    before = frame.withColumn("_before", F.lag(time).over(rows))
    return before.where(F.col("_before").isNull() | (F.col(time) > F.col("_before") + gap)).drop("_before")
