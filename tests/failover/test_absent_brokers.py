"""A young cluster that loses a broker before anything was made: all that needs three replicas begins."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from bench.apache_kafka import run_tool
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from millstream.errors import KafkaError
from millstream.testing import Cluster
from tests.failover.load import Reader, Writer, check, read_all

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


def test_groups_transactions_and_topics_begin_without_one_of_three(cluster: Cluster) -> None:
    cluster[3].kill()
    cluster.wait_for_brokers({1, 2})
    topic = cluster.create_topic("t", 3, replication_factor=3, configs={"min.insync.replicas": "2"})
    with Writer(cluster.bootstrap, topic) as writer, Reader(cluster.bootstrap, topic, "g") as reader:
        writer.wait_for(100)
        reader.wait_for(set(list(writer.acknowledged)[:100]))
        transfer(cluster.bootstrap, topic)
        cluster.start_broker(3)
        health = cluster.wait_until_healthy()
        writer.wait_for(100)
        writer.stop()
        reader.wait_for(set(writer.acknowledged))
    assert health.brokers == [1, 2, 3]
    found = read_all(cluster.bootstrap, topic, 3)
    check(found, writer, others=lambda value: value == b"moved")
    assert sum(values.count(b"moved") for values in found.values()) == 3
    for broker_id in (1, 2):  # what broker 3 has copied is all there is
        cluster[broker_id].kill()
    cluster.wait_until(lambda health: health.brokers == [3] and not health.offline)
    check(read_all(cluster[3].address, topic, 3), writer, others=lambda value: value == b"moved")


def transfer(bootstrap: str, topic: str) -> None:
    """A transaction with records of three partitions and a group's offsets."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "mover", **QUICK})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"moved", partition=partition)
    settings = {"bootstrap.servers": bootstrap, "group.id": "movers", **QUICK}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 60
        )
        producer.commit_transaction(60)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
        assert committed.offset == 1
    finally:
        consumer.close()


@pytest.mark.java
def test_a_broker_that_is_gone_for_good_is_unregistered(cluster: Cluster) -> None:
    """By the command line, and by Apache Kafka's own tool."""
    held = cluster.create_topic("held", 2, replication_factor=3)
    topic = cluster.create_topic("t", assignment={0: [1, 2]})
    cluster.add_broker()
    refused = millstream(cluster, "unregister", "3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "broker 3 is there: stop it first" in refused.stderr
    for broker_id in (3, 4):
        cluster[broker_id].kill()
    cluster.wait_for_brokers({1, 2})
    done = millstream(cluster, "unregister", "3", "--json")
    assert json.loads(done.stdout) == {"broker": 3, "replicas": [f"{held}:0", f"{held}:1"]}
    words = ["unregister", "--bootstrap-server", cluster[1].address, "--id"]
    told = run_tool("org.apache.kafka.tools.ClusterTool", [*words, "4"])
    assert told.stdout == b"Broker 4 is no longer registered.\n"
    assert millstream(cluster, "unregister", "4").returncode == 1
    with pytest.raises(KafkaError, match="there are 2"):
        cluster.create_topic("three", 1, replication_factor=3)
    assert cluster.leader(topic) in (1, 2)


def millstream(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream.cli.main", "cluster", *words, "-b", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
