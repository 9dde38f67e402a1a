"""The columns of the source."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from millstream.testing import Broker
from tests.streams.reading import line_of, options_for


def test_the_source_is_found_without_registration(spark: SparkSession, broker: Broker) -> None:
    frame = (
        spark.read.format("millstream")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", "t")
        .load()
    )
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_schema_of_ones_own_is_told_at_once(spark: SparkSession, broker: Broker, is_stream: bool) -> None:
    topic = broker.create_topic(f"schema-{is_stream}", 1)

    def rows(schema: str) -> None:
        start = spark.readStream if is_stream else spark.read
        given = start.format("millstream").schema(schema).options(**options_for(broker, topic)).load()
        if given.isStreaming:
            query = given.writeStream.format("noop").trigger(availableNow=True).start()
            query.awaitTermination(60)
        else:
            given.collect()

    with pytest.raises(Exception, match="the columns of a topic are struct<key:binary") as raised:
        rows("value STRING, partition INT")
    assert "leave .schema() out, choose columns with" in line_of(raised.value)
    rows(
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "timestampType INT"
    )
