"""Avro values in and out."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import fastavro
import pytest
from pyspark.sql import SparkSession

from millstream.streams import App, Avro, StreamsError

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "city", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "lines", "type": {"type": "array", "items":
        {"type": "record", "name": "Line", "fields": [{"name": "kg", "type": "double"}]}}}
]}"""
ROW = {"id": 7, "city": None, "at": datetime(2026, 1, 1, tzinfo=UTC), "lines": [{"kg": 1.5}]}


def test_avro_values() -> None:
    def encoded(**changed: object) -> bytes:
        to = io.BytesIO()
        fastavro.schemaless_writer(to, fastavro.parse_schema(Avro(SCHEMA).avro), {**ROW, **changed})
        return to.getvalue()

    app = App("avro")

    @app.pipeline
    def copy(app: App) -> None:
        plain = app.stream("plain", value=Avro(SCHEMA), bad="bad")
        framed = app.stream("framed", value=Avro(SCHEMA, framed=True), bad="bad")
        app.to("json", plain.union(framed).select("id", "city", "lines"))
        app.to("avro", plain, value=Avro(SCHEMA))

    with app.test() as test:
        with test.together():
            test.pipe("plain", encoded(), b"\xff", encoded() + b"?")
            test.pipe("framed", b"\0\0\0\0\1" + encoded(id=8, city="Oslo"), b"\1\0\0\0\1" + encoded())
        assert sorted(test.rows("json"), key=str) == [
            {"id": 7, "city": None, "lines": [{"kg": 1.5}]},
            {"id": 8, "city": "Oslo", "lines": [{"kg": 1.5}]},
        ]
        assert [each.value for each in test.written("avro")] == [encoded()]
        bad = test.written("bad")
        longer, shorter, unframed = sorted(each.headers["dead-letter.error"] or b"" for each in bad)
        assert longer == b"not Avro of its schema (1 bytes too many)"
        assert shorter.startswith(b"not Avro of its schema (")
        assert unframed == b"not framed: it does not begin with a zero"
    with pytest.raises(StreamsError, match="an Avro value is a record"):
        Avro('"string"')
    with pytest.raises(StreamsError, match="only of null and one other"):
        Avro('{"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]}')
    with pytest.raises(StreamsError, match="the Avro schema cannot be used: JSONDecodeError"):
        Avro("nonsense")
    with pytest.raises(StreamsError, match="the Avro schema cannot be used: UnknownType: money"):
        Avro('{"type": "record", "name": "R", "fields": [{"name": "m", "type": "money"}]}')


def test_names_and_logical_types(spark: SparkSession) -> None:
    """Those without a column type are what they are made of; a declared type is told by its whole name."""
    fields = [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "when", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "one", "type": {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}},
        {"name": "more", "type": {"type": "array", "items": "org.shop.Part"}},
    ]
    form = Avro({"type": "record", "name": "Order", "namespace": "org.shop", "fields": fields})
    assert form.schema.simpleString() == (
        "struct<id:string,at:int,when:timestamp_ntz,one:struct<n:int>,more:array<struct<n:int>>>"
    )
    uuid = "12345678-1234-5678-1234-567812345678"
    given = spark.range(1).selectExpr(
        f"'{uuid}' AS id",
        "7 AS at",
        "TIMESTAMP_NTZ'2026-01-01 00:00:00' AS when",
        "named_struct('n', 1) AS one",
        "array(named_struct('n', 2)) AS more",
    )
    (row,) = (
        given.select(form.read(form.write(given)).alias("read")).select("read.row.*", "read.error").collect()
    )
    assert row.asDict(recursive=True) == {
        "id": uuid,
        "at": 7,
        "when": datetime(2026, 1, 1),
        "one": {"n": 1},
        "more": [{"n": 2}],
        "error": None,
    }
