"""Value formats: what is written, and what is read of it."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millstream.streams.outputs import output
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
