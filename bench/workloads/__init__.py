"""Every workload, in the order of the report: those on the shared brokers first."""

from __future__ import annotations

from bench.workload import Workload
from bench.workloads.fetch import LargeLog, RawFetch
from bench.workloads.interference import ColdBacklog, Compaction
from bench.workloads.java_tools import JavaConsume, JavaProduce
from bench.workloads.librdkafka import LibrdkafkaConsume, LibrdkafkaProduce
from bench.workloads.partitions import ManyPartitions
from bench.workloads.replay import Replay
from bench.workloads.requests import GroupCommit, OneRecordRequests
from bench.workloads.start import Memory, StartToFirstAck


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
        StartToFirstAck(),
        Memory(),
        ManyPartitions(),
        ColdBacklog(),
        Compaction(),
    ]
