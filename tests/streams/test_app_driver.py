"""Apps on the test driver: real streaming queries, with state and watermarks, and no broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millstream.streams import App, StreamsError, deduplicate, join_table, join_tables, latest

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

ORDER = "id INT, city STRING, cents INT"
CITY = "city STRING, people INT"


def ids(found: list[Any]) -> list[tuple[Any, Any]]:
    return sorted((row["id"], row["people"]) for row in found)


def test_a_join_a_sum_and_dead_letters_in_one_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "é 100%20"  # folders for what is temporary have any name
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    app = App("driver-join")

    @app.pipeline
    def shop(app: App) -> None:
        orders = app.stream("orders", value=ORDER, bad="orders.dead")
        cities = app.table("cities", key="city", value=CITY)
        app.to("sold", join_table(orders, cities, on="city", how="left"), key="id")
        app.to("sums", orders.groupBy("city").agg(F.sum("cents").alias("cents")), key="city")

    with app.test() as test:
        with test.together():  # within a batch, the order is that of the timestamps
            test.pipe("orders", {"id": 1, "city": "Oslo", "cents": 5}, at="2026-01-01T00:00:05")
            test.pipe("cities", {"city": "Oslo", "people": 9}, key="city", at="2026-01-01T00:00:05")
            early = {"id": 2, "city": "Oslo", "cents": 6}
            test.pipe("orders", early, "no JSON", at="2026-01-01T00:00:04", headers={"h": b"v"})
        assert ids(test.rows("sold")) == [(1, 9), (2, None)]
        assert test.rows("sums") == [{"city": "Oslo", "cents": 11}]
        (dead,) = test.written("orders.dead")
        assert (dead.value, dead.headers["h"]) == (b"no JSON", b"v")
        assert dead.headers["dead-letter.error"] == b"not JSON of struct<id:int,city:string,cents:int>"
        assert dead.headers["dead-letter.offset"] == b"2"

        test.pipe("cities", {"city": "Oslo", "people": 1}, key="city", at="2025-01-01")  # older: passed over
        test.restart()
        test.pipe("orders", {"id": 3, "city": "Oslo", "cents": 1})
        (sold,) = test.written("sold")
        assert (sold.key, sold.row) == (b"3", {"id": 3, "city": "Oslo", "cents": 1, "people": 9})
        test.pipe("cities", None, key="Oslo", at="2027-01-01")
        test.pipe("orders", {"id": 4, "city": "Oslo", "cents": 1})
        assert ids(test.rows("sold")) == [(4, None)]
        assert test.rows("sums") == [{"city": "Oslo", "cents": 12}, {"city": "Oslo", "cents": 13}]
        with pytest.raises(StreamsError, match="does not read a topic ordres; it reads orders, cities"):
            test.pipe("ordres", {})


def test_windows_close_by_the_watermark() -> None:
    app = App("driver-windows")

    @app.pipeline
    def per_minute(app: App) -> None:
        orders = app.stream("orders", value="at TIMESTAMP, cents INT", time="at", late="1 minute")
        sums = orders.groupBy(F.window("at", "1 minute")).agg(F.sum("cents").alias("cents"))
        app.to("minutes", sums.selectExpr("window.start AS minute", "cents"), key="minute")

    with app.test() as test:
        test.pipe("orders", {"at": "2026-01-01T00:00:10Z", "cents": 1})
        test.pipe("orders", {"at": "2026-01-01T00:01:50Z", "cents": 2})  # the watermark is 00:00:50
        test.pipe("orders", {"at": "2026-01-01T00:00:55Z", "cents": 4})  # out of order, in time
        assert test.rows("minutes") == []
        test.pipe("orders", {"at": "2026-01-01T00:02:30Z", "cents": 8})  # 00:01:30: the first window closes
        test.pipe("orders", {"at": "2026-01-01T00:00:59Z", "cents": 16})  # too late
        assert test.rows("minutes") == [{"minute": "2026-01-01T00:00:00.000000Z", "cents": 5}]
        assert test.watermark is not None
        assert test.watermark.isoformat() == "2026-01-01T00:01:30+00:00"


def test_tables_and_duplicates_as_streams() -> None:
    app = App("driver-tables")

    @app.pipeline
    def tables(app: App) -> None:
        cities = app.table("cities", key="city", value=CITY)
        money = app.table("money", key="city", value="money STRING")
        app.to("both", latest(join_tables(cities, money, on="city"), key="city"), key="city")
        seen = app.stream(re.compile("SEEN-.*", re.IGNORECASE), value="string")
        app.to("once", deduplicate(seen, by="value", within="1 hour"))

    with app.test() as test:
        test.pipe("cities", {"city": "Oslo", "people": 9}, key="city")
        with test.together():
            test.pipe("money", {"money": "NOK"}, key="Oslo")
            test.pipe("seen-1", "a", "b", "a")
            test.pipe("seen-2", "b", "c", key="k")
            test.pipe("seen-2", {"no": None}, key="no")
        with test.together():
            test.pipe("seen-1", "a", "d")
            test.pipe("cities", None, key="Oslo")
        (joined, gone) = test.written("both")
        assert (joined.key, joined.row) == (b"Oslo", {"city": "Oslo", "people": 9, "money": "NOK"})
        assert (gone.key, gone.value) == (b"Oslo", None)
        once = {str(each.row): each.key for each in test.written("once")}
        assert once == {"a": None, "b": None, "c": b"k", "d": None, "{'no': None}": None}


def test_a_table_whose_column_has_another_type_now() -> None:
    """What it holds becomes of that type, or is said not to: it is no null."""
    app, kinds = App("driver-types"), iter(["INT", "STRING", "INT"])

    @app.pipeline
    def sold(app: App) -> None:
        cities = app.table("cities", key="city", value=f"city STRING, people {next(kinds)}")
        app.to("sold", join_table(app.stream("orders", value="id INT, city STRING"), cities, on="city"))

    with app.test() as test:
        test.pipe("cities", {"city": "Oslo", "people": 9}, key="city")
        test.restart()
        test.pipe("orders", {"id": 1, "city": "Oslo"})
        assert test.rows("sold") == [{"id": 1, "city": "Oslo", "people": "9"}]
        test.pipe("cities", {"city": "Oslo", "people": "many"}, key="city")
        test.restart()
        test.pipe("orders", {"id": 2, "city": "Oslo"})
        with pytest.raises(StreamsError, match=r'other types now, \{.*"people":"many".*: reset the app, or'):
            test.rows("sold")


def test_deletions_find_their_row_or_are_bad_records() -> None:
    app = App("driver-deletions")

    @app.pipeline
    def tables(app: App) -> None:
        names = app.table("names", key="id", value="id INT, name STRING", bad="names.bad")
        app.to("kept", latest(names, key="id"), key="id")
        pairs = app.table("pairs", key=["a", "b"], value="a INT, b TIMESTAMP, c INT", bad="pairs.bad")
        app.to("pairs.kept", latest(pairs, key=["a", "b"]), key=["a", "b"])

    with app.test() as test:
        test.pipe("names", {"id": 1, "name": "x"}, {"id": 2, "name": "y"}, {"id": 3, "name": "z"}, key="id")
        with test.together():
            for key in ("1", '{"id":2}', '{"no":3}', "three", None):
                test.pipe("names", None, key=key)
            for key in ('{"a":1,"b":"2026-01-01T00:00:00.5Z"}', '{"a":1}'):
                test.pipe("pairs", None, key=key)
        found = {each.key: each.value for each in test.written("kept")}
        assert (found[b"1"], found[b"2"]) == (None, None)
        assert found[b"3"] == b'{"id":3,"name":"z"}'
        bad = test.written("names.bad")
        assert [each.key for each in bad] == [b'{"no":3}', b"three", None]
        assert [each.value for each in bad] == [None] * 3
        assert bad[0].headers["dead-letter.error"] == b"a deletion, and its key has no id"
        assert [each.value for each in test.written("pairs.kept")] == [None]
        assert [each.key for each in test.written("pairs.bad")] == [b'{"a":1}']


def test_a_deletion_without_its_key_stops_an_app() -> None:
    app = App("driver-deletion")

    @app.pipeline
    def tables(app: App) -> None:
        app.to("kept", latest(app.table("names", key="id", value="id INT, name STRING"), key="id"))

    with app.test() as test:
        test.pipe("names", None, key="x")
        with pytest.raises(StreamsError, match="offset 0 of names-0 is a deletion, and its key has no id"):
            test.rows("kept")


def test_a_bad_record_stops_an_app_in_one_line() -> None:
    app = App("driver-bad")

    @app.pipeline
    def copy(app: App) -> None:
        app.to("out", app.stream("in", value="a INT").groupBy().count())  # none of its columns is used

    with app.test() as test:
        test.pipe("in", {"a": 1}, {"a": "x"})
        with pytest.raises(StreamsError) as raised:
            test.rows("out")
    (line, *rest) = str(raised.value).splitlines()
    assert line == (
        "the record at offset 1 of in-0 is not JSON of struct<a:int>; "
        "pass such records on with bad='TOPIC' or leave them out with bad='drop'"
    )
    assert all(each.startswith("  more in ") for each in rest)


def test_what_an_app_cannot_be_is_said(spark: SparkSession) -> None:
    with pytest.raises(StreamsError, match="letters, digits"):
        App("a/b")
    app = App("driver-errors")
    with pytest.raises(StreamsError, match="has no outputs"):
        app.outputs()
    with pytest.raises(
        StreamsError, match=r"a Millstream source has no option 'maxoffsets': did you"
    ) as raised:
        app.stream("in", options={"maxOffsets": "5"})
    assert str(raised.value).startswith("a Millstream source has no option")
    with pytest.raises(StreamsError, match="bad=in: records that cannot be read would come again"):
        app.stream("in", bad="in")
    with pytest.raises(StreamsError, match="'no schema at all,' is no schema"):
        app.stream("in", value="no schema at all,")
    with pytest.raises(StreamsError, match=r'a field _key, which is .*: read it with value="string", and'):
        app.stream("in", value="_key STRING, _id INT")
    made = spark.range(1)
    app.to("out", made)
    with pytest.raises(StreamsError, match=r"calls to\(\) outside of a function; put what it does into one"):
        app.test()
    with pytest.raises(StreamsError, match="key=city: there is no such column among id"):
        app.to("out", made, key="city")
    ticks = spark.readStream.format("rate").load()
    with pytest.raises(StreamsError, match="mode=complete: an output's mode is append or update"):
        app.to("out", ticks, mode="complete")  # type: ignore[arg-type]
    with pytest.raises(StreamsError, match="cannot run as a stream: Sorting is not supported") as raised:
        app.to("out", ticks.orderBy("value"))
    assert len(str(raised.value)) < 300
