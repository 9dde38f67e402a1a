"""Apps on a real broker: run, stopped, run again, reset; and what they say when they cannot."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream import Admin, Consumer, Producer
from millstream.streams import App, StreamsError, deduplicate, run
from millstream.streams.java import check_java
from millstream.streams.running import Running, stop_signals
from millstream.streams.sink_names import Run
from millstream.testing import Broker

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(400)]

ORDER = "id INT, city STRING, cents INT"
PATIENCE_S = 200


def send(broker: Broker, topic: str, *rows: dict[str, Any]) -> None:
    with Producer(broker.bootstrap, serializer="json") as producer:
        for row in rows:
            producer.send(topic, row, key=str(row["city"]).encode())


def read(broker: Broker, topic: str) -> list[tuple[bytes | None, Any]]:
    """All committed records of a topic, by partition and offset."""
    found: list[tuple[bytes | None, Any]] = []
    with Consumer(broker.bootstrap, offset_reset="earliest", isolation_level="read_committed") as consumer:
        partitions = consumer.partitions_of(topic)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(each) < end for each, end in ends.items()):
            assert time.monotonic() < deadline
            found += [(each.key, json.loads(each.value or b"null")) for each in consumer.poll()]
    return found


def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("city").agg(F.sum("cents").alias("cents"))


def shop(broker: Broker, name: str, state: Path, **kept: Any) -> App:
    app = App(name, broker.bootstrap, state=state)

    @app.pipeline
    def pipeline(app: App) -> None:
        orders = app.stream(f"{name}-orders", value=ORDER, **kept)
        app.to(f"{name}-sums", totals(orders), key="city")
        app.to(f"{name}-big", orders.where("cents > 100").select("id", "_key"))
        app.to(f"{name}-copy", orders.select("id", "city"), key="city")

    return app


def crash() -> None:
    raise ConnectionAbortedError


def test_an_app_goes_on_where_it_was(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("going-orders", 2)
    app = shop(broker, "going", tmp_path / "é 100%20 [a]")  # a folder of any name
    send(
        broker, "going-orders", {"id": 1, "city": "Oslo", "cents": 5}, {"id": 2, "city": "Lima", "cents": 500}
    )
    app.run(once=True, quiet=True)
    send(broker, "going-orders", {"id": 3, "city": "Oslo", "cents": 7})
    app.run(once=True, quiet=True)
    assert sorted(read(broker, "going-sums"), key=str) == [
        (b"Lima", {"city": "Lima", "cents": 500}),
        (b"Oslo", {"city": "Oslo", "cents": 12}),
        (b"Oslo", {"city": "Oslo", "cents": 5}),
    ]
    assert read(broker, "going-big") == [(b"Lima", {"id": 2})]
    assert [value["id"] for _, value in sorted(read(broker, "going-copy"), key=str)] == [2, 1, 3]
    with Admin(broker.bootstrap) as admin:
        assert set(admin.group_lag("going").values()) == {0}
    # The same function over history gives the same sums.
    history = app.history()
    assert sorted(map(tuple, history["going-sums"].collect())) == [("Lima", 500), ("Oslo", 12)]
    assert history["going-big"].count() == 1

    assert [each["batch"] for each in app.describe()["progress"]] == [1]
    said = app.reset()
    assert said[0] == "the last batch in the output is 1"
    assert "keep what it wrote" in said[-1]
    app.run(once=True, quiet=True)
    assert len(read(broker, "going-copy")) == 6
    with Admin(broker.bootstrap) as admin:
        assert not [each for each in admin.list_transactions() if each.state == "Ongoing"]

    with monkeypatch.context() as patch:
        patch.setattr(app.folder, "clear", crash)
        with pytest.raises(ConnectionAbortedError):
            app.reset()
    with pytest.raises(StreamsError, match="a reset of app going has not come to its end: reset it again"):
        app.run(once=True, quiet=True)  # its decisions are gone, so that it would not know what is written
    app.reset()
    assert not app.folder.is_half_reset
    assert not app.folder.checkpoints


def test_latest_is_settled_once(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("late-orders", 1)
    send(broker, "late-orders", {"id": 1, "city": "Oslo", "cents": 5})

    def late_app() -> App:
        app = App("late", broker.bootstrap, state=tmp_path)

        @app.pipeline
        def copy(app: App) -> None:
            app.to("late-copy", app.stream("late-orders", value=ORDER, start="latest"))

        return app

    late_app().describe()  # who only looks does not start the app
    assert not (tmp_path / "late" / "start.json").exists()
    with Producer(broker.bootstrap, transactional_id="late") as others:
        others.begin_transaction()
        others.send("late-orders", b"others are writing").result(PATIENCE_S)
        app = late_app()
        app.outputs()  # at the end of what is committed
        others.abort_transaction()
    app.folder.keep_starts()  # a first start that dies before its first batch
    assert json.loads((tmp_path / "late" / "start.json").read_text()) == {
        "late-orders": {"late-orders": {"0": 1}}
    }
    send(broker, "late-orders", {"id": 2, "city": "Oslo", "cents": 5})
    app.run(once=True, quiet=True)
    assert [value["id"] for _, value in read(broker, "late-copy")] == [2]


def test_a_time_after_the_last_record_of_a_partition_is_its_end(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("timed", 2)
    broker.create_topic("timed-copy", 1)
    start_ms = 1_790_000_000_000

    def say(word: str, partition: int, at_ms: int) -> None:
        with Producer(broker.bootstrap) as producer:
            producer.send("timed", json.dumps(word).encode(), partition=partition, timestamp_ms=at_ms).result(
                PATIENCE_S
            )

    for partition in (0, 1):
        say("before", partition, start_ms - 1000)
    say("on time", 0, start_ms)
    app = App("timed", broker.bootstrap, state=tmp_path)
    app.to("timed-copy", app.stream("timed", start=f"{datetime.fromtimestamp(start_ms / 1000, UTC)}"))
    app.run(once=True, quiet=True)
    say("later", 1, start_ms + 1000)
    app.run(once=True, quiet=True)
    assert [value for _, value in read(broker, "timed-copy")] == ["on time", "later"]


def test_two_apps_run_until_ctrl_c(broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    apps = []
    for name in ("one", "two"):
        broker.create_topic(f"{name}-orders", 1)
        send(broker, f"{name}-orders", {"id": 1, "city": "Oslo", "cents": 500})
        app = App(name, broker.bootstrap, state=tmp_path)
        app.to(f"{name}-copy", app.stream(f"{name}-orders"))
        apps.append(app)

    def interrupt() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not {"one-copy", "two-copy"} <= set(broker.topics()) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    try:
        run(*apps)
    finally:
        waiting.join()
    said = capfd.readouterr().err
    assert "one: one-orders → one-copy, state in " in said
    assert re.search(r"two: stopped (after batch 0|before its first batch); run it again to go on", said)


def test_who_asks_twice_does_not_wait() -> None:
    with stop_signals() as stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(PATIENCE_S)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def fail(value: str) -> str:
    raise ValueError(f"I cannot bear {value[:6]}")


def wait_for(condition: Callable[[], bool], running: Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        running.watch()
        time.sleep(0.1)


def test_a_folder_has_one_app(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("only-orders", 1)
    app = App("only", broker.bootstrap, state=tmp_path)
    app.to("only-copy", app.stream("only-orders"))
    with Running(app, quiet=True) as running:
        with pytest.raises(StreamsError, match=rf"process {os.getpid()} runs on .*only already: stop it"):
            app.reset()
        send(broker, "only-orders", {"id": 1, "city": "Oslo"})
        wait_for(lambda: "only-copy" in broker.topics() and len(read(broker, "only-copy")) == 1, running)
        wait_for(lambda: not app.folder.is_within_batch("append"), running)
        # As by a task that is stopped in the middle of a batch.
        (app.folder.checkpoint("append") / "commits" / "0").unlink()
        name = Run(running.queries[0].id, "run").transactional_id(0, 0)
        with Producer(broker.bootstrap, transactional_id=name) as producer:
            producer.begin_transaction()
            producer.send("only-copy", b"half a batch")
            producer.hand_over_transaction()
        assert app.folder.is_within_batch("append")
    with Admin(broker.bootstrap) as admin:
        assert not [each for each in admin.list_transactions() if each.state == "Ongoing"]


def test_an_app_that_writes_to_other_brokers(broker: Broker, tmp_path: Path) -> None:
    """What it left is ended there."""
    broker.create_topic("away-orders", 1)
    send(broker, "away-orders", {"id": 1, "city": "Oslo"})
    with Broker() as away:
        app = App("away", broker.bootstrap, state=tmp_path, sink={"kafka.bootstrap.servers": away.bootstrap})
        app.to("away-copy", app.stream("away-orders"))
        app.run(once=True, quiet=True)
        assert len(read(away, "away-copy")) == 1
        assert app.reset()[0] == "the last batch in the output is 0"
        assert set(away.topics()) == {"away-copy"}


def test_an_app_that_starts_in_part_does_not_run(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("part-orders", 1)
    app = App("part", broker.bootstrap, state=tmp_path)
    orders = app.stream("part-orders", value=ORDER, late="1 minute")
    app.to("part-sums", totals(orders), key="city")
    app.to("part-minutes", orders.groupBy(F.window("_timestamp", "1 minute")).count(), key="window")
    ticks = app.spark.readStream.format("rate").load()
    other = ticks.writeStream.format("noop").queryName("part-update").start()
    try:
        with pytest.raises(StreamsError, match="part-update"):
            app.run(once=True, quiet=True)
        assert [each.name for each in app.spark.streams.active] == ["part-update"]
    finally:
        other.stop()


def test_what_fails_is_said_in_a_few_lines(broker: Broker, tmp_path: Path) -> None:
    missing = App("missing", broker.bootstrap, state=tmp_path)
    missing.to("out", missing.stream("no-such-topic"))
    with pytest.raises(StreamsError, match="no-such-topic") as raised:
        missing.run(once=True, quiet=True)
    assert len(str(raised.value).splitlines()) <= 3
    with pytest.raises(StreamsError, match=r"where no-such-topic ends could not be asked .*does not exist"):
        missing.stream("no-such-topic", start="latest")

    broker.create_topic("broken-orders", 1)
    send(broker, "broken-orders", {"id": 1, "city": "Oslo"})
    broken = App("broken", broker.bootstrap, state=tmp_path)

    broken.to(
        "out", broken.stream("broken-orders").select(F.udf(lambda it: fail(it))("value").alias("value"))
    )
    with pytest.raises(StreamsError) as raised:
        broken.run(once=True, quiet=True)
    first, second = str(raised.value).splitlines()[:2]
    assert first == 'app broken failed: ValueError: I cannot bear {"id":'
    assert re.fullmatch(rf"  at {re.escape(__file__)}:\d+ in fail", second)


def test_a_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        StreamsError, match="Spark needs Java 17 or newer, and there is no `java` on the path"
    ):
        check_java()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_1\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(StreamsError, match="is Java 8"):
        check_java()
    old.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    with pytest.raises(StreamsError, match="java does not run: Unable to locate a Java Runtime"):
        check_java()


def test_the_session_is_the_apps_own(spark: SparkSession, tmp_path: Path) -> None:
    conf = {"spark.sql.shuffle.partitions": "3", "spark.sql.warehouse.dir": "set when Spark starts"}
    app = App("session", state=tmp_path, conf=conf)
    assert app.spark is not spark
    assert app.spark.sparkContext is spark.sparkContext
    assert app.spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert "RocksDB" in str(app.spark.conf.get("spark.sql.streaming.stateStore.providerClass"))


@pytest.mark.parametrize("within", [None, "1 hour"])
def test_the_first_row_of_a_value_is_the_earliest_of_all_partitions(
    broker: Broker, tmp_path: Path, new_name: Callable[[str], str], within: str | None
) -> None:
    """Whatever order the shuffle brings them in; and so history has the same rows."""
    topic, out = broker.create_topic(new_name("visits"), 4), broker.create_topic(new_name("first"), 1)
    with Producer(broker.bootstrap, serializer="json") as producer:
        for number in range(40):
            for partition in range(4):
                at_ms = 1_700_000_000_000 + (number * 7 + partition * 3) % 4 * 1000 + (number + partition) % 2
                row = {"id": number, "of": partition}
                producer.send(topic, row, partition=partition, timestamp_ms=at_ms)
    app = App(new_name("first"), broker.bootstrap, state=tmp_path)

    @app.pipeline
    def first(app: App) -> None:
        visits = app.stream(topic, value="id INT, of INT")
        app.to(out, deduplicate(visits, by="id", within=within), key="id")

    history = {(row["id"], row["of"]) for row in app.history()[out].collect()}
    assert len(history) == 40
    app.run(once=True, quiet=True)
    assert {(row["id"], row["of"]) for _, row in read(broker, out)} == history
