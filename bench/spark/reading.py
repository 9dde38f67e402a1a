"""Topics read into Spark's `noop` sink, all columns."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.spark.session import PARTITIONS, fill, rows_a_second, rows_of_size, spark_session
from bench.spark.table import Measure, head, lines
from bench.subjects import Broker
from bench.workload import topic_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = {"millstream": "millstream", "official": "kafka"}
BARS = {"batch read": 2.0, "stream read": 1.5}
BATCHES = 4


def batch_read(spark: SparkSession, options: dict[str, str], rows: int, column: str) -> float:
    """Rows a second of one batch query."""
    started = time.perf_counter()
    frame = spark.read.format(FORMATS[column]).options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - started)


def stream_read(spark: SparkSession, options: dict[str, str], rows: int, column: str) -> float:
    """Rows a second of the micro-batches of one AvailableNow query, planning and logs included."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format(FORMATS[column])
            .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=str(rows // BATCHES))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        return rows_a_second(query, rows)


def read(broker: Broker, folder: Path, rows: int, sizes: list[int], rounds: int) -> None:
    """A line for each way of reading and row size."""
    head(FORMATS, rounds)
    with spark_session(folder) as spark:
        for size in sizes:
            count = rows_of_size(rows, size)
            with topic_on(broker, PARTITIONS) as topic:
                fill(broker.bootstrap, topic, count, size)
                options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
                measures: dict[str, Measure] = {
                    f"batch read, {size} B": partial(batch_read, spark, options, count),
                    f"stream read, {size} B": partial(stream_read, spark, options, count),
                }
                lines(measures, FORMATS, BARS, rounds)
