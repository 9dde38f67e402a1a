"""What the verbs give, over rows that are all there: as a batch they apply in the order of timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.streams import StreamsError, deduplicate, join_table, join_tables, latest
from millstream.streams.changes import changes
from millstream.streams.outputs import by_topic, output

START = datetime(2026, 1, 1, tzinfo=UTC)
CITIES = "city STRING, people INT, _timestamp TIMESTAMP, _deleted BOOLEAN"
ORDERS = "id INT, city STRING, _timestamp TIMESTAMP"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def rows(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in frame.collect()), key=repr)


@pytest.fixture
def cities(spark: SparkSession) -> DataFrame:
    given = [
        ("Oslo", 5, at(10), False),
        ("Oslo", 6, at(20), False),
        ("Lima", 1, at(10), False),
        ("Lima", None, at(30), True),
        (None, 9, at(0), False),
    ]
    return spark.createDataFrame(given, CITIES)


def test_a_stream_meets_what_the_table_held_at_that_time(spark: SparkSession, cities: DataFrame) -> None:
    given = [
        (1, "Oslo", at(9)),
        (2, "Oslo", at(10)),  # a tie: the table comes first
        (3, "Oslo", at(25)),
        (4, "Lima", at(29)),
        (5, "Lima", at(30)),
        (6, "Pune", at(40)),
        (7, None, at(40)),
    ]
    orders = spark.createDataFrame(given, ORDERS)
    inner = join_table(orders, cities, on="city")
    assert inner.columns == ["id", "city", "_timestamp", "people"]
    assert rows(inner, "id", "people") == [(2, 5), (3, 6), (4, 1)]
    left = join_table(orders, cities, on="city", how="left")
    assert rows(left, "id", "people") == [(1, None), (2, 5), (3, 6), (4, 1), (5, None), (6, None), (7, None)]


def test_values_of_every_type_pass_unchanged(spark: SparkSession) -> None:
    types = (
        "k INT, t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, b BINARY, c DECIMAL(20,5), f DOUBLE, "
        "m MAP<STRING, INT>, a ARRAY<STRUCT<x: BIGINT>>, e STRING, _timestamp TIMESTAMP"
    )
    given = (
        1,
        at(0.123456),
        datetime(2026, 1, 1, 0, 0, 0, 123456),
        START.date(),
        bytearray(b"\x00\xff"),
        Decimal("1.10000"),
        0.1,
        {"a": None},
        [{"x": 2**60}],
        "",
        at(1),
    )
    stream = spark.createDataFrame([given], types)
    table = spark.createDataFrame([(1, "it", at(0))], "k BIGINT, name STRING, _timestamp TIMESTAMP")
    (joined,) = join_table(stream, table, on="k").collect()
    (plain,) = stream.collect()
    assert tuple(joined) == (*plain, "it")


def test_keys_that_are_no_text_stay_as_they_are(spark: SparkSession) -> None:
    """A record's key may be any bytes, and two of them that are no UTF-8 are not the same."""
    given = [(b"\x80", 1, at(0)), (b"\x81", 2, at(0)), ("ä".encode(), 3, at(0)), (None, 4, at(0))]
    frame = spark.createDataFrame(given, "_key BINARY, n INT, _timestamp TIMESTAMP")
    stream = frame.withColumn("_key", F.col("_key").cast("string"))
    table = stream.selectExpr("_key", "n AS m", "_timestamp")
    for found in (join_table(stream, table, on="_key", how="left"), latest(stream, key="_key")):
        keys = {row["n"]: row["k"] for row in found.selectExpr("n", "CAST(_key AS BINARY) AS k").collect()}
        assert {n: None if key is None else bytes(key) for n, key in keys.items()}.items() >= {
            n: key for key, n, _ in given[:3]
        }.items()
    joined = join_tables(stream, table.withColumnRenamed("m", "o"), on="_key")
    assert rows(joined.selectExpr("n", "o", "hex(_key) AS k"), "n", "o", "k") == [
        (1, 1, "80"),
        (2, 2, "81"),
        (3, 3, "C3A4"),
    ]


def test_tables_join_into_the_changes_of_a_table(spark: SparkSession, cities: DataFrame) -> None:
    given = [("Oslo", "NOK", at(15), False), ("Lima", "PEN", at(40), False), ("Oslo", "x", at(50), True)]
    money = spark.createDataFrame(given, CITIES.replace("people INT", "money STRING"))
    joined = join_tables(cities, money, on="city")
    assert rows(joined, "city", "_offset", "people", "money", "_timestamp", "_deleted") == [
        ("Oslo", 0, 5, "NOK", at(15).replace(tzinfo=None), False),
        ("Oslo", 1, 6, "NOK", at(20).replace(tzinfo=None), False),
        ("Oslo", 2, None, None, at(50).replace(tzinfo=None), True),
    ]
    outer = latest(join_tables(cities, money, on="city", how="outer"), key="city")
    assert rows(outer, "city", "people", "money") == [("Lima", None, "PEN"), ("Oslo", 6, None)]


def test_latest_is_by_time_and_then_by_place(spark: SparkSession, cities: DataFrame) -> None:
    assert rows(latest(cities, key="city"), "city", "people") == [("Oslo", 6)]
    given = [("a", 1, at(5), 0, 7), ("a", 2, at(5), 0, 8), ("a", 3, at(4), 0, 9)]
    placed = spark.createDataFrame(
        given, "k STRING, v INT, _timestamp TIMESTAMP, _partition INT, _offset BIGINT"
    )
    assert rows(latest(placed, key="k"), "k", "v") == [("a", 2)]


def test_duplicates_go(spark: SparkSession) -> None:
    given = [(1, "Oslo", at(0)), (2, "Oslo", at(5)), (3, "Oslo", at(60)), (4, "Lima", at(1))]
    orders = spark.createDataFrame(given, ORDERS)
    assert rows(deduplicate(orders, by="city"), "id") == [(1,), (4,)]
    assert rows(deduplicate(orders, by="city", within="10 seconds"), "id") == [(1,), (3,), (4,)]
    chain = spark.createDataFrame(
        [(n, "Oslo", at(8 * n)) for n in range(5)], ORDERS
    )  # remembered from the first
    assert rows(deduplicate(chain, by="city", within="10 seconds"), "id") == [(0,), (2,), (4,)]
    assert rows(deduplicate(orders.select("city"), by="city"), "city") == [("Lima",), ("Oslo",)]


def test_a_watermark_that_is_too_short_for_duplicates_is_said(spark: SparkSession) -> None:
    ticks = spark.readStream.format("rate").load().withColumnRenamed("timestamp", "_timestamp")
    late = ticks.withWatermark("_timestamp", "10 minutes")
    assert deduplicate(late, by="value", within="600 seconds").isStreaming
    with pytest.raises(StreamsError, match=r"at least that much, and this frame has one of 600 seconds"):
        deduplicate(late, by="value", within="1 hour")
    with pytest.raises(StreamsError, match="deduplicate needs a column when"):
        deduplicate(ticks, by="value", within="1 hour", time="when")


def test_outputs_to_one_topic_are_one_frame(spark: SparkSession) -> None:
    made = spark.range(1).select("id")
    both = [
        output("out", frame, key=None, value=None, mode=None)
        for frame in (made, made.selectExpr("7L AS id", "'b' AS name"))
    ]
    assert rows(by_topic(both)["out"], "id", "name") == [(0, None), (7, "b")]


def test_what_cannot_be_joined_is_said(spark: SparkSession, cities: DataFrame) -> None:
    orders = spark.createDataFrame([(1, "Oslo", at(0))], ORDERS)
    with pytest.raises(StreamsError, match="join_table needs a column town"):
        join_table(orders, cities, on="town")
    with pytest.raises(StreamsError, match="both sides have a column people; rename one"):
        join_table(orders.selectExpr("*", "1 AS people"), cities, on="city")
    with pytest.raises(StreamsError, match="it is int on one side and string on the other; cast one"):
        join_table(orders.selectExpr("id AS city", "_timestamp"), cities, on="city")
    with pytest.raises(StreamsError, match="join_table has no how='outer': it is one of inner, left"):
        join_table(orders, cities, on="city", how="outer")  # type: ignore[arg-type]
    with pytest.raises(StreamsError, match="join_tables has no how='full'"):
        join_tables(cities, cities, on="city", how="full")  # type: ignore[arg-type]
    with pytest.raises(StreamsError, match="needs a column _timestamp"):
        latest(cities.drop("_timestamp"), key="city")


def test_names_with_dots_are_names(spark: SparkSession) -> None:
    columns = "`host.name` STRING, `geo.city` STRING, ms INT, _timestamp TIMESTAMP"
    frame = spark.createDataFrame([("a", "Oslo", 7, at(0))], columns)
    made = output("out", frame, key=["host.name", "geo.city"], value=None, mode=None)
    (record,) = made.records.collect()
    assert bytes(record["key"]) == b'{"host.name":"a","geo.city":"Oslo"}'
    assert bytes(record["value"]) == b'{"host.name":"a","geo.city":"Oslo","ms":7}'
    assert changes(frame, ["host.name"], 0, "latest").collect()[0]["k"] == '{"host.name":"a"}'
    assert deduplicate(frame, by="host.name").count() == 1
