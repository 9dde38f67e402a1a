"""One Spark and one broker for all tests of the Spark part; both end with them, before others begin."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.client.admin_blocking import Admin
from millstream.client.producer_blocking import Producer
from millstream.streams.reading.link import close_links
from millstream.testing import Broker
from tests.streams.standalone import StandaloneCluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's time has room for the start of Spark on a busy machine."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="package")
def spark(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process's own JVM, on two cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers run whatever python3 is on the path
    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sockets and processes that py4j leaves to the collector
        session = (
            SparkSession.builder.master("local[2]")
            .appName("millstream-tests")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "local"))
            .config(
                "spark.sql.streaming.stateStore.providerClass",
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            )
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    """A broker in a thread of the tests' process; `broker.bootstrap` is its address.

    It outlives its first look for old records, and keeps them: some tests write records of long ago.
    """
    config = {"num.partitions": "2", "log.cleaner.backoff.ms": "100", "log.retention.ms": "-1"}
    with Broker(config) as running:
        yield running


@pytest.fixture(scope="package")
def cluster(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster of two workers."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


@pytest.fixture(scope="package", autouse=True)
def _links() -> Iterator[None]:
    """What tests read in their own process they read over links that are kept, as in Spark's workers."""
    yield
    close_links()


@pytest.fixture(scope="package")
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(broker.bootstrap, linger_ms=0) as sender:
        yield sender


@pytest.fixture(scope="package")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as asked:
        yield asked
