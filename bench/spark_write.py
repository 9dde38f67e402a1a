"""Spark writing topics through Millstream's sink and through the official connector, side by side.

    python -m bench.spark_write                          both connectors, 100 B and 1 KB rows
    python -m bench.spark_write --broker apache-kafka --rows 2000000 --rounds 5

Rows are made by Spark itself, so that what is measured is the sink: in batch from `range`, as a stream from
the `rate-micro-batch` source, in four micro-batches. Millstream's streams are exactly once, those of the
official connector at least once; a column shows Millstream's at-least-once too. The first round is not
counted; figures are medians, in rows a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from bench.spark import PARTITIONS, spark_session
from bench.subjects import APACHE_KAFKA, MILLSTREAM, Broker, Subject
from bench.workload import topic_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINKS = {
    "millstream": ("millstream", {}),
    "at least once": ("millstream", {"guarantee": "at-least-once"}),
    "official": ("kafka", {}),
}
BATCHES = 4
BAR = 1.5


def rows_of(frame: DataFrame, number: str, size: int) -> DataFrame:
    """Rows with short keys and values of one size."""
    return frame.selectExpr(
        f"lpad(CAST({number} AS STRING), 8, '0') AS key",
        f"rpad(CAST({number} AS STRING), {size}, 'abcdefghijklmnopqrstuvwxyz') AS value",
    )


def batch_write(spark: SparkSession, sink: str, options: dict[str, str], rows: int, size: int) -> float:
    """Rows a second of one batch write."""
    name, more = SINKS[sink]
    frame = rows_of(spark.range(0, rows, 1, PARTITIONS), "id", size)
    started = perf_counter()
    frame.write.format(name).options(**options, **more).mode("append").save()
    return rows / (perf_counter() - started)


def stream_write(spark: SparkSession, sink: str, options: dict[str, str], rows: int, size: int) -> float:
    """Rows a second of the micro-batches of one query, planning and logs included, but for the first one."""
    name, more = SINKS[sink]
    with tempfile.TemporaryDirectory() as checkpoint:
        source = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows // BATCHES)
            .option("numPartitions", PARTITIONS)
            .load()
        )
        query = (
            rows_of(source, "value", size)
            .writeStream.format(name)
            .options(**options, **more)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            while len(query.recentProgress) <= BATCHES and not query.exception():
                query.awaitTermination(1)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise error
        progress = [each for each in query.recentProgress if each.numInputRows][1 : BATCHES + 1]
    written = sum(each.numInputRows for each in progress)
    return written / (sum(each.durationMs["triggerExecution"] for each in progress) / 1000)


def write(broker: Broker, folder: Path, rows: int, sizes: list[int], rounds: int) -> None:
    """The table of write figures, a line for each way of writing and row size."""
    print(f"load average {os.getloadavg()[0]:.1f}, {PARTITIONS} partitions, local[2], {rounds} rounds")
    print(f"{'':24}" + "".join(f"{sink:>15}" for sink in SINKS) + f"{'ratio':>8}")
    with spark_session(folder) as spark:
        for size in sizes:
            count = rows if size <= 100 else rows // 4
            found: dict[tuple[str, str], list[float]] = defaultdict(list)
            for turn in range(rounds + 1):
                for way, measure in (("batch write", batch_write), ("stream write", stream_write)):
                    for sink in SINKS:
                        with topic_on(broker, PARTITIONS) as topic:
                            options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
                            figure = measure(spark, sink, options, count, size)
                        if turn:
                            found[way, sink].append(figure)
            for way in ("batch write", "stream write"):
                figures = [median(found[way, sink]) for sink in SINKS]
                ratio = figures[0] / figures[-1]
                verdict = "" if ratio >= BAR else f"   below {BAR}"
                line = "".join(f"{figure:15,.0f}" for figure in figures)
                print(f"{way + f', {size} B':24}{line}{ratio:8.2f}{verdict}", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
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
            write(broker, folder, arguments.rows, arguments.sizes, arguments.rounds)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
