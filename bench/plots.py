"""Plots of one run, as PNG files beside its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.results import Row, Run

COLOURS = ("#2f6f8f", "#c9772b")

FIGURES = (
    ("throughput", "throughput, MB/s (more is better)", "MB/s", None),
    ("cpu", "broker CPU seconds per GB (less is better)", "cpu/GB", None),
    ("latency", "one-record requests, microseconds (less is better, logarithmic)", None, "requests-"),
)


def draw(run: Run, folder: Path) -> list[Path]:
    """Write the plots that the run has rows for; the paths written."""
    import matplotlib as mpl

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, title, metric, prefix in FIGURES:
        rows = [
            row
            for row in run.rows
            if row.first_median is not None
            and ((metric and row.metric.name == metric) or (prefix and _is_latency(row, prefix)))
        ]
        if rows:
            path = folder / f"{name}.png"
            _bars(rows, run.labels, title, path, is_logarithmic=name == "latency")
            paths.append(path)
    if ratios := [row for row in run.rows if row.ratio is not None]:
        path = folder / "ratios.png"
        _ratios(ratios, path)
        paths.append(path)
    return paths


def _is_latency(row: Row, prefix: str) -> bool:
    return row.workload.startswith(prefix) and row.metric.name.endswith("_us")


def _bars(
    rows: Sequence[Row], labels: Sequence[str], title: str, path: Path, *, is_logarithmic: bool
) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.42 * len(rows)))
    height = 0.8 / len(labels)
    for index, label in enumerate(labels):
        values = [row.median_of(label) or 0 for row in rows]
        low = [(row.median_of(label) or 0) - min(row.values.get(label, [0])) for row in rows]
        high = [max(row.values.get(label, [0])) - (row.median_of(label) or 0) for row in rows]
        places = [place + (index - (len(labels) - 1) / 2) * height for place in range(len(rows))]
        axes.barh(
            places, values, height, xerr=(low, high), label=label, color=COLOURS[index % 2], ecolor="#444444"
        )
    with_metric = len({row.metric.name for row in rows}) > 1
    names = [f"{row.workload} {row.metric.name}" if with_metric else row.workload for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    if is_logarithmic:
        axes.set_xscale("log")
    axes.set_title(title)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _ratios(rows: Sequence[Row], path: Path) -> None:
    """How many times better (right) or worse (left) the first subject is, whatever the metric's direction."""
    from matplotlib import pyplot

    better = [(row.ratio or 1) if row.metric.is_higher_better else 1 / (row.ratio or 1) for row in rows]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.22 * len(rows)))
    axes.barh(
        range(len(rows)),
        [value - 1 for value in better],
        left=1,
        color=[COLOURS[0] if value >= 1 else COLOURS[1] for value in better],
    )
    axes.set_xscale("log")
    axes.axvline(1, color="#444444", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row.workload} {row.metric.name}" for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_title(f"{rows[0].labels[0]} beside {rows[0].labels[1]}: times better")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
