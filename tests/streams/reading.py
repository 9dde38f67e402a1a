"""What the tests of the source share: records in topics, queries in few words, errors as people see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.client.producer_blocking import Producer
from millstream.streams.reading.batch import BatchReader
from millstream.streams.reading.stream import StreamReader
from millstream.testing import Broker

QUERY_S = 60


def send(producer: Producer, topic: str, numbers: Iterable[int], partition: int = 0, **more: Any) -> None:
    """Records whose values are numbers; they are written when this returns."""
    for number in numbers:
        producer.send(topic, b"%d" % number, partition=partition, **more)
    producer.flush()


def options_for(broker: Broker, topic: str = "", /, **options: object) -> dict[str, str]:
    """Options by their names; a dot is written as two underscores."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, **({"subscribe": topic} if topic else {})}
    return given | {name.replace("__", "."): str(value) for name, value in options.items()}


def frame(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("millstream").options(**options).load()


def stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("millstream").options(**options).load()


def numbers_of(rows: DataFrame) -> list[int]:
    """The values as numbers, in order."""
    return sorted(int(row[0]) for row in rows.selectExpr("CAST(value AS STRING)").collect())


def drain(spark: SparkSession, options: Mapping[str, str], checkpoint: Path, out: Path) -> StreamingQuery:
    """Read what there is now into files; a query that can be started again."""
    query = started(spark, options, checkpoint, out, availableNow=True)
    assert query.awaitTermination(QUERY_S), "the query takes too long"
    return query


def started(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, out: Path, **trigger: Any
) -> StreamingQuery:
    writer = (
        stream(spark, options)
        .selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(out))
    )
    return (writer.trigger(**trigger) if trigger else writer).start()


def written(spark: SparkSession, out: Path) -> list[int]:
    return numbers_of(spark.read.schema("value STRING").parquet(str(out)))


def read_all(reader: BatchReader | StreamReader, slices: Iterable[Any]) -> list[dict[str, Any]]:
    """What tasks would read, row by row, without Spark."""
    return [row for piece in slices for batch in reader.read(piece) for row in batch.to_pylist()]


def values_of(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    return [int(row["value"]) for row in rows]


def line_of(error: BaseException) -> str:
    """The line of Millstream's own error in what Spark made of it."""
    found = re.findall(r"^\s*(?:millstream[\w.]*\.)(\w+: .*)$", str(error), re.MULTILINE)
    assert found, f"no error of Millstream's in: {error}"
    return str(found[-1])
