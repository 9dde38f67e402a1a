"""Value formats: what is written, and what is read of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millstream.streams import StreamsError
from millstream.streams.outputs import output
from millstream.streams.rows import parsed, with_keyless_deletions
from millstream.streams.values import Json

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_times_keep_their_microseconds(spark: SparkSession) -> None:
    given = [("Oslo", MOMENT, MOMENT.replace(tzinfo=None))]
    frame = spark.createDataFrame(given, "city STRING, at TIMESTAMP, there TIMESTAMP_NTZ")
    made = output("out", frame, key=["city", "at"], value=None, mode=None).records
    form = Json(frame.schema)
    (read,) = made.select(form.read(F.col("value")).alias("of_value"), F.col("key").cast("string")).collect()
    assert read["of_value"]["error"] is None
    assert read["of_value"]["row"] == frame.collect()[0]
    assert read["key"] == '{"city":"Oslo","at":"2026-01-02T03:04:05.678901Z"}'


def test_a_format_for_times_that_is_given_counts(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(MOMENT,)], "at TIMESTAMP")
    short = Json("at TIMESTAMP", timestampFormat="yyyy-MM-dd'T'HH:mm")
    (record,) = output("out", frame, key=None, value=short, mode=None).records.collect()
    assert bytes(record["value"]) == b'{"at":"2026-01-02T03:04"}'


def read(spark: SparkSession, *values: bytes | None) -> list[tuple[object, str | None]]:
    """City and error of each value, read as JSON."""
    frame = spark.createDataFrame([(value,) for value in values], "value BINARY")
    found = frame.select(Json("city STRING, cents INT").read(F.col("value")).alias("read")).collect()
    return [(row["read"]["row"]["city"], row["read"]["error"]) for row in found]


def test_a_value_is_one_object_and_nothing_else(spark: SparkSession) -> None:
    error = "not JSON of struct<city:string,cents:int>"
    bad = [
        b'{"city":"A"}{"city":"B"}',
        b'{"city":"A"},{"city":"B"}',
        b'{"city":"A"} garbage',
        b'{"city":"A"}\x00',
        b'{"city":"A"}}',
        b'{"city":"A"},',
        b'{"city":"A"}]',
        b'{"city":"A"}],"x":[1',
        b'{"city":"A"}],"x":[{"end":true}',
        b'{"city":"A"}],"rows":[{"city":"B"}',
        b'{"city":"A"}],"end":true}{"rows":[1',
        b'{"city":"A"},{"end":true}],"x":[1',
        b'{"city":"A"}]}{"x":[1',
        b'{"city":"A"}],"x":["',
        b'{"city":"A"},{"x":[1]},',
        b'],"x":[{"city":"A"}',
        b'{"city":"A"',
        b'{"city":"A","cents":"x"}',
        b'[{"city":"A"}]',
        b"[]",
        b"null",
        b"7",
        b"",
        b" ",
    ]
    assert [why for _, why in read(spark, *bad)] == [error] * len(bad)
    good = [b'{"city":"A"}', b' {"city":"A"}\r\n', b'{"cents":1,"x":{"y":[]},"city":"A"}']
    assert read(spark, *good) == [("A", None)] * 3
    odd = [b'{"city":"a}]b"}', '{"city":"\u00e6\U0001f600"}'.encode(), b"{}", None]
    assert read(spark, *odd) == [("a}]b", None), ("\u00e6\U0001f600", None), (None, None), (None, None)]
    assert [why for _, why in read(spark, b'{"city":"\xff"}')] == ["not text in UTF-8"]


def test_a_plain_value_is_text_or_bytes(spark: SparkSession) -> None:
    numbers = spark.range(1).selectExpr("CAST(id AS INT) AS value")
    for kind in ("string", "bytes"):
        with pytest.raises(StreamsError, match=r'the column value is int: cast it with .withColumn\("value"'):
            output("out", numbers, key=None, value=kind, mode=None)
    nothing = spark.range(1).selectExpr("NULL AS value")
    assert output("out", nothing, key=None, value="string", mode=None).records.collect()[0]["value"] is None


OBJECT = b'{"id": {"a": 1}}'


def test_a_tables_key_is_text(spark: SparkSession) -> None:
    """Where it is the record's key: one that is no text must not become that of another row."""
    given = [(b"a", b"{}"), (b"\x80", b"{}"), (b"\x80", None), (b"a", None), (None, None), (OBJECT, None)]
    records = spark.createDataFrame(given, "key BINARY, value BINARY")

    def errors(value: str) -> list[str | None]:
        form = Json(value)
        found = with_keyless_deletions(parsed(records, form), ["id"], form.schema)
        return [row["error"] for row in found.select("read.error").collect()]

    no_text, no_key = "one with a key that is not text in UTF-8", "a deletion, and its key has no id"
    assert errors("name STRING") == [None, no_text, no_text, None, no_key, None]
    assert errors("id STRING") == [None, None, no_key, None, no_key, None]
    assert errors("id STRUCT<a: INT>") == [None, None, no_key, no_key, no_key, None]
