"""The client's tests run on Millstream and on Apache Kafka: it must work with both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from bench.apache_kafka import KafkaBroker

from millstream.client.cluster import Cluster
from millstream.deadline import Deadline
from millstream.testing import Broker
from tests.processes import until

TIMEOUT_MS = 30_000

KEEP_ALL = {"log.retention.ms": "-1"}
"""For records with the times of tests, long ago: Kafka looks for old ones half a minute after its start."""


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), heap="400m", settings=KEEP_ALL) as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="module")
def own_bootstrap() -> Iterator[str]:
    """Gone before other modules: a simulation must not share its process with a broker's thread."""
    with Broker(KEEP_ALL) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["millstream", pytest.param("kafka", marks=pytest.mark.java)])
def either_bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a broker, once of each kind."""
    name = "own_bootstrap" if request.param == "millstream" else "kafka_bootstrap"
    address: str = request.getfixturevalue(name)
    return address


Seen = Callable[[Callable[[], object]], None]


@pytest.fixture
def seen(request: pytest.FixtureRequest, either_bootstrap: str) -> Seen:
    """Waits for what a change must show: Millstream's single broker shows it at once, Kafka's soon after."""
    patience_s = 0 if request.node.callspec.params["either_bootstrap"] == "millstream" else TIMEOUT_MS / 1000

    def wait(claim: Callable[[], object]) -> None:
        until(claim, patience_s, "the change is seen")

    return wait


Work = Callable[[Cluster, Deadline], Coroutine[Any, Any, Any]]


@pytest.fixture
def with_cluster(either_bootstrap: str) -> Callable[[Work], Any]:
    """Runs a coroutine function with a cluster and a deadline."""

    def run(work: Work) -> Any:
        async def main() -> Any:
            async with Cluster(either_bootstrap) as cluster:
                return await work(cluster, Deadline(TIMEOUT_MS))

        return uvloop.run(main())

    return run


@pytest.fixture
def on_loop() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on the standard loop."""
    return asyncio.run
