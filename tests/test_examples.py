"""Every program in examples/ runs, and does what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import Broker

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
RUN_HERE = {
    "demo.py",
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


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUN_HERE


def test_demo() -> None:
    printed = run(str(EXAMPLES / "demo.py"))
    assert "100,000" in printed
    assert "Nairobi" in printed
    assert printed.rstrip().endswith("Run your own with millstream serve.")


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


def test_the_test_suite_with_a_broker() -> None:
    from tests.testing.test_plugin import PLUGIN, is_installed

    loaded = [] if is_installed() else ["-p", PLUGIN]
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded, str(EXAMPLES / "test_with_broker.py")]
    assert "2 passed" in run(*words)
