"""Raw fetches of 1 MB from logs in the page cache, and the same from a log 100 times larger."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.raw import Fetcher
from bench.subjects import Subject
from bench.wire import Connection
from bench.workload import CPU_PER_GB, MB_PER_SECOND, CpuClock, Metric, Scale, Workload
from bench.workloads.librdkafka import fill

MAX_BYTES = 1 << 20
TIMES = 100
LOGS = {"log-small": TIMES, "log-large": 1}
"""Topics by their count of partitions."""


class RawFetch(Workload):
    name = "fetch-1MB"
    title = "raw fetches of 1 MB, one in flight, one connection"
    metrics = (MB_PER_SECOND, CPU_PER_GB)

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    def prepare(self, subject: Subject, scale: Scale) -> None:
        broker = subject.shared()
        with Connection(broker.port) as connection:
            connection.create_topic(self.name, 1)
        self._ends[subject.label] = fill(broker, self.name, 100, 1, scale.count(quick=100e6, full=400e6))

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        fetcher = Fetcher(broker.port, self.name, 0, max_bytes=MAX_BYTES)
        try:
            fetcher.fetch(0)
            cpu = CpuClock(broker)
            read = fetcher.read(
                0, self._ends[subject.label], at_least_bytes=scale.count(quick=1.2e9, full=5e9)
            )
            return {"MB/s": read.bytes / read.seconds / 1e6, "cpu/GB": cpu.per_gb(read.bytes)}
        finally:
            fetcher.close()

    def finish(self, subject: Subject) -> None:
        with Connection(subject.shared().port) as connection:
            connection.delete_topics([self.name])


class LargeLog(Workload):
    """Does the speed of reading depend on how much lies in the log?

    A hundred small logs are read one after another, then one log as large as all of them: the same bytes
    in the page cache, and as little of them in the processor's caches.
    """

    name = "log-100x"
    title = f"raw fetches from {TIMES} small logs, and from one {TIMES} times larger"
    metrics = (
        Metric("small MB/s", "MB/s", is_higher_better=True),
        Metric("large MB/s", "MB/s", is_higher_better=True),
        Metric("large/small", "x", is_higher_better=True, digits=2),
    )
    max_rounds = 5

    def prepare(self, subject: Subject, scale: Scale) -> None:
        broker = subject.shared()
        total = TIMES * scale.count(quick=6e6, full=20e6)
        with Connection(broker.port) as connection:
            for topic, partitions in LOGS.items():
                connection.create_topic(topic, partitions, {"segment.bytes": str(256 << 20)})
                fill(broker, topic, 1000, partitions, total)

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        small, large = (_read_all(broker.port, topic, partitions) for topic, partitions in LOGS.items())
        return {"small MB/s": small, "large MB/s": large, "large/small": large / small}

    def finish(self, subject: Subject) -> None:
        with Connection(subject.shared().port) as connection:
            connection.delete_topics(list(LOGS))


def _read_all(port: int, topic: str, partitions: int) -> float:
    """Every partition once from its start to its end, over one connection; MB/s."""
    with Connection(port) as connection:
        ends = connection.end_offsets(topic, partitions)
    fetcher = Fetcher(port, topic, 0, max_bytes=MAX_BYTES)
    try:
        total, started = 0, time.perf_counter()
        for partition, end in enumerate(ends):
            fetcher.turn_to(partition)
            total += fetcher.read(0, end).bytes
        return total / (time.perf_counter() - started) / 1e6
    finally:
        fetcher.close()
