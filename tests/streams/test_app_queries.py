"""Outputs of an app that are one query: their batches are decided together, and what they share is shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import Producer
from millstream.client.offsets import READ_COMMITTED
from millstream.streams import App, StreamsError, deduplicate, latest, sink_failpoints
from millstream.streams.outputs import Mode, output
from millstream.streams.queries import queries
from millstream.streams.sink_names import topic_of
from millstream.streams.update_sink import sink_query
from millstream.testing import Broker
from tests.client.logs import records_in
from tests.processes import until
from tests.streams.selling_app import CITIES, ORDERS, SOLD, TOTALS, selling
from tests.streams.test_sink_exactly_once import ROUNDS

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(1800)]

LONG = 600.0
PER_BATCH = 40
CITY_COUNT = 5
FIRST_MS = 1_790_000_000_000
PLACES = ("after-end-1", "before-decision")[: max(1, ROUNDS - 3)]


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """What a topic of one partition holds for readers of committed records."""
    (found,) = records_in(broker.bootstrap, topic, isolation_level=READ_COMMITTED)
    return [json.loads(bytes(each.value or b"")) for each in found]


def sell(broker: Broker, orders: range, region: str) -> None:
    """Orders, and a region for all cities with an earlier time than theirs: what an order meets depends on
    the bounds of the batches alone."""
    with Producer(broker.bootstrap, serializer="json") as producer:
        sent = []
        for number in orders:
            row = {"id": number, "city": f"city-{number % CITY_COUNT}"}
            sent.append(producer.send(ORDERS, row, partition=number % 2, timestamp_ms=FIRST_MS + number))
        for number in range(CITY_COUNT):
            city = f"city-{number}"
            row = {"city": city, "region": region}
            sent.append(producer.send(CITIES, row, key=city.encode(), timestamp_ms=FIRST_MS - 1000))
        for each in sent:
            each.result(LONG)


def start(broker: Broker, folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        sink_failpoints.FOLDER: str(folder / "failpoints"),
    }
    with (folder / "app.out").open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.streams.selling_app",
                broker.bootstrap,
                str(folder),
                str(PER_BATCH),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_at(place: str, broker: Broker, folder: Path) -> None:
    """Run the app until it stands at a place of the sink's protocol, and kill it."""
    hit = folder / "failpoints" / f"{place}.hit"
    (folder / "failpoints" / place).touch()
    process = start(broker, folder)
    try:
        until(lambda: hit.exists() or process.poll() is not None, LONG, f"the app comes to {place}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Python and the JVM
        process.wait(LONG)
    assert hit.exists(), (folder / "app.out").read_text(errors="replace")[-3000:]
    hit.unlink()


def test_a_join_that_feeds_two_kinds_of_outputs_gives_both_the_same_rows(
    broker: Broker, tmp_path: Path
) -> None:
    """Whatever it is killed at, and whatever the table says by then. (Rows that change are written by
    foreachBatch: the kills of test_sink_exactly_once, for that form of the sink.)"""
    (tmp_path / "failpoints").mkdir()
    for topic, partitions in ((ORDERS, 2), (CITIES, 1), (SOLD, 1), (TOTALS, 1)):
        broker.create_topic(topic, partitions)
    sell(broker, range(40), "region 0")
    count = 40
    for number, place in enumerate(PLACES):
        sell(broker, range(count, count + 40), f"region {number + 1}")
        kill_at(place, broker, tmp_path)
        count += 40
    sell(broker, range(count, count + 40), "another region")
    assert start(broker, tmp_path).wait(LONG) == 0, (tmp_path / "app.out").read_text(errors="replace")[-3000:]

    sold = values(broker, SOLD)
    assert sorted(each["id"] for each in sold) == list(range(count + 40))
    assert len({each["region"] for each in sold}) > 2
    totals = Counter((each["region"], each["sold"]) for each in values(broker, TOTALS))
    assert set(totals.values()) == {1}, "each change of a total is there once"
    last = dict(sorted(totals))
    assert last == Counter(each["region"] for each in sold)

    app = selling(broker.bootstrap, tmp_path, str(PER_BATCH))
    assert {each["checkpoint"] for each in app.describe()["writes"]} == {"checkpoint-update"}
    ((mode, query),) = app.folder.query_ids().items()
    assert mode == "update"
    decisions = [each["batch"] for each in values(broker, topic_of(sink_query(query, mode)))]
    progress = app.folder.progress(app.folder.checkpoint(mode))
    assert progress is not None
    assert set(decisions) == set(range(progress[0] + 1))
    assert decisions == sorted(decisions)
    assert [list(each) for each in progress[1]] == [[CITIES], [ORDERS]]  # each is read once, for all outputs


def test_what_can_be_one_query(broker: Broker, tmp_path: Path) -> None:
    for topic in ("one-visits", "one-users"):
        broker.create_topic(topic, 1)
    app = App("can", broker.bootstrap, state=tmp_path)
    visits = app.stream("one-visits", value="id INT, who STRING")
    users = app.table("one-users", key="who", value="who STRING, name STRING")
    timed = visits.withWatermark("_timestamp", "1 minute")
    changing = visits.groupBy("who").count()
    others = timed.select(F.col("id").alias("other"), F.col("_timestamp").alias("at"))
    near = F.expr("id = other AND at BETWEEN _timestamp AND _timestamp + INTERVAL 1 MINUTE")
    final = {
        "plain": visits,
        "first": deduplicate(visits, by="id"),
        "first within": deduplicate(visits, by="id", within="1 minute"),
        "latest": latest(users, key="who"),
        "streams": timed.join(others, near).select("id"),
        "windows": timed.groupBy(F.window("_timestamp", "1 minute")).count(),
        "sessions": timed.groupBy(F.session_window("_timestamp", "1 minute"), "who").count(),
        "outer": timed.join(others, near, "left").select("id"),
    }

    def modes(*frames: DataFrame, ran: tuple[str, ...] = ()) -> list[str]:
        outputs = [output("t", each, key=None, value=None, mode=None) for each in frames]
        return list(queries(outputs, ran))

    found = {name: modes(frame, changing) for name, frame in final.items()}
    one, both = ["update"], ["append", "update"]
    assert found == {
        "plain": one,
        "first": one,
        "first within": one,
        "latest": one,
        "streams": one,
        "windows": both,
        "sessions": both,
        "outer": both,
    }
    assert modes(*final.values()) == ["append"]
    assert modes(changing) == ["update"]
    assert modes(visits, changing, ran=("append",)) == both
    assert modes(visits, changing, ran=("append", "update")) == both
    assert modes(visits, changing, ran=("update",)) == ["update"]


def test_rows_that_are_final_run_beside_rows_that_change(tmp_path: Path) -> None:
    app = App("beside", state=tmp_path)

    @app.pipeline
    def pipeline(app: App) -> None:
        visits = app.stream("visits", value="id INT, who STRING")
        timed = visits.withWatermark("_timestamp", "1 minute")
        others = timed.select(F.col("id").alias("after"), F.col("_timestamp").alias("at"))
        near = F.expr("after = id + 1 AND at BETWEEN _timestamp AND _timestamp + INTERVAL 1 MINUTE")
        app.to("pairs", timed.join(others, near).select("id", "after"))
        app.to("first", deduplicate(visits, by="who", within="1 minute").select("id"))
        app.to("counts", visits.groupBy("who").count(), key="who")

    with app.test() as test:
        for number in range(1, 4):
            test.pipe("visits", {"id": number, "who": "Ada"})
        assert test.rows("pairs") == [{"id": 1, "after": 2}, {"id": 2, "after": 3}]
        assert test.rows("first") == [{"id": 1}]
        assert [each["count"] for each in test.rows("counts")] == [1, 2, 3]
        assert list(test._frames) == ["update"]


def windows(visits: DataFrame) -> DataFrame:
    return visits.withWatermark("_timestamp", "1 minute").groupBy(F.window("_timestamp", "1 minute")).count()


def test_an_app_that_ran_as_other_queries(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It goes on as it was, or says that it cannot: nothing is written twice."""
    for topic, partitions in (("ran-visits", 1), ("ran-copy", 1), ("ran-counts", 1)):
        broker.create_topic(topic, partitions)

    def app(*, counts: bool = False, closes: bool = False, mode: Mode | None = None) -> App:
        made = App("plain", broker.bootstrap, state=tmp_path)
        visits = made.stream("ran-visits", value="id INT, who STRING")
        made.to("ran-copy", visits.select("id"), mode=mode)
        if counts:
            made.to("ran-counts", visits.groupBy("who").count(), key="who")
        if closes:
            made.to("ran-minutes", windows(visits))
        return made

    def visit(number: int) -> None:
        with Producer(broker.bootstrap, serializer="json") as producer:
            producer.send("ran-visits", {"id": number, "who": "Ada"})

    visit(1)
    app().run(once=True, quiet=True)
    with pytest.raises(StreamsError, match=r"app plain ran in append mode and would run in update mode now"):
        app(mode="update").run(once=True, quiet=True)
    visit(2)
    app(counts=True).run(once=True)  # with an output more, in a query of its own
    assert [each["id"] for each in values(broker, "ran-copy")] == [1, 2]
    assert [each["count"] for each in values(broker, "ran-counts")] == [2]
    said = capfd.readouterr().err
    told = "plain: two queries, each with its own batches and decisions: ran-copy and ran-counts "
    assert f"{told}(it began so, and is one after a reset)" in said
    app(counts=True).reset()
    app(counts=True).run(once=True)
    assert "two queries" not in capfd.readouterr().err
    assert [each["id"] for each in values(broker, "ran-copy")] == [1, 2, 1, 2]

    for other in (app(counts=True, closes=True), app()):
        with pytest.raises(
            StreamsError, match=r"ran in update mode and would run in append .*: reset it .*, or give"
        ) as raised:
            other.run(once=True, quiet=True)
        assert "\n" not in str(raised.value)
    assert [each["id"] for each in values(broker, "ran-copy")] == [1, 2, 1, 2]


def test_outputs_that_change_places_keep_what_they_hold(broker: Broker, tmp_path: Path) -> None:
    """As they do from run to run where a program goes through a set. Those to the same topic, too."""
    names = ["who", "city"]
    for topic in ("places-in-who", "places-in-city", "places-who", "places-city", "places-both"):
        broker.create_topic(topic, 1)

    def app(*names: str) -> App:
        made = App("places", broker.bootstrap, state=tmp_path)
        for name in names:
            visits = made.stream(f"places-in-{name}", value="who STRING, city STRING", bad="places-bad")
            made.to(f"places-{name}", visits.groupBy(F.col(name).alias("k")).count(), key="k")
            made.to("places-both", visits.groupBy(name).count(), key=name)
        return made

    for number in (1, 2):
        with Producer(broker.bootstrap, serializer="json") as producer:
            for name in names:
                producer.send(f"places-in-{name}", {"who": "Ada", "city": "Oslo"})
        app(*names).run(once=True, quiet=True)
        for name, key in (("who", "Ada"), ("city", "Oslo")):
            assert values(broker, f"places-{name}")[-1] == {"k": key, "count": number}
            assert {name: key, "count": number} in values(broker, "places-both")[-2:]
        names.reverse()
    with pytest.raises(StreamsError, match=r"outputs to places-bad, .* to places-bad, .* now, .*: reset it"):
        app("who").run(once=True, quiet=True)
    app().reset()
    assert app().folder.outputs() == {}
