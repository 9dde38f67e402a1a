"""`kill -9` of any broker, of all but one, of all but the one that came back with an empty folder."""

from __future__ import annotations

import shutil

import pytest

from millstream.testing import Cluster
from tests.failover.conftest import MakeCluster
from tests.failover.load import JavaWriter, Reader, Writer, check, is_java, read_all

PARTITIONS = 6
SAFE = {"min.insync.replicas": "2"}


@pytest.mark.java
def test_any_broker_is_killed_and_clients_go_on(cluster: Cluster) -> None:
    """Each in turn, the controller among them; with confluent-kafka and Java at work throughout."""
    topic = cluster.create_topic("t", PARTITIONS, replication_factor=3, configs=SAFE)
    bootstrap = cluster.bootstrap
    with (
        Writer(bootstrap, topic) as writer,
        Reader(bootstrap, topic, "g") as reader,
        JavaWriter(bootstrap, topic) as java,
    ):
        java.wait_for(20)
        for broker_id in (1, 2, 3):
            cluster[broker_id].kill()
            writer.wait_for(100)
            java.wait_for(20)
            reader.wait_for(set(writer.acknowledged))
            cluster.start_broker(broker_id)
            cluster.wait_until_healthy()
        writer.stop()
        java.stop()
        reader.wait_for(set(writer.acknowledged) | java.acknowledged)
    found = read_all(bootstrap, topic, PARTITIONS)
    check(found, writer, others=is_java)
    everything = {value for values in found.values() for value in values}
    assert java.acknowledged <= everything
    assert java.failed == []


@pytest.mark.java
def test_the_last_one_in_sync_serves_all_that_was_committed(cluster: Cluster) -> None:
    """N-1 killed at once: the survivor leads everything, and with min ISR 1 takes writes, also of Java."""
    safe = cluster.create_topic("safe", 3, replication_factor=3, configs=SAFE)
    free = cluster.create_topic("free", 3, replication_factor=3, configs={"min.insync.replicas": "1"})
    with (
        Writer(cluster.bootstrap, safe) as first,
        Writer(cluster.bootstrap, free) as second,
        JavaWriter(cluster.bootstrap, free) as java,
    ):
        java.wait_for(20)
        first.wait_for(300)
        second.wait_for(300)
        first.stop()
        for broker_id in (1, 2):
            cluster[broker_id].kill()
        second.wait_for(300)
        java.wait_for(20)
        second.stop()
        java.stop()
    assert java.failed == []
    health = cluster.wait_until(lambda health: not health.offline)
    assert health.brokers == [3]
    assert len(health.under_min_isr) >= 3
    check(read_all(cluster[3].address, safe, 3), first)
    found = read_all(cluster[3].address, free, 3)
    check(found, second, others=is_java)
    assert java.acknowledged <= {value for values in found.values() for value in values}
    for broker_id in (1, 2):
        cluster.start_broker(broker_id)
    cluster.wait_until_healthy()
    check(read_all(cluster.bootstrap, safe, 3), first)
    check(read_all(cluster.bootstrap, free, 3), second, others=is_java)


@pytest.mark.java
def test_a_broker_with_an_empty_folder_copies_everything_before_others_rely_on_it(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer, JavaWriter(cluster.bootstrap, topic) as java:
        java.wait_for(20)
        writer.wait_for(300)
        cluster[3].kill()
        cluster[3].wipe()
        writer.wait_for(200)
        cluster.start_broker(3)
        cluster.wait_until_healthy()
        writer.wait_for(100)
        java.wait_for(20)
        writer.stop()
        java.stop()
    assert java.failed == []
    for broker_id in (1, 2):
        cluster[broker_id].kill()
    cluster.wait_until(lambda health: not health.offline)
    found = read_all(cluster[3].address, topic, 3)
    check(found, writer, others=is_java)
    assert java.acknowledged <= {value for values in found.values() for value in values}


def test_all_are_killed_at_once_and_nothing_is_lost(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(300)
        for member in cluster.members.values():
            member.kill()
        for broker_id in cluster.members:
            cluster.start_broker(broker_id, is_awaited=False)
        writer.wait_for(200)
        writer.stop()
    cluster.wait_until_healthy()
    check(read_all(cluster.bootstrap, topic, 3), writer)


def kill_all_at_once(cluster: Cluster) -> None:
    """So that nobody notices that another is gone, and all are in sync still."""
    for member in cluster.members.values():
        member.pause()
    for member in cluster.members.values():
        member.kill()


def test_a_broker_that_comes_back_first_with_a_damaged_log_does_not_lead(cluster: Cluster) -> None:
    """What a start has to cut off is lost there, and the others are not to follow it in that."""
    topic = cluster.create_topic("t", 1, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(100)
        writer.stop()
    first = cluster.leader(topic)
    kill_all_at_once(cluster)
    path = cluster[first].folder / f"{topic}-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    cluster.start_broker(first)
    for broker_id in cluster.members.keys() - {first}:
        cluster.start_broker(broker_id)
    cluster.wait_until_healthy()
    check(read_all(cluster.bootstrap, topic, 1), writer)


def test_a_broker_that_comes_back_first_without_a_new_logs_folder_does_not_lead(
    make_cluster: MakeCluster,
) -> None:
    """Nothing was written down of the log yet but that it is there."""
    cluster = make_cluster(config={"replica.high.watermark.checkpoint.interval.ms": "3600000"})
    topic = cluster.create_topic("t", 1, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(100)
        writer.stop()
    first = cluster.leader(topic)
    kill_all_at_once(cluster)
    shutil.rmtree(cluster[first].folder / f"{topic}-0")
    cluster.start_broker(first)
    for broker_id in cluster.members.keys() - {first}:
        cluster.start_broker(broker_id)
    cluster.wait_until_healthy()
    check(read_all(cluster.bootstrap, topic, 1), writer)


def test_a_paused_leader_does_not_lead_on_waking(cluster: Cluster) -> None:
    """SIGSTOP for longer than the session: others lead; what it acknowledges on waking would be lost."""
    topic = cluster.create_topic("t", 1, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic, config={"socket.timeout.ms": 3000}) as writer:
        writer.wait_for(100)
        leader = cluster.leader(topic)
        cluster[leader].pause()
        cluster.wait_until(lambda health: leader not in health.brokers, 30)
        writer.wait_for(100)
        cluster[leader].resume()
        writer.wait_for(100)
        cluster.wait_until_healthy()
        writer.stop()
    check(read_all(cluster.bootstrap, topic, 1), writer)
