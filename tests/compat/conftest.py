"""Foreign clients are imported here once, where their own deprecated calls may be passed over."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Iterator

import pytest
from bench.apache_kafka import TOOL_JVM, java_command

from tests.conftest import OUTSIDE
from tests.processes import BrokerProcess

with warnings.catch_warnings():
    # kafka-python reads its schemas through functions that Python 3.11 and 3.12 call deprecated
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    import kafka
    import kafka.admin

GROUP_OPTIONS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "8",
}
"""Settings under which tests of groups need not wait long."""

CONSUMER_OPTIONS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1500",
    "group.consumer.session.timeout.ms": "1500",
    "offsets.topic.num.partitions": "4",
}
"""The same for the consumer protocol, whose time-outs are the broker's."""

CLIENT_VERSIONS = {"kafka-python": kafka.__version__}


def pytest_report_header() -> str:
    """Which foreign clients are used, in the head of the report."""
    import aiokafka
    import confluent_kafka

    versions = CLIENT_VERSIONS | {
        "aiokafka": aiokafka.__version__,
        "confluent-kafka": confluent_kafka.version(),
        "librdkafka": confluent_kafka.libversion()[0],
    }
    return "clients: " + ", ".join(f"{name} {version}" for name, version in versions.items())


@pytest.fixture(scope="session")
def quick_java(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the virtual machine keep the classes it has loaded: later starts take a third of the time."""
    archive = tmp_path_factory.mktemp("java") / "classes.jsa"
    options = (*TOOL_JVM, "-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={archive}")
    words = ["--bootstrap-server", bootstrap, "--list"]
    command = java_command("org.apache.kafka.tools.TopicCommand", words, heap="256m", jvm_options=options)
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    quick = "-XX:TieredStopAtLevel=1"
    if archive.exists():
        quick += f" -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", quick)
        yield


@pytest.fixture(scope="session")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """One broker for all tests of groups; None when an outside broker is used."""
    if OUTSIDE:
        yield None
        return
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data", options=GROUP_OPTIONS) as broker:
        yield broker


@pytest.fixture(scope="session")
def group_bootstrap(group_broker: BrokerProcess | None) -> str:
    """host:port of the broker for tests of groups."""
    return OUTSIDE if group_broker is None else group_broker.bootstrap


@pytest.fixture(scope="session")
def consumer_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """One broker for all tests of the consumer protocol; None when an outside broker is used."""
    if OUTSIDE:
        yield None
        return
    data = tmp_path_factory.mktemp("consumer-groups") / "data"
    with BrokerProcess(data, options=CONSUMER_OPTIONS) as broker:
        yield broker


@pytest.fixture(scope="session")
def consumer_bootstrap(consumer_broker: BrokerProcess | None) -> str:
    """host:port of the broker for tests of the consumer protocol."""
    return OUTSIDE if consumer_broker is None else consumer_broker.bootstrap
