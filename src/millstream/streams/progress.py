"""Progress of a running query: what a batch did, as a line for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from millstream.streams.offsets import Offsets, from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

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


def reports(query: StreamingQuery, seen: int) -> list[dict[str, Any]]:
    """What Spark reports of batches after the one that was seen last, oldest first. It keeps a hundred
    reports, and to fetch them all each time would cost more than a batch."""
    query_of_jvm: Any = query._jsq
    kept = query_of_jvm.recentProgress()
    found: list[dict[str, Any]] = []
    for number in range(len(kept) - 1, -1, -1):
        if kept[number].batchId() <= seen:
            break
        found.insert(0, json.loads(kept[number].json()))
    return found


def ends(progress: Mapping[str, Any]) -> Iterator[Any]:
    """Where each source of a batch ended, as Spark has it."""
    for source in progress["sources"]:
        if source.get("endOffset") is not None:
            yield source["endOffset"]


def _lag(source: Mapping[str, Any]) -> int:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return sum(max(0, last - end.get(place, last)) for place, last in latest.items())


def _offsets(given: Any) -> Offsets:
    """A source's offsets; those of another kind of source are none."""
    try:
        return from_json(given)
    except ValueError:
        return {}


def _field(row: Any, name: str) -> int:
    return int(row[name])
