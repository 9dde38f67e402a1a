"""Figures of both connectors: measured turn by turn, printed as medians with their ratio."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import median

Measure = Callable[[str], float]
"""A figure for one connector."""


def head(columns: Iterable[str], rounds: int) -> None:
    print(f"load average {os.getloadavg()[0]:.1f}, local[2], {rounds} rounds")
    print(f"{'':30}" + "".join(f"{column:>15}" for column in columns) + f"{'ratio':>8}{'bar':>8}")


def lines(
    measures: Mapping[str, Measure],
    columns: Iterable[str],
    bars: Mapping[str, float],
    rounds: int,
    *,
    is_higher_better: bool = True,
) -> None:
    """A line for each measure: the median of each column, and the ratio of the first one to the last.

    Columns take turns at being first, so that none always has the files to write out of the same other one.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    columns = list(columns)
    for turn in range(rounds + 1):
        first = turn % len(columns)
        for name, measure in measures.items():
            for column in columns[first:] + columns[:first]:
                figure = measure(column)
                if turn:
                    found[name, column].append(figure)
    for name in measures:
        figures = [median(found[name, column]) for column in columns]
        ratio, bar = figures[0] / figures[-1], bars[name.partition(",")[0]]
        is_met = ratio >= bar if is_higher_better else ratio <= bar
        line = "".join(f"{figure:15,.0f}" for figure in figures)
        print(f"{name:30}{line}{ratio:8.2f}{bar:8.1f}  {'met' if is_met else 'missed'}", flush=True)
