"""Clusters whose registry is a ZooKeeper ensemble; its own members fail too."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failover.conftest import MakeCluster
from tests.failover.load import Reader, Writer, check, read_all
from tests.failover.test_damage import health
from tests.zookeeper import ZookeeperEnsemble, command_line

SAFE = {"min.insync.replicas": "2"}
SESSION_MS = 3000


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZookeeperEnsemble]:
    with ZookeeperEnsemble(tmp_path) as own:
        yield own


def test_brokers_and_servers_are_killed_and_clients_go_on(
    ensemble: ZookeeperEnsemble, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(
        registry=f"zookeeper://{ensemble.address}/millstream",
        config={"registry.session.timeout.ms": str(SESSION_MS)},
    )
    topic = cluster.create_topic("t", 6, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer, Reader(cluster.bootstrap, topic, "g") as reader:
        writer.wait_for(100)
        for broker_id in (1, 2, 3):
            cluster[broker_id].kill()
            writer.wait_for(100)
            cluster.start_broker(broker_id)
            cluster.wait_until_healthy()
        for victim in (ensemble.leader(), ensemble.follower()):
            victim.kill()
            writer.wait_for(400)
            victim.start()
            cluster.wait_until_healthy()
        writer.wait_for(100)
        writer.stop()
        reader.wait_for(set(writer.acknowledged))
    check(read_all(cluster.bootstrap, topic, 6), writer)
    server = ensemble.servers[0].address
    shown = command_line(server, "get", "/millstream/brokers/topics/t/partitions/0/state")
    state = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))
    assert sorted(state["isr"]) == [1, 2, 3]
    assert "[1, 2, 3]" in command_line(server, "ls", "/millstream/brokers/ids")


def test_without_zookeeper_nothing_that_was_acknowledged_is_lost(
    ensemble: ZookeeperEnsemble, make_cluster: MakeCluster
) -> None:
    """All servers are killed for longer than a session: brokers stop leading, and come back with it."""
    cluster = make_cluster(
        registry=f"zookeeper://{ensemble.address}/millstream",
        config={"registry.session.timeout.ms": str(SESSION_MS)},
    )
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(200)
        ensemble.kill()
        time.sleep(SESSION_MS / 1000 + 1)
        before = len(writer.acknowledged)
        time.sleep(1)
        assert len(writer.acknowledged) == before, "acknowledged without a lease"
        code, found = health(cluster.bootstrap)
        assert (code, found["controller"]) == (1, None)
        ensemble.start()
        writer.wait_for(200)
        cluster.wait_until_healthy()
        writer.stop()
    check(read_all(cluster.bootstrap, topic, 3), writer)
