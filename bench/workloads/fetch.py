"""Raw fetches of 1 MB from logs in the page cache, and the same from a log 100 times larger."""

from __future__ import annotations

from collections.abc import Mapping

from bench.raw import Fetcher
from bench.subjects import Subject
from bench.wire import Connection
from bench.workload import CPU_PER_GB, MB_PER_SECOND, CpuClock, Metric, Scale, Workload
from bench.workloads.librdkafka import fill

MAX_BYTES = 1 << 20


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
    """Does the speed of reading depend on how much lies in the log? Both logs are in the page cache."""

    name = "log-100x"
    title = "raw fetches from a small log and from one 100 times larger"
    metrics = (
        Metric("small MB/s", "MB/s", is_higher_better=True),
        Metric("large MB/s", "MB/s", is_higher_better=True),
        Metric("large/small", "x", is_higher_better=True, digits=2),
    )
    max_rounds = 5

    def __init__(self) -> None:
        self._ends: dict[str, tuple[int, int]] = {}

    def prepare(self, subject: Subject, scale: Scale) -> None:
        broker = subject.shared()
        small = scale.count(quick=8e6, full=20e6)
        with Connection(broker.port) as connection:
            for topic in ("log-small", "log-large"):
                connection.create_topic(topic, 1, {"segment.bytes": str(256 << 20)})
        self._ends[subject.label] = (
            fill(broker, "log-small", 1000, 1, small),
            fill(broker, "log-large", 1000, 1, 100 * small),
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        rates = []
        wanted = 100 * scale.count(quick=8e6, full=20e6)
        for topic, end in zip(("log-small", "log-large"), self._ends[subject.label], strict=True):
            fetcher = Fetcher(broker.port, topic, 0, max_bytes=MAX_BYTES)
            try:
                read = fetcher.read(0, end, at_least_bytes=wanted)
            finally:
                fetcher.close()
            rates.append(read.bytes / read.seconds / 1e6)
        small, large = rates
        return {"small MB/s": small, "large MB/s": large, "large/small": large / small}

    def finish(self, subject: Subject) -> None:
        with Connection(subject.shared().port) as connection:
            connection.delete_topics(["log-small", "log-large"])
