"""The columns of the source."""

from __future__ import annotations

from pyspark.sql import SparkSession

from millstream.testing import Broker


def test_the_source_is_found_without_registration(spark: SparkSession, broker: Broker) -> None:
    frame = (
        spark.read.format("millstream")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", "t")
        .load()
    )
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
