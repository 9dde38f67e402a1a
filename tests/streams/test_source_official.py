"""Spark's official Kafka connector, unchanged, with a Millstream broker; both connectors see the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench.spark import connector
from pyspark.sql import SparkSession

from millstream.client.producer_blocking import Producer
from millstream.testing import Broker
from tests.streams.reading import QUERY_S, frame, numbers_of, options_for, send

Name = Callable[[str], str]

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def official(spark: SparkSession) -> SparkSession:
    """The session, able to `format("kafka")`."""
    for jar in connector.jars():
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def topic(broker: Broker, new_name: Name) -> str:
    """A topic of two partitions."""
    return broker.create_topic(new_name("official"), 2)


def test_it_reads_what_our_source_reads(
    official: SparkSession, broker: Broker, producer: Producer, topic: str
) -> None:
    send(producer, topic, range(5), key=b"k", headers=[("h", b"x")], timestamp_ms=1_700_000_000_123)
    send(producer, topic, range(5, 9), partition=1)
    producer.send(topic, None, partition=1)
    producer.flush()
    options = options_for(broker, topic, includeHeaders="true", minPartitions=3)
    theirs = official.read.format("kafka").options(**options).load()
    ours = frame(official, options)
    assert ours.dtypes == theirs.dtypes
    assert ours.orderBy("partition", "offset").collect() == theirs.orderBy("partition", "offset").collect()


def test_it_writes_and_streams(
    official: SparkSession, broker: Broker, topic: str, new_name: Name, tmp_path: Path
) -> None:
    copy = broker.create_topic(new_name("copy"), 2)
    numbers = official.range(200).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    target = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    numbers.write.format("kafka").options(**target).save()
    assert numbers_of(frame(official, options_for(broker, topic))) == list(range(200))

    query = (
        official.readStream.format("kafka")
        .options(**options_for(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=150))
        .load()
        .writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": copy})
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(2 * QUERY_S), "the query takes too long"
    assert numbers_of(frame(official, options_for(broker, copy))) == list(range(200))
