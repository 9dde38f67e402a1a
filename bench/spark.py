"""Spark reading topics through Millstream's source and through the official connector, side by side.

    python -m bench.spark read                       a broker of each kind of row size, both connectors
    python -m bench.spark read --broker apache-kafka --rows 2000000 --rounds 5
    python -m bench.spark memory --rows 20000000     the most memory that a Python worker has

Both connectors read the same topic of the same broker in one Spark session, all columns into Spark's `noop`
sink, turn by turn; the first round is not counted. The figures are medians, in rows a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from bench.batches import sample_values
from bench.spark_connector import jars
from bench.subjects import APACHE_KAFKA, MILLSTREAM, Broker, Subject
from bench.workload import topic_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = {"millstream": "millstream", "official": "kafka"}
PARTITIONS = 4
CHUNK_ROWS = 10_000
BAR_WORKER_MB = 300.0


@contextmanager
def spark_session(folder: Path, *, heap: str = "1g", cores: int = 2) -> Iterator[SparkSession]:
    """A local Spark with both connectors."""
    import sys

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
        .config("spark.local.dir", str(folder / "spark"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def fill(bootstrap: str, topic: str, rows: int, size: int) -> None:
    """So many rows with values of one size, and short keys, in all partitions."""
    import pyarrow as pa

    from millstream import Producer

    values = sample_values(size)
    table = pa.table(
        {
            "key": pa.array([b"%08d" % index for index in range(CHUNK_ROWS)], pa.binary()),
            "value": pa.array([values[index % len(values)] for index in range(CHUNK_ROWS)], pa.binary()),
        }
    )
    with Producer(bootstrap) as producer:
        for _ in range(rows // CHUNK_ROWS):
            producer.send_arrow(topic, table)


def batch_read(spark: SparkSession, name: str, options: dict[str, str], rows: int) -> float:
    """Rows a second of one batch query."""
    started = time.perf_counter()
    frame = spark.read.format(name).options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - started)


def stream_read(spark: SparkSession, name: str, options: dict[str, str], rows: int) -> float:
    """Rows a second of the micro-batches of one AvailableNow query, planning and logs included."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format(name)
            .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=str(rows // 4))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress: list[Any] = [each for each in query.recentProgress if each.numInputRows]
    read = sum(each.numInputRows for each in progress)
    if read != rows:
        raise RuntimeError(f"{name} read {read} rows of {rows}")
    return float(rows * 1000 / sum(each.durationMs["triggerExecution"] for each in progress))


def read(broker: Broker, folder: Path, rows: int, sizes: list[int], rounds: int) -> None:
    """The table of read figures, a line for each way of reading and row size."""
    print(f"load average {os.getloadavg()[0]:.1f}, {PARTITIONS} partitions, local[2], {rounds} rounds")
    print(f"{'':24}{'millstream':>14}{'official':>14}{'ratio':>8}")
    with spark_session(folder) as spark:
        for size in sizes:
            count = rows if size <= 100 else rows // 4
            with topic_on(broker, PARTITIONS) as topic:
                fill(broker.bootstrap, topic, count, size)
                options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
                found: dict[tuple[str, str], list[float]] = defaultdict(list)
                for turn in range(rounds + 1):
                    for way, measure in (("batch read", batch_read), ("stream read", stream_read)):
                        for label, name in FORMATS.items():
                            figure = measure(spark, name, options, count)
                            if turn:
                                found[way, label].append(figure)
            for way in ("batch read", "stream read"):
                ours, theirs = (median(found[way, label]) for label in FORMATS)
                print(f"{way + f', {size} B':24}{ours:14,.0f}{theirs:14,.0f}{ours / theirs:8.2f}", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


def memory(broker: Broker, folder: Path, rows: int) -> None:
    """The most memory a Python worker has while a topic is read in one query."""
    with topic_on(broker, PARTITIONS) as topic:
        fill(broker.bootstrap, topic, rows, 100)
        with spark_session(folder) as spark, _watching() as most:
            options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
            figure = batch_read(spark, "millstream", options, rows)
    verdict = "holds" if most[0] <= BAR_WORKER_MB else "missed"
    print(f"{rows:,} rows at {figure:,.0f} rows/s; the largest Python worker had {most[0]:.0f} MB resident")
    print(f"bar: at most {BAR_WORKER_MB:.0f} MB: {verdict}")


@contextmanager
def _watching() -> Iterator[list[float]]:
    """The most memory, in MB, that any Python worker of Spark had in the block."""
    most, is_over = [0.0], threading.Event()

    def look() -> None:
        while not is_over.wait(0.1):
            for child in psutil.Process().children(recursive=True):
                try:
                    if "pyspark" in " ".join(child.cmdline()) and "java" not in child.name():
                        most[0] = max(most[0], child.memory_info().rss / 1e6)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["read", "memory"])
    parser.add_argument("--broker", choices=[MILLSTREAM, APACHE_KAFKA], default=MILLSTREAM)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Subject(arguments.broker, arguments.broker, folder).make()
        broker.start()
        try:
            if arguments.what == "read":
                read(broker, folder, arguments.rows, arguments.sizes, arguments.rounds)
            else:
                memory(broker, folder, arguments.rows)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
