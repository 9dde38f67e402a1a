"""Fixtures shared by the tests that go through sockets.

The broker under test is a real `millstream serve` process. With MILLSTREAM_TEST_BOOTSTRAP=host:port the same
tests run against a broker that already listens there, for instance Apache Kafka itself, which shows whether a
failing test or the broker is wrong.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.processes import BrokerProcess

Name = Callable[[str], str]
"""A fixture that makes names; see new_name."""

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the brokers they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Java programs of tests live for seconds: the code that its second compiler makes never earns what it costs.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")

# A run finds what the run before found, at any speed of the machine; `make search` looks for more.
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "fixed", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fixed")

OUTSIDE = os.environ.get("MILLSTREAM_TEST_BOOTSTRAP", "")


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest leave the package's own modules as they are.

    It rewrites all of a package that brings a plugin, as it does tests, where they are imported: also in two
    threads at once, of which Python 3.11 makes "AST constructor recursion depth mismatch".
    """
    hook: Any = config.pluginmanager.rewrite_hook
    getattr(hook, "_must_rewrite", set()).discard("millstream")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.scheduling import in_order

        items[:] = in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares out the files of a parallel run by our own order."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.scheduling import Scheduling

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def outside_bootstrap() -> str:
    """The address of a broker somebody else runs, or nothing."""
    return OUTSIDE


@pytest.fixture(scope="session")
def quick_spark() -> Iterator[None]:
    """Let Spark map the classes that it would load."""
    from tests.streams.class_archive import java_options

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", java_options())
        yield


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """One broker for all tests that only need their own topics; None when an outside broker is used."""
    if OUTSIDE:
        yield None
        return
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "data", options={"num.partitions": "4"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap(shared_broker: BrokerProcess | None) -> str:
    """host:port of the broker under test."""
    return OUTSIDE if shared_broker is None else shared_broker.bootstrap


@pytest.fixture(scope="session")
def _topic_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def new_name(request: pytest.FixtureRequest, _topic_numbers: Iterator[int]) -> Name:
    """Topic names nobody used before, readable in a log."""
    run = os.getpid()

    def name(word: str = "t") -> str:
        return f"{word}-{run}-{next(_topic_numbers)}"

    return name


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers of a test's own (not started); whatever still runs at the end is killed."""
    made: list[BrokerProcess] = []

    def make(data: Path | None = None, **options: str) -> BrokerProcess:
        named = {key.replace("_", "."): value for key, value in options.items()}
        broker = BrokerProcess(data or tmp_path / f"data{len(made)}", options=named)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()
