"""The figures of one run, and their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.stats import median, spread
from bench.workload import Metric


@dataclass(slots=True)
class Row:
    """One metric of one workload: a value for each round, by the subject's label."""

    workload: str
    title: str
    metric: Metric
    labels: tuple[str, ...]
    values: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def median_of(self, label: str) -> float | None:
        values = self.values.get(label)
        return median(values) if values else None

    def spread_of(self, label: str) -> float | None:
        values = self.values.get(label)
        return spread(values) if values else None

    @property
    def first_median(self) -> float | None:
        return self.median_of(self.labels[0])

    @property
    def ratio(self) -> float | None:
        """The first subject's median over the second's."""
        if len(self.labels) < 2:
            return None
        first, second = self.median_of(self.labels[0]), self.median_of(self.labels[1])
        return first / second if first is not None and second else None

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "title": self.title,
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "is_higher_better": self.metric.is_higher_better,
            "values": self.values,
            "medians": {label: self.median_of(label) for label in self.labels},
            "spreads": {label: self.spread_of(label) for label in self.labels},
            "ratio": self.ratio,
            "notes": self.notes,
        }


@dataclass(slots=True)
class Run:
    """Everything one invocation measured."""

    labels: tuple[str, ...]
    started_at: str
    options: dict[str, Any]
    machine: dict[str, Any]
    limits: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "started_at": self.started_at,
            "seconds": round(self.seconds, 1),
            "labels": self.labels,
            "options": self.options,
            "machine": self.machine,
            "limits": self.limits,
            "rows": [row.as_json() for row in self.rows],
        }
