"""Kafka's own perf tools, with the Java client in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bench.apache_kafka import run_tool
from bench.subjects import Subject
from bench.wire import FIND_COORDINATOR, JOIN_GROUP, Connection
from bench.workload import (
    CPU_PER_GB,
    MB_PER_SECOND,
    RECORDS_PER_SECOND,
    CpuClock,
    Metric,
    Scale,
    Skipped,
    Workload,
    topic_on,
)
from bench.workloads.librdkafka import fill, size_name

PARTITIONS = 12
TOOL_SECONDS = 300
_RESULT = re.compile(
    r"(\d+) steady state records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).*?([\d.]+) ms 99th", re.DOTALL
)


class JavaProduce(Workload):
    metrics = (RECORDS_PER_SECOND, MB_PER_SECOND, Metric("p99_ms", "ms", digits=0), CPU_PER_GB)
    is_warmed_up = False
    max_rounds = 5
    max_quick_rounds = 1

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes
        self.name = f"java-produce-{size_name(value_bytes)}"
        self.title = (
            f"Kafka's ProducerPerformance, {size_name(value_bytes)}, acks=all, {PARTITIONS} partitions"
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        records = (
            scale.count(quick=1_000_000, full=4_000_000)
            if self.value_bytes < 1000
            else scale.count(quick=200_000, full=800_000)
        )
        warm_up = records // 4
        with topic_on(broker, PARTITIONS) as topic:
            cpu = CpuClock(broker)
            done = run_tool(
                "org.apache.kafka.tools.ProducerPerformance",
                [
                    *("--bootstrap-server", broker.bootstrap, "--topic", topic),
                    *("--num-records", str(records + warm_up), "--record-size", str(self.value_bytes)),
                    *(
                        "--throughput",
                        "-1",
                        "--warmup-records",
                        str(warm_up),
                        "--command-property",
                        "acks=all",
                    ),
                ],
                timeout_seconds=TOOL_SECONDS,
                heap="512m",
            )
            used_seconds = cpu.seconds()
        lines = done.stdout.decode().strip().splitlines()
        found = _RESULT.search(lines[-1]) if lines and done.returncode == 0 else None
        if found is None or int(found[1]) != records:
            raise RuntimeError(f"ProducerPerformance failed: {(done.stdout + done.stderr).decode()[-500:]}")
        rate, p99_ms = float(found[2]), float(found[4])
        return {
            "records/s": rate / 1e3,
            "MB/s": rate * self.value_bytes / 1e6,
            "p99_ms": p99_ms,
            "cpu/GB": used_seconds / ((records + warm_up) * self.value_bytes / 1e9),
        }


class JavaConsume(Workload):
    """ConsumerPerformance joins a group, so the broker must coordinate groups."""

    name = "java-consume-1KB"
    title = f"Kafka's ConsumerPerformance, 1KB, {PARTITIONS} partitions"
    metrics = (RECORDS_PER_SECOND, MB_PER_SECOND, CPU_PER_GB)
    is_warmed_up = False
    max_rounds = 5
    max_quick_rounds = 1

    def __init__(self) -> None:
        self._records: dict[str, int] = {}

    def prepare(self, subject: Subject, scale: Scale) -> None:
        broker = subject.shared()
        with Connection(broker.port) as connection:
            if not {FIND_COORDINATOR, JOIN_GROUP} <= connection.supported_apis().keys():
                raise Skipped(
                    "the broker does not coordinate consumer groups (FindCoordinator, JoinGroup) yet"
                )
            connection.create_topic(self.name, PARTITIONS)
        self._records[subject.label] = fill(
            broker, self.name, 1000, PARTITIONS, scale.count(quick=400e6, full=1600e6)
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        records = self._records[subject.label]
        cpu = CpuClock(broker)
        done = run_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            [
                *("--bootstrap-server", broker.bootstrap, "--topic", self.name),
                *("--num-records", str(records), "--timeout", "20000", "--hide-header"),
            ],
            timeout_seconds=TOOL_SECONDS,
            heap="512m",
        )
        used_seconds = cpu.seconds()
        fields = done.stdout.decode().strip().splitlines()[-1].split(", ") if done.stdout else []
        if done.returncode != 0 or len(fields) < 10:
            raise RuntimeError(f"ConsumerPerformance failed: {(done.stdout + done.stderr).decode()[-500:]}")
        fetched, fetch_seconds = int(fields[4]), int(fields[7]) / 1e3
        return {
            "records/s": fetched / fetch_seconds / 1e3,
            "MB/s": fetched * 1000 / fetch_seconds / 1e6,
            "cpu/GB": used_seconds / (fetched * 1000 / 1e9),
        }

    def finish(self, subject: Subject) -> None:
        if self._records.pop(subject.label, None) is not None:
            with Connection(subject.shared().port) as connection:
                connection.delete_topics([self.name])
