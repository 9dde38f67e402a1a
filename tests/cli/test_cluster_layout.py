"""What `serve --brokers N` gives each of its brokers."""

from __future__ import annotations

import pytest

from millstream.cli.cluster_layout import broker_ids, layout
from millstream.config.broker import BrokerConfig


@pytest.mark.parametrize(
    ("count", "factor", "min_isr"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_internal_topics_are_replicated_by_the_number_of_brokers(
    count: int, factor: str, min_isr: str
) -> None:
    config = BrokerConfig({"log.dirs": "/data"})
    for broker_id in broker_ids(config, count):
        found = layout(config, count, broker_id)
        assert found["offsets.topic.replication.factor"] == factor
        assert found["transaction.state.log.replication.factor"] == factor
        assert found["transaction.state.log.min.isr"] == min_isr


def test_what_is_configured_for_all_is_kept() -> None:
    config = BrokerConfig({"log.dirs": "/data", "offsets.topic.replication.factor": "2"})
    assert "offsets.topic.replication.factor" not in layout(config, 3, config.node_id)


def test_each_broker_has_its_own_port_folder_and_number() -> None:
    config = BrokerConfig({"node.id": "4", "listeners": "PLAINTEXT://localhost:9092", "log.dirs": "/a,/b"})
    assert list(broker_ids(config, 3)) == [4, 5, 6]
    found = layout(config, 3, 6)
    assert found["node.id"] == "6"
    assert found["listeners"] == "PLAINTEXT://localhost:9094"
    assert found["log.dirs"] == "/a/broker-6,/b/broker-6"
    assert found["registry"] == "sqlite:/a"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "sqlite:/data"),
        ({"registry": "sqlite"}, "sqlite:/data"),
        ({"registry": "sqlite:/elsewhere"}, None),
        ({"registry": "zookeeper://localhost/x"}, None),
    ],
)
def test_all_brokers_have_one_registry(given: dict[str, str], found: str | None) -> None:
    """`sqlite` alone means a file beside the logs, of which each has its own."""
    config = BrokerConfig({"log.dirs": "/data", **given})
    for broker_id in broker_ids(config, 3):
        assert layout(config, 3, broker_id).get("registry") == found
