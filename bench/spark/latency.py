"""From a record to what a stream makes of it: a query copies a topic, micro-batch after micro-batch.

A record is sent every so often with the time in it, and the output is read by a consumer, read committed:
what is measured is when a record of the output may be used. Millstream's output is exactly once, the
official connector's at least once.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.spark.reading import FORMATS
from bench.spark.session import spark_session
from bench.spark.table import head, lines
from bench.subjects import Broker
from bench.workload import topic_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BARS = {"p50 in µs": 1.5}
GAP_SECONDS = 0.05
WARM_UP = 100
DEADLINE_SECONDS = 60.0


def p50_us(spark: SparkSession, broker: Broker, records: int, column: str) -> float:
    """The median over `records`, once the query runs evenly."""
    from millstream import Consumer, Producer

    server = {"kafka.bootstrap.servers": broker.bootstrap}
    with (
        topic_on(broker, 1) as source,
        topic_on(broker, 1) as output,
        tempfile.TemporaryDirectory() as checkpoint,
        Producer(broker.bootstrap, linger_ms=0) as producer,
        Consumer(broker.bootstrap, isolation_level="read_committed", offset_reset="earliest") as consumer,
    ):
        consumer.assign([(output, 0)])
        query = (
            spark.readStream.format(FORMATS[column])
            .options(**server, subscribe=source, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format(FORMATS[column])
            .options(**server, topic=output, checkpointLocation=checkpoint)
            .start()
        )
        try:
            found: list[int] = []
            next_at = time.perf_counter()
            give_up_at = next_at + DEADLINE_SECONDS + (records + WARM_UP) * GAP_SECONDS
            sent = 0
            while len(found) < records + WARM_UP:
                now = time.perf_counter()
                if now > give_up_at or not query.isActive:
                    raise RuntimeError(
                        f"{column}: {len(found)} records of {sent} came out: {query.exception()}"
                    )
                if now >= next_at and sent < records + WARM_UP:
                    producer.send(source, b"%d" % time.perf_counter_ns())
                    sent += 1
                    next_at += GAP_SECONDS
                came = consumer.poll(timeout=max(0.001, next_at - time.perf_counter()))
                found += [time.perf_counter_ns() - int(record.value or b"0") for record in came]
        finally:
            query.stop()
    return median(found[WARM_UP:]) / 1000


def latency(broker: Broker, folder: Path, records: int, rounds: int) -> None:
    """The median of each connector."""
    head(FORMATS, rounds)
    with spark_session(folder) as spark:
        measures = {"p50 in µs": partial(p50_us, spark, broker, records)}
        lines(measures, FORMATS, BARS, rounds, is_higher_better=False)
