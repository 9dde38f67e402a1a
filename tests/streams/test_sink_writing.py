"""DataFrames written to topics by a real Spark, in batch and as streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream import Admin, Producer
from millstream.client.offsets import READ_COMMITTED
from millstream.protocol.batch import murmur2
from millstream.protocol.compression import Codec
from millstream.streams.sink_names import PREFIX
from millstream.testing import Broker
from tests.client.logs import batches_in, records_in, values_in
from tests.conftest import Name

pytestmark = pytest.mark.java


def committed(broker: Broker, topic: str, partitions: int = 2) -> list[bytes]:
    """All rows of a topic; it ends only if no transaction is open."""
    found = values_in(broker.bootstrap, topic, partitions, isolation_level=READ_COMMITTED)
    return sorted(value for part in found for value in part if value is not None)


def save(frame: DataFrame, broker: Broker, **options: str) -> None:
    writer = frame.write.format("millstream").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**options).mode("append").save()


def decision_topics(broker: Broker) -> set[str]:
    with Admin(broker.bootstrap) as admin:
        return {name for name in admin.list_topics() if PREFIX in name}


def test_all_columns(spark: SparkSession, broker: Broker, new_name: Name) -> None:
    first, second = new_name("a"), new_name("b")
    frame = spark.sql(
        f"""SELECT IF(id % 2 = 0, '{first}', '{second}') AS topic,
                   IF(id % 5 = 0, null, CAST(CAST(id AS STRING) AS BINARY)) AS key,
                   IF(id = 3, null, CONCAT('v', CAST(id AS STRING))) AS value,
                   IF(id % 3 = 0, CAST(id % 2 AS INT), null) AS partition,
                   IF(id % 7 = 0, null, ARRAY(STRUCT(
                       'h' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value))) AS headers,
                   id AS offset
            FROM RANGE(0, 200, 1, 3)"""
    )
    before = decision_topics(broker)
    save(frame, broker)
    assert decision_topics(broker) == before, "a batch write leaves nothing behind"
    seen = set()
    for rest, topic in enumerate((first, second)):
        parts = records_in(broker.bootstrap, topic, 2, isolation_level=READ_COMMITTED)
        for index, part in enumerate(parts):
            for record in part:
                number = 3 if record.value is None else int(record.value[1:])
                seen.add(number)
                assert number % 2 == rest
                assert record.key == (None if number % 5 == 0 else b"%d" % number)
                assert record.headers == (() if number % 7 == 0 else (("h", b"%d" % number),))
                if number % 3 == 0:
                    assert index == number % 2
                elif record.key is not None:
                    assert index == (murmur2(record.key) & 0x7FFFFFFF) % 2
    assert seen == set(range(200))


def test_the_option_overrides_the_column(spark: SparkSession, broker: Broker, new_name: Name) -> None:
    topic = new_name("out")
    save(spark.sql("SELECT 'elsewhere' AS topic, 'x' AS value"), broker, topic=topic)
    assert committed(broker, topic) == [b"x"]


def test_a_batch_write_that_fails_writes_nothing(spark: SparkSession, broker: Broker, new_name: Name) -> None:
    topic = new_name("out")
    frame = spark.range(0, 30_000, 1, 2).selectExpr(
        "CAST(IF(id = 29999, raise_error('no'), id) AS STRING) AS value"
    )
    with pytest.raises(PySparkException, match="no"):
        save(frame, broker, topic=topic)
    assert committed(broker, topic) == []
    save(frame.limit(10), broker, topic=topic)
    assert len(committed(broker, topic)) == 10


def test_at_least_once_needs_no_transaction(spark: SparkSession, broker: Broker, new_name: Name) -> None:
    topic = new_name("out")
    save(
        spark.range(1000).selectExpr("CAST(id AS STRING) AS value"),
        broker,
        topic=topic,
        guarantee="at-least-once",
        **{"kafka.compression.type": "lz4"},
    )
    assert len(committed(broker, topic)) == 1000
    headers = [batch.header for batch in batches_in(broker.bootstrap, topic, 2)]
    assert not any(header.is_transactional for header in headers)
    assert {header.codec for header in headers} == {Codec.LZ4}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession, broker: Broker, new_name: Name, tmp_path: Path, guarantee: str
) -> None:
    source, topic = new_name("in"), new_name("out")
    before = decision_topics(broker)
    for start in (0, 500):
        with Producer(broker.bootstrap) as producer:
            producer.send_batch(source, [b"%d" % number for number in range(start, start + 500)]).result(30)
        frame = (
            spark.readStream.format("millstream")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "300")
            .load()
        )
        query = (
            frame.select("key", "value")
            .writeStream.format("millstream")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", topic)
            .option("guarantee", guarantee)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)
        assert committed(broker, topic) == sorted(b"%d" % number for number in range(start + 500))
    assert len(decision_topics(broker) - before) == (guarantee == "exactly-once")


def write_stream(frame: DataFrame, options: dict[str, str]) -> DataStreamWriter:
    return frame.writeStream.format("millstream").options(**options)


def write_for_each_batch(frame: DataFrame, options: dict[str, str]) -> DataStreamWriter:
    def write(batch: DataFrame, _: int) -> None:
        named = {**options, "outputName": "numbers"}
        batch.write.format("millstream").options(**named).mode("append").save()

    return frame.writeStream.outputMode("update").foreachBatch(write)


@pytest.mark.parametrize("write", [write_stream, write_for_each_batch])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_batch_that_comes_again_is_recognised(
    spark: SparkSession,
    broker: Broker,
    new_name: Name,
    tmp_path: Path,
    guarantee: str,
    write: Callable[[DataFrame, dict[str, str]], DataStreamWriter],
) -> None:
    """Spark forgets that the batch was committed, as if the driver had died before it wrote that down."""
    source, topic = new_name("in"), new_name("out")
    numbers = [b"%d" % number for number in range(100)]
    with Producer(broker.bootstrap) as producer:
        producer.send_batch(source, numbers).result(30)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "guarantee": guarantee}
    for turn in range(2):
        frame = (
            spark.readStream.format("millstream")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value")
        )
        writer = write(frame, options).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(90)
        if turn == 0:
            assert committed(broker, topic) == sorted(numbers)
            for path in ("0", ".0.crc"):
                (tmp_path / "commits" / path).unlink()
    is_once = guarantee == "exactly-once"
    assert committed(broker, topic) == sorted(numbers if is_once else numbers * 2)


def test_a_name_of_an_output_is_for_foreach_batch(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="leave outputName out"):
        save(spark.sql("SELECT 'x' AS value"), broker, topic="out", outputName="counts")


def test_a_topic_that_nobody_creates(spark: SparkSession, new_name: Name) -> None:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        with pytest.raises(PySparkException) as raised:
            save(spark.sql("SELECT 'x' AS value"), broker, topic="orders")
        assert "topic orders does not exist and brokers do not create it" in str(raised.value)


def test_a_row_without_a_topic(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="a row has no topic: fill the column topic"):
        save(spark.sql("SELECT CAST(null AS STRING) AS topic, 'x' AS value"), broker)


def test_bad_options_show_before_anything_is_written(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="no topic is named: add"):
        save(spark.sql("SELECT 'x' AS value"), broker)
