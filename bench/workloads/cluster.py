"""Three brokers with every record on all of them: throughput, latency, start and memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.batches import batch, sample_values
from bench.clusters import (
    COUNT,
    READY_SECONDS,
    Cluster,
    ClusterCpu,
    bootstrap_of,
    create_replicated,
    discard_cluster,
    make_cluster,
    memory_mb,
)
from bench.frames import ProduceAnswer, produce_frame
from bench.raw import open_loop
from bench.subjects import Subject
from bench.wire import Connection, WireError
from bench.workload import CPU_PER_GB, MB_PER_SECOND, P50, P99, RECORDS_PER_SECOND, Metric, Scale, Workload
from bench.workloads.librdkafka import produce, size_name

PARTITIONS = 12
RATE = 1000
MANY = 2000


class _OnCluster(Workload):
    """One cluster for all rounds of a workload."""

    uses_fresh_broker = True

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._topics = 0

    def prepare(self, subject: Subject, scale: Scale) -> None:
        cluster = make_cluster(subject.kind, subject.new_folder())
        self._clusters[subject.label] = cluster
        cluster.format()
        cluster.launch()
        create_replicated(cluster, "first", 1)

    def finish(self, subject: Subject) -> None:
        discard_cluster(self._clusters.pop(subject.label))

    @contextmanager
    def _topic(self, subject: Subject, partitions: int) -> Iterator[tuple[Cluster, str]]:
        cluster = self._clusters[subject.label]
        self._topics += 1
        topic = f"replicated-{self._topics}"
        create_replicated(cluster, topic, partitions)
        yield cluster, topic


class ReplicatedProduce(_OnCluster):
    metrics = (RECORDS_PER_SECOND, MB_PER_SECOND, CPU_PER_GB)

    def __init__(self, value_bytes: int) -> None:
        super().__init__()
        self.value_bytes = value_bytes
        self.name = f"replicated-{size_name(value_bytes)}"
        self.title = (
            f"librdkafka produce {size_name(value_bytes)}, {COUNT} brokers, {COUNT} replicas, acks=all, "
            f"{PARTITIONS} partitions"
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        wanted = (
            scale.count(quick=500_000, full=2_000_000)
            if self.value_bytes < 1000
            else scale.count(quick=150_000, full=600_000)
        )
        records = max(1, wanted // 1024) * 1024
        with self._topic(subject, PARTITIONS) as (cluster, topic):
            cpu = ClusterCpu(cluster)
            seconds = produce(bootstrap_of(cluster), topic, self.value_bytes, records, acks="all")
            total = records * self.value_bytes
            return {
                "records/s": records / seconds / 1e3,
                "MB/s": total / seconds / 1e6,
                "cpu/GB": cpu.seconds() / (total / 1e9),
            }


class ReplicatedLatency(_OnCluster):
    name = "replicated-latency"
    title = f"one-record requests at {RATE}/s, open loop, {COUNT} replicas, acks=all"
    metrics = (P50, P99)

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        with self._topic(subject, 1) as (cluster, topic):
            frame = produce_frame(topic, {0: batch(sample_values(100)[:1]).data}, acks=-1)
            produce(bootstrap_of(cluster), topic, 100, 0, acks="all")  # the leader knows that it leads
            port = cluster.ports[_leader(cluster, topic) - 1]
            answered = open_loop(
                port, frame, ProduceAnswer(topic), rate=RATE, seconds=scale.of((3, 10))
            ).latencies.summary_us()
            return {"p50_us": answered["p50_us"], "p99_us": answered["p99_us"]}


class ClusterStart(Workload):
    name = "cluster-start"
    title = f"start of {COUNT} brokers to the first record acknowledged by all; memory after a load"
    metrics = (Metric("seconds", "s", digits=2), Metric("loaded MB", "MB", digits=0))
    uses_fresh_broker = True
    is_warmed_up = False
    max_rounds = 3
    max_quick_rounds = 1

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        cluster = make_cluster(subject.kind, subject.new_folder())
        try:
            cluster.format()
            started = time.perf_counter()
            cluster.launch()
            create_replicated(cluster, "first", 1)
            produce(bootstrap_of(cluster), "first", 100, 0, acks="all")
            seconds = time.perf_counter() - started
            create_replicated(cluster, "load", PARTITIONS)
            records = scale.count(quick=300e6, full=1500e6) // 1000 // 1024 * 1024
            produce(bootstrap_of(cluster), "load", 1000, records, acks="all")
            return {"seconds": seconds, "loaded MB": memory_mb(cluster)}
        finally:
            discard_cluster(cluster)


class ClusterPartitions(Workload):
    """Each time ends when every partition has taken a record that all in sync have."""

    name = f"cluster-{MANY}"
    title = f"{MANY} partitions on {COUNT} brokers, {COUNT} replicas: created, started, one broker killed"
    metrics = (
        Metric("create s", "s", digits=2),
        Metric("start s", "s", digits=2),
        Metric("failover s", "s", digits=2),
    )
    uses_fresh_broker = True
    is_warmed_up = False
    max_rounds = 3
    max_quick_rounds = 1

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        cluster = make_cluster(subject.kind, subject.new_folder())
        try:
            cluster.format()
            cluster.launch()
            create_replicated(cluster, "first", 1)
            started = time.perf_counter()
            create_replicated(cluster, "many", MANY)
            create_seconds = _fill_each(cluster, "many") - started
            cluster.stop()
            started = time.perf_counter()
            cluster.launch()
            start_seconds = _fill_each(cluster, "many") - started
            started = time.perf_counter()
            os.kill(cluster.pids[0], signal.SIGKILL)
            failover_seconds = _fill_each(cluster, "many") - started
            return {"create s": create_seconds, "start s": start_seconds, "failover s": failover_seconds}
        finally:
            discard_cluster(cluster)


def _fill_each(cluster: Cluster, topic: str) -> float:
    """Send a record to every partition; when the last one was acknowledged."""
    from millstream import Producer

    with Producer(bootstrap_of(cluster), delivery_timeout_ms=READY_SECONDS * 1000) as producer:
        sent = [producer.send(topic, b"a record", partition=partition) for partition in range(MANY)]
        for each in sent:
            each.result(READY_SECONDS)
        return time.perf_counter()


def _leader(cluster: Cluster, topic: str) -> int:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        with Connection(cluster.ports[0]) as connection:
            leader = connection.leaders(topic).get(0, -1)
        if leader > 0:
            return leader
        if time.monotonic() > deadline:
            raise WireError(f"{topic} has no leader")
        time.sleep(0.02)
