"""Progress of a running query: what a batch did, as a line for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

OUT = "millstream_out"
"""The name of the observation that counts the rows written."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch as Spark reports it. `lag` is how many records the sources had not given yet."""

    query: str
    number: int
    rows_in: int
    rows_out: int | None
    lag: int
    seconds: float
    watermark: str | None

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Self:
        observed = (progress.get("observedMetrics") or {}).get(OUT)
        return cls(
            progress["name"],
            progress["batchId"],
            progress["numInputRows"],
            None if observed is None else _field(observed, "rows"),
            sum(_lag(source) for source in progress["sources"]),
            progress.get("batchDuration", 0) / 1000,
            (progress.get("eventTime") or {}).get("watermark"),
        )

    @property
    def line(self) -> str:
        out = "" if self.rows_out is None else f"{self.rows_out:,} out, "
        time = "" if self.watermark is None else f", watermark {self.watermark}"
        return (
            f"{self.query}: batch {self.number}, {self.rows_in:,} rows in, {out}"
            f"lag {self.lag:,}, {self.seconds:.1f} s{time}"
        )


def ends(progress: Mapping[str, Any]) -> Iterator[Any]:
    """Where each source of a batch ended, as Spark has it."""
    for source in progress["sources"]:
        if source.get("endOffset") is not None:
            yield source["endOffset"]


def _lag(source: Mapping[str, Any]) -> int:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return sum(max(0, last - end.get(place, last)) for place, last in latest.items())


def _offsets(given: Any) -> dict[tuple[str, str], int]:
    """{"topic": {"0": 12}}, as text or not, by topic and partition; anything else has none."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    if not isinstance(given, Mapping):
        return {}
    return {
        (topic, partition): int(offset)
        for topic, partitions in given.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
    }


def _field(row: Any, name: str) -> int:
    return int(row[name])
