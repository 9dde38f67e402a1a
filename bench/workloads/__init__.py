"""Every workload, in the order of the report: those on the shared brokers first."""

from __future__ import annotations

from collections.abc import Sequence

from bench.workload import Workload
from bench.workloads.cluster import ClusterPartitions, ClusterStart, ReplicatedLatency, ReplicatedProduce
from bench.workloads.fetch import LargeLog, RawFetch
from bench.workloads.groups import Commits, Rebalance
from bench.workloads.interference import ColdBacklog, Compaction
from bench.workloads.java_tools import JavaConsume, JavaProduce
from bench.workloads.librdkafka import LibrdkafkaConsume, LibrdkafkaProduce
from bench.workloads.partitions import ManyPartitions
from bench.workloads.replay import Replay
from bench.workloads.requests import GroupCommit, OneRecordRequests
from bench.workloads.segments import ManySegments
from bench.workloads.start import Memory, StartToFirstAck
from bench.workloads.transactions import LibrdkafkaTransactions, Transactions

FULL_ONLY = {
    "produce-100B-acks_all-1p",
    "produce-100B-acks_1-12p",
    "produce-1KB-acks_1-12p",
    "produce-1KB-acks_all-1p",
    "produce-1KB-acks_1-12p-lz4",
    "consume-100B-12p",
    "consume-1KB-1p",
    "consume-1KB-12p-lz4",
    "java-produce-100B",
    "requests-depth_1-64c",
    "group_commit-1c_x_1",
    "txn-100",
    "txn-librdkafka-1",
    "txn-librdkafka-100",
}
"""Left out of a quick run, which has a row of each kind."""


def chosen_workloads(parts: Sequence[str], *, is_quick: bool) -> list[Workload]:
    """Those with one of the parts in their name; without parts all, or the quick run's."""
    if parts:
        return [workload for workload in all_workloads() if any(part in workload.name for part in parts)]
    return [workload for workload in all_workloads() if not (is_quick and workload.name in FULL_ONLY)]


def all_workloads() -> list[Workload]:
    return [
        *(
            LibrdkafkaProduce(size, acks, partitions)
            for size in (100, 1000)
            for acks in ("1", "all")
            for partitions in (1, 12)
        ),
        *(LibrdkafkaProduce(size, "1", 12, "lz4") for size in (100, 1000)),
        *(LibrdkafkaConsume(size, partitions) for size in (100, 1000) for partitions in (1, 12)),
        *(LibrdkafkaConsume(size, 12, "lz4") for size in (100, 1000)),
        JavaProduce(100),
        JavaProduce(1000),
        JavaConsume(),
        Replay(16_000),
        Replay(128_000),
        RawFetch(),
        LargeLog(),
        OneRecordRequests(1),
        OneRecordRequests(64),
        OneRecordRequests(1, 64),
        GroupCommit(1, 1),
        GroupCommit(4, 16),
        Commits(1),
        Commits(16),
        Rebalance(10),
        Rebalance(100),
        *(Transactions(records) for records in (1, 10, 100)),
        Transactions(1, 16),
        *(LibrdkafkaTransactions(records) for records in (1, 10, 100)),
        StartToFirstAck(),
        Memory(),
        ManyPartitions(),
        ManySegments(),
        ReplicatedProduce(100),
        ReplicatedProduce(1000),
        ReplicatedLatency(),
        ClusterStart(),
        ClusterPartitions(),
        ColdBacklog(),
        Compaction(),
    ]
