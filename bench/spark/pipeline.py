"""Rows read from a topic, counted by key and second of the record, and written to another topic.

Append mode with a watermark, a few micro-batches over the whole topic: what a pipeline does that has fallen
behind. Millstream's output is exactly once, the official connector's at least once.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.spark.reading import BATCHES, FORMATS
from bench.spark.session import PARTITIONS, fill, rows_a_second, rows_of_size, spark_session
from bench.spark.table import head, lines
from bench.subjects import Broker
from bench.workload import topic_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BARS = {"read-aggregate-write": 1.2}


def pipe(spark: SparkSession, broker: Broker, topic: str, rows: int, column: str) -> float:
    """Rows a second of the micro-batches of one query."""
    from pyspark.sql import functions

    server = {"kafka.bootstrap.servers": broker.bootstrap}
    source = (
        spark.readStream.format(FORMATS[column])
        .options(**server, subscribe=topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", rows // BATCHES)
        .load()
    )
    counts = (
        source.withWatermark("timestamp", "0 seconds")
        .groupBy(functions.window("timestamp", "1 second"), "key")
        .agg(functions.count("*").alias("rows"), functions.sum(functions.length("value")).alias("bytes"))
    )
    with topic_on(broker, PARTITIONS) as output, tempfile.TemporaryDirectory() as checkpoint:
        query = (
            counts.selectExpr("key", "to_json(struct(window.start, rows, bytes)) AS value")
            .writeStream.format(FORMATS[column])
            .options(**server, topic=output, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        return rows_a_second(query, rows)


def pipeline(broker: Broker, folder: Path, rows: int, sizes: list[int], rounds: int) -> None:
    """A line for each row size."""
    head(FORMATS, rounds)
    with spark_session(folder) as spark:
        for size in sizes:
            count = rows_of_size(rows, size)
            with topic_on(broker, PARTITIONS) as topic:
                fill(broker.bootstrap, topic, count, size)
                name = f"read-aggregate-write, {size} B"
                lines({name: partial(pipe, spark, broker, topic, count)}, FORMATS, BARS, rounds)
