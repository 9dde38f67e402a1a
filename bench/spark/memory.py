"""The memory of Spark's Python workers while a large topic is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.spark.reading import batch_read
from bench.spark.session import PARTITIONS, fill, spark_session
from bench.subjects import Broker
from bench.workload import topic_on

BAR_WORKER_MB = 300.0


def memory(broker: Broker, folder: Path, rows: int) -> None:
    """The most memory a Python worker has while a topic is read in one query, with a heap of 1 GB."""
    with topic_on(broker, PARTITIONS) as topic:
        fill(broker.bootstrap, topic, rows, 100)
        with spark_session(folder) as spark, _watching() as most:
            options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
            figure = batch_read(spark, options, rows, "millstream")
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
