"""One run: clients at work, faults for a while, then everything is repaired and looked at."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from millstream.client.cluster import Cluster as Client
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.batch import encode_batch
from millstream.protocol.record import Record
from tests.chaos.cluster import HostedCluster, zookeeper_servers
from tests.chaos.kafka import HostedKafka
from tests.chaos.nemesis import Nemesis
from tests.chaos.network import Network
from tests.client.raw import produce
from tests.failover.load import Reader, Writer, check, read_all
from tests.failover.transfers import Transfers

PARTITIONS = 4
BROKERS = 3
SAFE = {"min.insync.replicas": "2"}
CONFIG = {
    "registry.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "200",
}
KAFKA_CONFIG = {
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "200",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
HEAL_S = 60.0
SUPERVISED_S = 5.0
"""How often a supervisor looks whether brokers have ended."""
PATIENT = {"delivery.timeout.ms": 300_000, "socket.timeout.ms": 3000, "message.send.max.retries": 1_000_000}


class Report:
    """What a run did, a line at a time and in the end."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:7.2f}  {text}", flush=True)


def run(folder: Path, seed: int, seconds: float, subject: str) -> Counter[str]:
    """Raises AssertionError if anything that was acknowledged is not as it should be.

    The subject is Millstream on a registry, `sqlite` or `zookeeper`, or `kafka`.
    """
    say = Report()
    zookeeper = subject == "zookeeper"
    with ExitStack() as stack:
        network = stack.enter_context(Network(BROKERS))
        servers = zookeeper_servers(network, folder) if zookeeper else []
        for server in servers:
            stack.callback(server.kill)
            server.launch()
        for server in servers:
            server.wait()
        addresses = ",".join(server.address for server in servers)
        registry = f"zookeeper://{addresses}/millstream" if zookeeper else None
        if subject == "kafka":
            cluster: HostedCluster = HostedKafka(network, BROKERS, KAFKA_CONFIG, folder / "data")
        else:
            cluster = HostedCluster(network, BROKERS, CONFIG, folder / "data", registry)
        cluster.start()
        stack.callback(cluster.stop, is_clean=False)
        for name in ("plain", "transactions"):
            cluster.create_topic(name, PARTITIONS, replication_factor=3, configs=SAFE)
        nemesis = Nemesis(cluster, network, servers, seed, say)
        writer = stack.enter_context(Writer(cluster.bootstrap, "plain", config=PATIENT))
        reader = stack.enter_context(Reader(cluster.bootstrap, "plain", "g"))
        transfers = Transfers(cluster.bootstrap, "transactions", PARTITIONS)
        writer.wait_for(100)
        transfers.wait_for(5)
        say(f"seed {seed}: faults for {seconds:g} s")
        nemesis.run(seconds)
        nemesis.heal()
        say("all is repaired")
        try:
            _wait_until_healthy(cluster, nemesis)
            say("healthy again")
            writer.wait_for(200, HEAL_S)
            transfers.wait_for(10, HEAL_S)
        except (AssertionError, TimeoutError) as error:
            say(f"no progress: {error}")
            for line in diagnose(cluster, "plain", PARTITIONS):
                say(line)
            raise
        writer.stop()
        transfers.stop()
        reader.wait_for(set(writer.acknowledged), HEAL_S)
        check(read_all(cluster.bootstrap, "plain", PARTITIONS), writer)
        transfers.check(read_all(cluster.bootstrap, "transactions", PARTITIONS))
        cluster.wait_until_healthy(HEAL_S)
        cluster.stop()
        if subject != "kafka":  # a segment of Kafka's may end in zeros
            _compare(cluster)
        say(
            f"{len(writer.acknowledged)} records acknowledged, {len(transfers.committed)} transactions"
            f" committed, {len(transfers.aborted)} aborted; longest pause {writer.longest_pause_s:.1f} s"
        )
        say(", ".join(f"{count} {kind}" for kind, count in sorted(nemesis.faults.items())))
        return nemesis.faults


def _wait_until_healthy(cluster: HostedCluster, nemesis: Nemesis) -> None:
    """Also for brokers that gave up: one that began before ZooKeeper could be reached ends after a while."""
    deadline = time.monotonic() + HEAL_S
    while True:
        nemesis.start_ended()
        try:
            cluster.wait_until_healthy(SUPERVISED_S)
            return
        except TimeoutError:
            if time.monotonic() > deadline:
                raise


def diagnose(cluster: HostedCluster, topic: str, partitions: int) -> list[str]:
    """What each leader says to one record more."""

    async def work(client: Client, _: Deadline) -> list[str]:
        lines = [
            f"broker {one.id} {'runs' if one.is_running else 'ended'}" for one in cluster.members.values()
        ]
        for index in range(partitions):
            batch = encode_batch([Record(b"diagnosis", None, (), 0)])
            try:
                done = await produce(client, TopicPartition(topic, index), batch, Deadline(3000))
                lines.append(f"{topic}-{index} takes records, at {done}")
            except KafkaError as error:
                lines.append(f"{topic}-{index}: {error}")
        return lines

    return cluster.call(work)


def _compare(cluster: HostedCluster) -> None:
    """All replicas of a partition hold the same bytes."""
    for topic in ("plain", "transactions"):
        for partition in range(PARTITIONS):
            found = cluster.replicas(topic, partition)
            sizes = {broker: len(data) for broker, data in found.items()}
            assert len(set(found.values())) == 1, f"{topic}-{partition} differs: {sizes}"
            assert min(sizes.values()) > 0, f"{topic}-{partition} is empty"
