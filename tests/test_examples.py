"""Every program in examples/ runs, and does what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import Broker

DEMO_SECONDS = 200
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
RUN_HERE = {
    "admin_tour.py",
    "consumer_arrow.py",
    "consumer_async.py",
    "consumer_group.py",
    "producer_arrow.py",
    "producer_async.py",
    "producer_quickstart.py",
    "producer_transactions.py",
    "demo.py",
    "streams_history.py",
    "streams_join.py",
    "test_streams_join.py",
    "confluent_quickstart.py",
    "kafka_python_quickstart.py",
    "aiokafka_quickstart.py",
    "exactly_once.py",
    "test_with_broker.py",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def run(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=290, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUN_HERE


@pytest.mark.usefixtures("quick_spark")
@pytest.mark.timeout(DEMO_SECONDS * 2)
def test_demo() -> None:
    """It prints windows as they close, and ends cleanly by Ctrl-C before its minute is over."""
    environment = {**os.environ, "MILLSTREAM_DEMO_SECONDS": str(DEMO_SECONDS), "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if "orders" in line and "Africa" in line:
            demo.send_signal(signal.SIGINT)
            break
    rest, errors = demo.communicate(timeout=DEMO_SECONDS)
    assert demo.returncode == 0, errors
    assert re.search(r"\d\d:\d\d:\d\d  Africa +\d+ orders +[\d,.]+\n", "".join(lines))
    assert rest.endswith("All has stopped. Your own app is ten lines: see docs/streams.md.\n")
    said = [line for line in errors.splitlines() if not line.startswith("Picked up JAVA_TOOL_OPTIONS")]
    assert said == []


@pytest.mark.usefixtures("quick_spark")
@pytest.mark.timeout(400)
def test_streams_history(broker: Broker, tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "streams_history.py"), broker.bootstrap, str(tmp_path)).splitlines()
    assert printed == [
        "history: cellar 19.0 500",
        "history: roof 19.5 500",
        'stream: {"sensor":"cellar","celsius":19.0,"readings":500}',
        'stream: {"sensor":"roof","celsius":19.5,"readings":500}',
    ]


@pytest.mark.usefixtures("quick_spark")
@pytest.mark.timeout(400)
def test_streams_join(tmp_path: Path) -> None:
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::ResourceWarning",
        "-o",
        "timeout=280",
    ]
    assert "1 passed" in run(*words, str(EXAMPLES / "test_streams_join.py"), cwd=tmp_path)
    (log,) = tmp_path.rglob("spark.log")
    said = log.read_text()
    assert "WARN" in said
    assert "doesn't contain" not in said, "no keys in the log"


@pytest.mark.parametrize("name", ["confluent", "kafka_python", "aiokafka"])
def test_quickstarts(broker: Broker, name: str) -> None:
    printed = run(str(EXAMPLES / f"{name}_quickstart.py"), broker.bootstrap)
    assert printed.startswith("wrote 10 records\n")
    assert all(f"hello {number}\n" in printed for number in range(10))


def test_exactly_once(broker: Broker) -> None:
    from tests.compat.committed import committed

    for times in (1, 2):
        printed = run(str(EXAMPLES / "exactly_once.py"), broker.bootstrap)
        assert printed.endswith("copied 1000 records to exactly-once-out\n")
        values = [value for part in committed(broker.bootstrap, "exactly-once-out", 2) for value in part]
        assert sorted(values) == sorted([b"ORDER %d" % number for number in range(1000)] * times)


def test_consumer_group(broker: Broker) -> None:
    printed = run(str(EXAMPLES / "consumer_group.py"), broker.bootstrap)
    assert "reading group-orders-0, group-orders-1, group-orders-2, group-orders-3\n" in printed
    assert printed.endswith("lag 0\nLima: 166833\nOslo: 166167\nPune: 166500\n")


def test_consumer_async(broker: Broker) -> None:
    printed = run(str(EXAMPLES / "consumer_async.py"), broker.bootstrap)
    lines = [f"12:{minute} {20 + minute / 10:.1f} °C" for minute in range(55, 60)]
    assert printed.splitlines() == lines


def test_consumer_arrow(broker: Broker) -> None:
    printed = run(str(EXAMPLES / "consumer_arrow.py"), broker.bootstrap)
    assert printed.startswith("topic, partition, offset, timestamp, key, value, headers\n")
    assert sorted(printed.splitlines()[1:]) == ["mill: 6667", "stream: 6667", "wheel: 6666"]


def test_admin_tour(broker: Broker) -> None:
    printed = run(str(EXAMPLES / "admin_tour.py"), broker.bootstrap)
    assert "created tour with 2 partitions\ncleanup.policy = compact (from topic)\n" in printed
    assert printed.endswith("committed 0 lag 0\nleft []\n")


def test_producer_quickstart(broker: Broker) -> None:
    lines = run(str(EXAMPLES / "producer_quickstart.py"), broker.bootstrap).splitlines()
    assert lines[0] == "the first is at 0"
    assert [line for line in lines if line.startswith("written to")] == [
        f"written to producer-orders-0 at {offset}" for offset in (1, 2, 3)
    ]
    assert lines[-1] == "all are written: 0 bytes are left"


def test_producer_async(broker: Broker) -> None:
    printed = run(str(EXAMPLES / "producer_async.py"), broker.bootstrap)
    assert printed == "wrote 50000 events, and 10 more in a row: True\n"


def test_producer_arrow(broker: Broker) -> None:
    printed = run(str(EXAMPLES / "producer_arrow.py"), broker.bootstrap)
    assert printed == "wrote 200000 rows of the table\nwrote 3 values to partition 0\n"


def test_producer_transactions(broker: Broker) -> None:
    from tests.compat.committed import committed

    for times in (1, 2):
        printed = run(str(EXAMPLES / "producer_transactions.py"), broker.bootstrap)
        assert printed.endswith("copied 1000 records to transactions-out\n")
        values = [value for part in committed(broker.bootstrap, "transactions-out", 1) for value in part]
        assert values == [b"ORDER %d" % number for number in range(1000)] * times


def test_the_test_suite_with_a_broker() -> None:
    from tests.testing.test_plugin import PLUGIN, is_installed

    loaded = [] if is_installed() else ["-p", PLUGIN]
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded, str(EXAMPLES / "test_with_broker.py")]
    assert "2 passed" in run(*words)
