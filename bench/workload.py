"""What a workload is: a name, what it measures, and one measurement of one broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bench.process import Usage
from bench.subjects import Broker, Subject
from bench.wire import Connection

_topic_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    is_higher_better: bool = False
    digits: int = 1


MB_PER_SECOND = Metric("MB/s", "MB/s", is_higher_better=True)
RECORDS_PER_SECOND = Metric("records/s", "k/s", is_higher_better=True)
REQUESTS_PER_SECOND = Metric("requests/s", "k/s", is_higher_better=True, digits=2)
CPU_PER_GB = Metric("cpu/GB", "s/GB", digits=2)
CPU_PER_MILLION = Metric("cpu/Mreq", "s/M", digits=1)
P50, P99, P999 = (
    Metric("p50_us", "µs", digits=0),
    Metric("p99_us", "µs", digits=0),
    Metric("p99.9_us", "µs", digits=0),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work one measurement does."""

    is_quick: bool
    factor: float = 1.0
    backlog_gb: float = 10.0

    def count(self, *, quick: float, full: float) -> int:
        return max(1, int((quick if self.is_quick else full) * self.factor))

    def of(self, quick_and_full: tuple[float, float]) -> float:
        return quick_and_full[0 if self.is_quick else 1]

    def warm_up(self) -> Scale:
        return Scale(self.is_quick, self.factor / 2, self.backlog_gb)


class Skipped(Exception):
    """This broker cannot run the workload; the reason stands in the row."""


class Workload:
    """Base of all workloads. `measure` is called once for each subject and round, subjects interleaved.

    `is_warmed_up`: one more measurement, not counted, comes first. `max_rounds` and `max_quick_rounds` bound
    the rounds of the expensive ones. `uses_fresh_broker`: the shared brokers are stopped before it.
    """

    name: str
    title: str
    metrics: tuple[Metric, ...]
    is_warmed_up = True
    uses_fresh_broker = False
    max_rounds = 99
    max_quick_rounds = 99

    def rounds(self, wanted: int, scale: Scale) -> int:
        return min(wanted, self.max_quick_rounds if scale.is_quick else self.max_rounds)

    def prepare(self, subject: Subject, scale: Scale) -> None:
        """What is needed before the first round and is not measured."""

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        raise NotImplementedError

    def finish(self, subject: Subject) -> None:
        """Give back what `prepare` made."""


@contextmanager
def topic_on(broker: Broker, partitions: int, configs: Mapping[str, str] | None = None) -> Iterator[str]:
    """A new topic, deleted at the end so that its unwritten pages are never flushed."""
    topic = f"bench-{next(_topic_numbers):05}"
    with Connection(broker.port, timeout_seconds=120) as connection:
        connection.create_topic(topic, partitions, configs)
    try:
        yield topic
    finally:
        with Connection(broker.port, timeout_seconds=120) as connection:
            connection.delete_topics([topic])


class CpuClock:
    """CPU seconds of a broker between two moments."""

    def __init__(self, broker: Broker) -> None:
        self._pid = broker.pid
        self._before = Usage.of(self._pid)

    def seconds(self) -> float:
        return Usage.of(self._pid).since(self._before)

    def per_gb(self, transferred_bytes: float) -> float:
        return self.seconds() / (transferred_bytes / 1e9)

    def per_million(self, requests: int) -> float:
        return self.seconds() / (requests / 1e6)
