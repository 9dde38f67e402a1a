"""The few statistics the benchmarks use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

__all__ = ["Latencies", "median", "percentile", "spread"]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the (ascending) values do not exceed."""
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[min(max(int(rank), 1), len(ordered)) - 1]


def spread(values: Sequence[float]) -> float:
    """Half the range, as a part of the median: the ± of a few repeated rounds."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


class Latencies:
    """Latencies of many requests; several answered at once are one weighted entry."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []
        self.count = 0

    def add(self, nanoseconds: int, count: int = 1) -> None:
        self._entries.append((nanoseconds, count))
        self.count += count

    def extend(self, nanoseconds: Iterable[int]) -> None:
        for value in nanoseconds:
            self.add(value)

    def percentiles_us(self, *percents: float) -> list[float]:
        """Microseconds at each of the (ascending) percents."""
        if not self._entries:
            raise ValueError("no latencies")
        ordered = sorted(self._entries)
        found: list[float] = []
        seen = 0
        entries = iter(ordered)
        value = 0
        for percent in percents:
            rank = min(max(int(-(-self.count * percent // 100)), 1), self.count)
            while seen < rank:
                value, count = next(entries)
                seen += count
            found.append(value / 1000)
        return found

    def summary_us(self) -> dict[str, float]:
        p50, p99, p999 = self.percentiles_us(50, 99, 99.9)
        return {"p50_us": p50, "p99_us": p99, "p99.9_us": p999}
