"""Exactly once, shown by force: driver, Python workers and broker are killed at each place and at random.

A stateful app counts keys; the counts that it has written, read committed, are those computed from the
input and the bounds of the batches: no more, no less. With the decisions left out, the same kills are found
out.

It runs on a cluster of two hosts, with task retries and speculation: whenever something is killed, an attempt
of a task stands still with its rows written, so that Spark starts another one beside it. (It speculates on
no local master, and not where the first attempt runs.)

MILLSTREAM_SPARK_ROUNDS says how often something is killed; the places come first, random moments then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from millstream import Admin, Producer
from millstream.client.offsets import READ_COMMITTED
from millstream.streams import sink_failpoints
from millstream.streams.sink_reset import settle_sink
from tests.client.logs import records_in
from tests.processes import BrokerProcess, until
from tests.streams.standalone import StandaloneCluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("MILLSTREAM_SPARK_ROUNDS", "3"))
PARTITIONS = 2
PER_BATCH = 100
KEYS = 7
LONG = 300.0

DRIVER, WORKER, BROKER = "driver", "worker", "broker"
PLACES = [
    (WORKER, "written"),
    (DRIVER, "after-end-1"),
    (BROKER, "after-decision"),
    (DRIVER, "before-decision"),
    (DRIVER, "after-decision"),
    (DRIVER, "before-return"),
    (BROKER, "after-end-1"),
    (WORKER, "after-decision"),
    (BROKER, "written"),
    (DRIVER, "after-end-2"),
    (DRIVER, "written"),
]
AT_RANDOM = max(0, ROUNDS - len(PLACES))


class App:
    """The counting app in processes of its own, on a topic of its own, beside a broker of its own."""

    def __init__(self, folder: Path, broker: BrokerProcess, batches: int, cluster: StandaloneCluster) -> None:
        self.folder, self.broker, self.cluster = folder, broker, cluster
        self.failpoints = folder / "failpoints"
        self.failpoints.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.with_decision = True
        self.process: subprocess.Popen[bytes] | None = None
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("in", PARTITIONS)
            admin.create_topic("out", PARTITIONS)
        self.keys = [
            [b"key-%d" % (number * 5 % KEYS + part) for number in range(batches * PER_BATCH // PARTITIONS)]
            for part in range(PARTITIONS)
        ]
        with Producer(broker.bootstrap) as producer:
            for part, keys in enumerate(self.keys):
                producer.send_batch("in", [b""] * len(keys), keys=keys, partition=part).result(30)

    def start(self) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            sink_failpoints.FOLDER: str(self.failpoints),
            sink_failpoints.WITHOUT_DECISION: "" if self.with_decision else "1",
        }
        where = [self.cluster.master, self.broker.bootstrap, "in", "out", str(self.checkpoint)]
        arguments = [*where, str(PER_BATCH)]
        with (self.folder / "app.out").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.streams.counting_app", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_over(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """`kill -9` of the driver: Python and the JVM. Its Python workers find out by themselves."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)

    def python_worker(self, random: Random) -> int | None:
        """One of Spark's Python workers, of the driver or an executor; None if all is read."""

        def found() -> list[int]:
            roots = [] if self.process is None else [self.process.pid]
            roots += self.cluster.pids
            return sorted({worker for root in roots for worker in python_workers(root)})

        until(lambda: found() or self.is_over, LONG, "a Python worker")
        workers = found()
        return random.choice(workers) if workers else None

    def finish(self) -> None:
        """Run until all is read, starting again where something stopped it."""
        for _ in range(5):
            if self.process is None or self.process.poll():
                self.start()
            assert self.process is not None
            if self.process.wait(LONG) == 0:
                return
        raise AssertionError(f"the app does not finish:\n{self.log[-3000:]}")

    @property
    def log(self) -> str:
        return (self.folder / "app.out").read_text(errors="replace")

    @property
    def committed_batches(self) -> int:
        return len([each for each in self.checkpoint.glob("commits/*") if each.name.isdecimal()])

    def stop_at(self, place: str) -> int | None:
        """The process that stands at a place; None if all is read before one comes there."""
        (self.failpoints / place).touch()
        hit = self.failpoints / f"{place}.hit"
        while True:
            until(lambda: hit.exists() or self.is_over, LONG, f"the app comes to {place}")
            if hit.exists():
                return int(hit.read_text())
            if self.process is not None and self.process.returncode == 0:
                (self.failpoints / place).unlink(missing_ok=True)
                return None
            self.start()  # it had not noticed yet that something was killed before

    def go_on(self) -> None:
        for hit in self.failpoints.glob("*"):
            hit.unlink(missing_ok=True)

    def settle(self) -> None:
        """Abort what is open: readers of what is committed wait for it."""
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        settle_sink(self.broker.bootstrap, query)

    def output(self) -> Counter[tuple[bytes, int]]:
        parts = records_in(self.broker.bootstrap, "out", PARTITIONS, isolation_level=READ_COMMITTED)
        return Counter((record.key or b"", int(record.value or b"0")) for part in parts for record in part)

    def answer(self) -> Counter[tuple[bytes, int]]:
        """All counts after each batch, from the input and the batches' bounds in Spark's own log."""
        counts: Counter[bytes] = Counter()
        found: Counter[tuple[bytes, int]] = Counter()
        start = [0] * PARTITIONS
        batches = sorted(
            int(each.name) for each in self.checkpoint.glob("offsets/*") if each.name.isdecimal()
        )
        for batch in batches:
            bounds = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])["in"]
            for part in range(PARTITIONS):
                end = bounds[str(part)]
                counts.update(self.keys[part][start[part] : end])
                start[part] = end
            found.update((key, counts[key]) for key in counts)
        assert counts == Counter(key for keys in self.keys for key in keys), "all input was read"
        return found


def python_workers(root: int) -> list[int]:
    """The Python workers below a process: what Spark's daemons of them have forked."""
    found = []
    try:
        for each in psutil.Process(root).children(recursive=True):
            parent = each.parent()
            if parent is not None and all("pyspark.daemon" in one.cmdline() for one in (each, parent)):
                found.append(each.pid)
    except psutil.NoSuchProcess:
        return []  # it ended while it was looked at
    return found


@pytest.fixture
def make_app(
    tmp_path: Path, broker_process: Callable[..., BrokerProcess], cluster: StandaloneCluster
) -> Iterator[Callable[[int], App]]:
    made: list[App] = []

    def make(batches: int) -> App:
        broker = broker_process()
        broker.start()
        made.append(App(tmp_path, broker, batches, cluster))
        return made[-1]

    yield make
    for app in made:
        app.go_on()
        app.kill()


def strike(app: App, victim: str, process: int | None) -> None:
    """Kill; whoever does not die with it goes on."""
    if victim == WORKER and process is not None:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Spark was faster
        app.go_on()
    elif victim == BROKER:
        app.broker.kill()
        app.go_on()
        app.broker.start()
    else:
        app.kill()
        app.go_on()


def strike_at(app: App, victim: str, place: str) -> bool:
    """Kill at a place, while an attempt of a task stands still; false if all is read."""
    process = app.stop_at(sink_failpoints.WRITTEN)
    if process is not None and place != sink_failpoints.WRITTEN:
        process = app.stop_at(place)  # which is reached by another attempt
    if process is not None:
        strike(app, victim, process)
    return process is not None


def strike_at_random(app: App, victim: str, random: Random) -> bool:
    """Kill at any moment after one when an attempt of a task stood still; false if all is read."""
    if app.stop_at(sink_failpoints.WRITTEN) is None:
        return False
    time.sleep(random.uniform(0, 3))  # a random moment is what is asked for
    strike(app, victim, app.python_worker(random) if victim == WORKER else None)
    return True


def kill_everywhere(app: App, places: list[tuple[str, str]], at_random: int) -> None:
    """Then run to the end. There has to be enough to read for all of it: a moment is some batches long."""
    random = Random(7)
    for victim, place in places:
        if app.is_over:
            app.start()
        assert strike_at(app, victim, place), f"{victim} at {place}: {app.log[-3000:]}"
    for number in range(at_random):
        if app.is_over:
            app.start()
        victim = [DRIVER, WORKER, BROKER][number % 3]
        assert strike_at_random(app, victim, random), f"{victim} at random: {app.log[-3000:]}"
    app.finish()


def test_killed_everywhere(make_app: Callable[[int], App]) -> None:
    app = make_app(2 * len(PLACES[:ROUNDS]) + 5 * AT_RANDOM)
    kill_everywhere(app, PLACES[:ROUNDS], AT_RANDOM)
    assert app.output() == app.answer()
    with Admin(app.broker.bootstrap) as admin:
        names = [each.transactional_id for each in admin.list_transactions()]
    assert any(name.endswith("-1") for name in names), "second attempts wrote"


def test_without_decisions_the_same_kills_are_found_out(make_app: Callable[[int], App]) -> None:
    """At places that are there without them too; a worker that dies is not enough."""
    places = [each for each in PLACES[:ROUNDS] if "decision" not in each[1] and each[0] != WORKER]
    app = make_app(2 * len(places) + 5 * AT_RANDOM)
    app.with_decision = False
    kill_everywhere(app, places, AT_RANDOM)
    app.settle()
    output, answer = app.output(), app.answer()
    assert output != answer
    assert set(output) >= set(answer)
    assert max(output.values()) > 1, "what was committed before the kill came again"
