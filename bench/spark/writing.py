"""Rows of Parquet files written to topics: in batch, and as a stream of a few large micro-batches.

Millstream's streams are exactly once, those of the official connector at least once; a column shows
Millstream's at-least-once too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.spark.session import (
    CHUNK_ROWS,
    PARTITIONS,
    rows_a_second,
    rows_of_size,
    sample_rows,
    spark_session,
)
from bench.spark.table import Measure, head, lines
from bench.subjects import Broker
from bench.workload import topic_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS = {
    "millstream": ("millstream", {}),
    "at least once": ("millstream", {"guarantee": "at-least-once"}),
    "official": ("kafka", {}),
}
BARS = {"batch write": 1.5, "stream write": 1.5}
BATCHES = 4
SCHEMA = "key BINARY, value BINARY"


def write_files(folder: Path, rows: int, size: int) -> None:
    """Rows in as many files as a stream's micro-batches have tasks, all in all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    table = pa.concat_tables([sample_rows(size)] * (rows // CHUNK_ROWS // BATCHES // PARTITIONS))
    for index in range(BATCHES * PARTITIONS):
        pq.write_table(table, folder / f"{index}.parquet", compression="none")


class Writing:
    """One size of rows, to be written again and again, to a new topic each time."""

    def __init__(self, spark: SparkSession, broker: Broker, files: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._files = str(files)
        self._rows = spark.read.parquet(self._files).count()

    def in_batch(self, column: str) -> float:
        """Rows a second of one batch write."""
        frame = self._spark.read.schema(SCHEMA).parquet(self._files).coalesce(PARTITIONS)
        with self._sink(column) as (name, options):
            started = perf_counter()
            frame.write.format(name).options(**options).mode("append").save()
            return self._rows / (perf_counter() - started)

    def as_stream(self, column: str) -> float:
        """Rows a second of the micro-batches of one query, planning and logs included."""
        source = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", PARTITIONS)
        with self._sink(column) as (name, options), tempfile.TemporaryDirectory() as checkpoint:
            query = (
                source.parquet(self._files)
                .coalesce(PARTITIONS)
                .writeStream.format(name)
                .options(**options)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            return rows_a_second(query, self._rows)

    @contextmanager
    def _sink(self, column: str) -> Iterator[tuple[str, dict[str, str]]]:
        """A new topic to write to; the name of a format and its options."""
        name, options = SINKS[column]
        with topic_on(self._broker, PARTITIONS) as topic:
            yield name, {"kafka.bootstrap.servers": self._broker.bootstrap, "topic": topic, **options}


def write(broker: Broker, folder: Path, rows: int, sizes: list[int], rounds: int) -> None:
    """A line for each way of writing and row size."""
    head(SINKS, rounds)
    with spark_session(folder) as spark:
        for size in sizes:
            files = folder / "rows" / str(size)
            write_files(files, rows_of_size(rows, size), size)
            writing = Writing(spark, broker, files)
            measures: dict[str, Measure] = {
                f"batch write, {size} B": writing.in_batch,
                f"stream write, {size} B": writing.as_stream,
            }
            lines(measures, SINKS, BARS, rounds)
