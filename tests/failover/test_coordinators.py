"""Groups and transactions whose coordinators are killed: they go on at another broker."""

from __future__ import annotations

import time
from typing import Any

import pytest

from millstream.broker.coordinators import java_hash
from millstream.testing import Cluster
from tests.failover.conftest import MakeCluster
from tests.failover.load import CLASSIC, Reader, Writer, read_all, wait_until_committed
from tests.failover.transfers import Transfers

SAFE = {"min.insync.replicas": "2"}


def coordinator(cluster: Cluster, topic: str, key: str) -> int:
    return cluster.leader(topic, (java_hash(key) & 0x7FFFFFFF) % 3)


@pytest.mark.parametrize("member", [CLASSIC, {"group.protocol": "consumer"}], ids=["classic", "consumer"])
def test_a_group_goes_on_when_its_coordinator_is_killed(
    make_cluster: MakeCluster, member: dict[str, Any]
) -> None:
    """Two members keep their offsets: what was committed is not read again by those who come later."""
    cluster = make_cluster(config={"group.consumer.heartbeat.interval.ms": "1000"})
    topic = cluster.create_topic("t", 6, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        with (
            Reader(cluster.bootstrap, topic, "g", member) as first,
            Reader(cluster.bootstrap, topic, "g", member) as second,
        ):
            deadline = time.monotonic() + 40
            while not (first.read and second.read):
                assert time.monotonic() < deadline, (first.errors, second.errors)
                time.sleep(0.05)
            for _ in range(2):
                victim = coordinator(cluster, "__consumer_offsets", "g")
                cluster[victim].kill()
                writer.wait_for(200)
                deadline = time.monotonic() + 40
                while set(writer.acknowledged) - first.read.keys() - second.read.keys():
                    assert time.monotonic() < deadline, (first.errors, second.errors)
                    time.sleep(0.05)
                    if len(writer.acknowledged) > 5000:
                        break
                cluster.start_broker(victim)
                cluster.wait_until_healthy()
            writer.stop()
            deadline = time.monotonic() + 40
            while missing := set(writer.acknowledged) - first.read.keys() - second.read.keys():
                assert time.monotonic() < deadline, f"{len(missing)} not read"
                time.sleep(0.05)
            wait_until_committed(cluster.bootstrap, topic, "g", 6)
        read = first.read + second.read
        with Reader(cluster.bootstrap, topic, "g", member) as late:
            time.sleep(3)
        assert sum((read + late.read).values()) < 2 * len(writer.acknowledged)
        assert not late.read, "everything had been committed"


def test_transactions_are_whole_when_any_broker_is_killed(cluster: Cluster) -> None:
    """Coordinator, leaders and others in turn: what was committed is in every partition, once; what was
    aborted in none."""
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    transfers = Transfers(cluster.bootstrap, topic, 3)
    transfers.wait_for(20)
    for round_number in range(3):
        victim = (
            coordinator(cluster, "__transaction_state", "transfers")
            if round_number == 0
            else cluster.leader(topic, round_number)
        )
        cluster[victim].kill()
        transfers.wait_for(20)
        cluster.start_broker(victim)
        cluster.wait_until_healthy()
    transfers.wait_for(10)
    transfers.stop()
    transfers.check(read_all(cluster.bootstrap, topic, 3))


def test_a_coordinator_hands_over_cleanly(cluster: Cluster) -> None:
    """A clean stop of the transactions' coordinator is no failure for a transactional producer."""
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    transfers = Transfers(cluster.bootstrap, topic, 3)
    transfers.wait_for(10)
    victim = coordinator(cluster, "__transaction_state", "transfers")
    cluster.stop_broker(victim)
    transfers.wait_for(20)
    cluster.start_broker(victim)
    transfers.wait_for(10)
    transfers.stop()
    found = read_all(cluster.bootstrap, topic, 3)
    assert found[0] == found[1] == found[2]
    assert {b"c%d" % number for number in transfers.committed} == set(found[0])
