"""Bytes that change on a broker's disk while real clients read and write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.testing import Cluster
from tests.cli.programs import start
from tests.failover.load import Reader, Writer, check, read_all
from tests.failover.test_kills import kill_all_at_once


def damage(folder: Path) -> None:
    """Change a byte in the middle of a log's first segment, in the file that the broker has open."""
    path = folder / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def health(bootstrap: str, *options: str) -> tuple[int, dict[str, Any]]:
    asking = start("cluster", "health", "--json", *options, bootstrap=bootstrap)
    out, _ = asking.communicate(timeout=60)
    return asking.returncode, json.loads(out)


def test_clients_read_everything_though_the_leaders_records_are_damaged(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", 1, replication_factor=3, configs={"min.insync.replicas": "2"})
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(300)
        leader = cluster.leader(topic)
        damage(cluster[leader].folder / f"{topic}-0")
        with Reader(cluster.bootstrap, topic, "g") as reader:
            reader.wait_for(set(writer.acknowledged))
            writer.wait_for(100)
            writer.stop()
            reader.wait_for(set(writer.acknowledged))
    cluster.wait_until_healthy()
    assert cluster.leader(topic) != leader
    check(read_all(cluster.bootstrap, topic, 1), writer)
    for broker_id in cluster.members.keys() - {leader}:
        cluster[broker_id].kill()
    cluster.wait_until(lambda found: not found.offline and found.brokers == [leader])
    check(read_all(cluster.bootstrap, topic, 1), writer)


def test_health_names_a_damaged_replica_that_nobody_can_stand_in_for(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", 1, replication_factor=1)
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(300)
        writer.stop()
    assert health(cluster.bootstrap, "--wait", "30s")[0] == 0
    leader = cluster.leader(topic)
    damage(cluster[leader].folder / f"{topic}-0")
    with pytest.raises(AssertionError, match="read up to"):
        read_all(cluster.bootstrap, topic, 1, timeout_s=2)
    code, found = health(cluster.bootstrap)
    assert code == 1
    assert found["damaged"] == [{"topic": topic, "partition": 0, "brokers": [leader]}]


def test_one_log_that_lost_its_end_costs_nothing_though_all_brokers_lost_power(cluster: Cluster) -> None:
    """Whoever comes back last is not in sync for that: the longest log leads."""
    topic = cluster.create_topic("t", 1, replication_factor=3, configs={"min.insync.replicas": "2"})
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(300)
        writer.stop()
    cluster.wait_until_healthy()
    hurt = cluster.leader(topic)
    kill_all_at_once(cluster)
    for member in cluster.members.values():
        (member.folder / ".millstream_boot").unlink()  # as if the machine had started anew since
    path = cluster[hurt].folder / f"{topic}-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size // 2)
    others = cluster.members.keys() - {hurt}
    for broker_id in others:
        cluster.start_broker(broker_id, is_awaited=False)
    for broker_id in others:
        cluster[broker_id].wait_until_ready(60)
    cluster.wait_until(lambda found: set(found.brokers) == others)
    assert len(cluster.health().offline) > 0  # the one that is away may have more than they have
    cluster.start_broker(hurt)
    cluster.wait_until_healthy()
    assert cluster.leader(topic) != hurt
    check(read_all(cluster.bootstrap, topic, 1), writer)
