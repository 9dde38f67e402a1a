"""The bars: what Millstream's figures must be, as ratios to Apache Kafka in the same run or as absolutes.

A bar covers every row that its pattern and metric select; it is met when all of them meet it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bench.results import Row

RATIO, ABSOLUTE = "ratio", "absolute"


@dataclass(frozen=True, slots=True)
class Bar:
    title: str
    workload: str
    metric: str
    kind: str
    is_minimum: bool
    limit: float

    def covers(self, row: Row) -> bool:
        return self.metric == row.metric.name and fnmatchcase(row.workload, self.workload)

    def value(self, row: Row) -> float | None:
        return row.ratio if self.kind == RATIO else row.first_median

    def is_met(self, row: Row) -> bool | None:
        """None where the row has no figure to judge."""
        value = self.value(row)
        if value is None:
            return None
        return value >= self.limit if self.is_minimum else value <= self.limit

    def text(self) -> str:
        sign = "≥" if self.is_minimum else "≤"
        return f"{sign} {self.limit:g}" + (" x Kafka" if self.kind == RATIO else "")


def _at_least(title: str, workload: str, metric: str, limit: float, kind: str = RATIO) -> Bar:
    return Bar(title, workload, metric, kind, True, limit)


def _at_most(title: str, workload: str, metric: str, limit: float, kind: str = RATIO) -> Bar:
    return Bar(title, workload, metric, kind, False, limit)


BARS = (
    _at_least("produce 100 B", "produce-100B-*", "records/s", 1.1),
    _at_least("produce 1 KB", "produce-1KB-*", "records/s", 1.5),
    _at_least("raw replay", "replay-*", "MB/s", 1.3),
    _at_least("librdkafka consume", "consume-*", "records/s", 0.95),
    _at_least("raw fetch", "fetch-1MB", "MB/s", 1.2),
    _at_most("depth 1 p50", "requests-depth_1", "p50_us", 0.9),
    _at_most("depth 1 p99", "requests-depth_1", "p99_us", 0.8),
    _at_most("depth 1 p99.9", "requests-depth_1", "p99.9_us", 0.4),
    _at_least("depth 64 rate", "requests-depth_64", "requests/s", 4),
    _at_most("depth 64 p99", "requests-depth_64", "p99_us", 0.25),
    _at_most("CPU per GB, raw replay", "replay-*", "cpu/GB", 0.5),
    _at_most("CPU per GB, raw fetch", "fetch-1MB", "cpu/GB", 0.5),
    _at_most("CPU per GB, librdkafka produce", "produce-*", "cpu/GB", 0.5),
    _at_most("CPU per GB, librdkafka consume", "consume-*", "cpu/GB", 0.5),
    _at_most("start to first acknowledged record, seconds", "start", "seconds", 0.5, ABSOLUTE),
    _at_most("start to first acknowledged record", "start", "seconds", 0.2),
    _at_most("memory idle, MB", "memory", "idle MB", 80, ABSOLUTE),
    _at_most("memory after load, MB", "memory", "loaded MB", 200, ABSOLUTE),
    _at_least("100 times larger log beside the small one", "log-100x", "large/small", 0.9, ABSOLUTE),
    _at_most("5,000 partitions: clean start, seconds", "partitions-5000", "start s", 3, ABSOLUTE),
    _at_least("produce over 1,000 of 5,000 partitions", "partitions-5000", "librdkafka k/s", 1.0),
    _at_least("produce over 1,000 of 5,000, raw", "partitions-5000", "raw k/s", 1.0),
    _at_most("10,000 sparse segments: clean start, seconds", "segments-10000", "start s", 2, ABSOLUTE),
    _at_most("lookup in 10,000 segments beside 10", "segments-10000", "many/few", 1.25, ABSOLUTE),
    _at_least("replicated produce 100 B", "replicated-100B", "records/s", 1.3),
    _at_least("replicated produce 1 KB", "replicated-1KB", "records/s", 1.3),
    _at_most("replicated, 1,000 records a second, p99", "replicated-latency", "p99_us", 0.5),
    _at_most("start of three brokers, seconds", "cluster-start", "seconds", 2, ABSOLUTE),
    _at_most("memory of three brokers after load, MB", "cluster-start", "loaded MB", 400, ABSOLUTE),
    _at_most("2,000 partitions on three: create, seconds", "cluster-2000", "create s", 10, ABSOLUTE),
    _at_most("2,000 partitions on three: start, seconds", "cluster-2000", "start s", 10, ABSOLUTE),
    _at_most("2,000 partitions on three: failover, seconds", "cluster-2000", "failover s", 5, ABSOLUTE),
    _at_least("offset commits", "commits-*", "requests/s", 1.0),
    _at_least("transactions", "txn-*", "txn/s", 1.0),
    _at_most("rebalance", "rebalance-*", "median_ms", 1.0),
    _at_most("produce p99 while a cold backlog is read", "cold-backlog", "busy/calm p99", 2, ABSOLUTE),
    _at_most("produce p99 while a compaction runs", "compaction", "busy/calm p99", 2, ABSOLUTE),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar over its rows: met, missed, or not measured in this run."""

    bar: Bar
    rows: tuple[Row, ...]

    @property
    def judged(self) -> list[tuple[Row, float]]:
        return [(row, value) for row in self.rows if (value := self.bar.value(row)) is not None]

    @property
    def state(self) -> str:
        if not self.judged:
            return "not measured"
        return "met" if all(self.bar.is_met(row) for row, _ in self.judged) else "missed"

    @property
    def worst(self) -> tuple[Row, float] | None:
        ordered = sorted(self.judged, key=lambda pair: pair[1], reverse=not self.bar.is_minimum)
        return ordered[0] if ordered else None

    def as_json(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "title": self.bar.title,
            "limit": self.bar.text(),
            "state": self.state,
            "worst": None if worst is None else {"workload": worst[0].workload, "value": worst[1]},
            "rows": {row.workload: value for row, value in self.judged},
        }


def verdicts(rows: list[Row]) -> list[Verdict]:
    return [Verdict(bar, tuple(row for row in rows if bar.covers(row))) for bar in BARS]
