"""Avro values in and out."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import fastavro
import pytest

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
        framed = app.stream("framed", value=Avro(SCHEMA, framed=True))
        app.to("json", plain.union(framed).select("id", "city", "lines"))
        app.to("avro", plain, value=Avro(SCHEMA))

    with app.test() as test:
        with test.together():
            test.pipe("plain", encoded(), b"\xff")
            test.pipe("framed", b"\0\0\0\0\1" + encoded(id=8, city="Oslo"))
        assert sorted(test.rows("json"), key=str) == [
            {"id": 7, "city": None, "lines": [{"kg": 1.5}]},
            {"id": 8, "city": "Oslo", "lines": [{"kg": 1.5}]},
        ]
        assert [each.value for each in test.written("avro")] == [encoded()]
        (bad,) = test.written("bad")
        assert (bad.headers["dead-letter.error"] or b"").startswith(b"not Avro of its schema")
    with pytest.raises(StreamsError, match="an Avro value is a record"):
        Avro('"string"')
    with pytest.raises(StreamsError, match="only of null and one other"):
        Avro('{"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]}')
