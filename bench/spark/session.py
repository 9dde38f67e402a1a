"""A Spark with both connectors, and a topic full of rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.batches import sample_values
from bench.spark.connector import jars

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 4
CHUNK_ROWS = 10_000


@contextmanager
def spark_session(folder: Path, *, heap: str = "1g", cores: int = 2) -> Iterator[SparkSession]:
    """A local Spark with both connectors."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", heap)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.jars", ",".join(str(jar) for jar in jars()))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.local.dir", str(folder / "spark"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def sample_rows(size: int) -> pa.Table:
    """CHUNK_ROWS rows with short keys, and values of one size."""
    import pyarrow as pa

    values = sample_values(size)
    return pa.table(
        {
            "key": pa.array([b"%08d" % index for index in range(CHUNK_ROWS)], pa.binary()),
            "value": pa.array([values[index % len(values)] for index in range(CHUNK_ROWS)], pa.binary()),
        }
    )


def fill(bootstrap: str, topic: str, rows: int, size: int) -> None:
    """So many rows in all partitions of a topic."""
    from millstream import Producer

    table = sample_rows(size)
    with Producer(bootstrap) as producer:
        for _ in range(rows // CHUNK_ROWS):
            producer.send_arrow(topic, table)


def rows_of_size(rows: int, size: int) -> int:
    """How many rows of a size are about as much work as `rows` of 100 B."""
    return rows if size <= 100 else rows // 4


def rows_a_second(query: StreamingQuery, rows: int) -> float:
    """Wait for an AvailableNow query that reads so many rows; the time is that of its micro-batches."""
    query.awaitTermination()
    progress: list[Any] = query.recentProgress
    read = sum(each.numInputRows for each in progress)
    if read != rows:
        raise RuntimeError(f"{read} rows of {rows} were read")
    return float(rows * 1000 / sum(each.durationMs["triggerExecution"] for each in progress))
