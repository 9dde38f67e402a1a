from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from bench.bars import BARS, Bar, verdicts
from bench.plots import draw
from bench.report import show, write_json, write_markdown
from bench.results import Row, Run
from bench.runner import run_workload
from bench.subjects import APACHE_KAFKA, MILLSTREAM, Subject
from bench.workload import MB_PER_SECOND, P99, Metric, Scale, Skipped, Workload
from bench.workloads import FULL_ONLY, all_workloads, chosen_workloads
from rich.console import Console

LABELS = ("millstream", "apache-kafka")


def row(workload: str, metric: Metric, first: list[float], second: list[float]) -> Row:
    return Row(workload, workload, metric, LABELS, {LABELS[0]: first, LABELS[1]: second})


def verdict_of(title: str, *rows: Row) -> tuple[str, float | None]:
    (verdict,) = [verdict for verdict in verdicts(list(rows)) if verdict.bar.title == title]
    return verdict.state, verdict.worst[1] if verdict.worst else None


def test_ratio_is_of_medians() -> None:
    one = row("replay-16KB", MB_PER_SECOND, [1, 130, 900], [100, 50, 200])
    assert one.ratio == pytest.approx(1.3)
    assert row("x", MB_PER_SECOND, [], [1]).ratio is None


def test_a_bar_is_met_only_if_all_its_rows_are() -> None:
    good, bad = (
        row("replay-16KB", MB_PER_SECOND, [131], [100]),
        row("replay-128KB", MB_PER_SECOND, [129], [100]),
    )
    assert verdict_of("raw replay", good) == ("met", 1.31)
    assert verdict_of("raw replay", good, bad) == ("missed", 1.29)
    assert verdict_of("raw replay") == ("not measured", None)
    failed = Row("replay-16KB", "", MB_PER_SECOND, LABELS, {LABELS[1]: [100]}, {LABELS[0]: "failed: x"})
    assert verdict_of("raw replay", failed) == ("not measured", None)


def test_upper_limits_and_absolute_bars() -> None:
    assert verdict_of("depth 1 p99", row("requests-depth_1", P99, [79], [100]))[0] == "met"
    assert verdict_of("depth 1 p99", row("requests-depth_1", P99, [81], [100]))[0] == "missed"
    idle = Metric("idle MB", "MB")
    assert verdict_of("memory idle, MB", row("memory", idle, [80], [400])) == ("met", 80)
    assert verdict_of("memory idle, MB", row("memory", idle, [81], [400]))[0] == "missed"


def test_every_bar_has_a_workload_that_measures_it() -> None:
    rows = [
        Row(workload.name, workload.title, metric, LABELS)
        for workload in all_workloads()
        for metric in workload.metrics
    ]

    def is_measured(bar: Bar) -> bool:
        return any(bar.covers(one) for one in rows)

    assert [bar.title for bar in BARS if not is_measured(bar)] == []
    names = [workload.name for workload in all_workloads()]
    assert len(names) == len(set(names))


def test_a_quick_run_judges_every_bar_too() -> None:
    quick = chosen_workloads((), is_quick=True)
    assert len(quick) == len(all_workloads()) - len(FULL_ONLY)
    rows = [
        Row(workload.name, workload.title, metric, LABELS)
        for workload in quick
        for metric in workload.metrics
    ]
    assert all(any(bar.covers(one) for one in rows) for bar in BARS)
    assert [workload.name for workload in chosen_workloads(["depth_64"], is_quick=True)] == [
        "requests-depth_64"
    ]


def make_run() -> Run:
    run = Run(LABELS, "2024-01-02T03:04:05+00:00", {"quick": True}, {"cores": 2}, {"loopback TCP": 4000.0})
    run.rows = [
        row("replay-16KB", MB_PER_SECOND, [200, 210, 190], [100, 110, 90]),
        row("requests-depth_1", P99, [150], [200]),
        Row(
            "java-consume-1KB", "", MB_PER_SECOND, LABELS, {LABELS[1]: [3]}, {LABELS[0]: "skipped: no groups"}
        ),
    ]
    return run


def test_json_holds_every_round_and_every_bar(tmp_path: Path) -> None:
    path = write_json(make_run(), tmp_path)
    read = json.loads(path.read_text())
    assert json.loads((tmp_path / "latest.json").read_text()) == read
    assert read["rows"][0]["values"]["millstream"] == [200, 210, 190]
    assert read["rows"][0]["ratio"] == 2
    assert read["rows"][2]["medians"] == {"millstream": None, "apache-kafka": 3}
    states = {bar["title"]: bar["state"] for bar in read["bars"]}
    assert states["raw replay"] == "met"
    assert states["depth 1 p99"] == "met"
    assert states["raw fetch"] == "not measured"
    assert len(states) == len(BARS)


def test_table_shows_ratios_verdicts_and_reasons() -> None:
    out = io.StringIO()
    show(make_run(), Console(file=out, width=130))
    text = out.getvalue()
    assert "2.00" in text
    assert "met" in text
    assert "java-consume-1KB, millstream: skipped: no groups" in text


def test_markdown_has_a_line_for_every_row_and_bar(tmp_path: Path) -> None:
    text = write_markdown(make_run(), tmp_path).read_text()
    assert "| replay-16KB | MB/s | 200.0 ±5% | 100.0 ±10% | 2.00 |" in text
    assert "| java-consume-1KB | MB/s | — | 3.0 |  |" in text
    assert all(f"| {bar.title} | {bar.text()} |" in text for bar in BARS)


def test_plots_are_written(tmp_path: Path) -> None:
    paths = draw(make_run(), tmp_path)
    assert {path.name for path in paths} == {"throughput.png", "latency.png", "ratios.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


class Scripted(Workload):
    """Answers from a list and remembers the order in which the subjects were measured."""

    name = title = "scripted"
    metrics = (MB_PER_SECOND,)

    def __init__(self) -> None:
        self.order: list[str] = []

    def prepare(self, subject: Subject, scale: Scale) -> None:
        if subject.label == "skipping":
            raise Skipped("cannot")

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        self.order.append(subject.label)
        if subject.label == "failing" and len(self.order) > 5:
            raise RuntimeError("broke")
        return {"MB/s": float(len(self.order))}


def test_rounds_are_warmed_up_interleaved_and_survive_failures(tmp_path: Path) -> None:
    workload = Scripted()
    subjects = [
        Subject(MILLSTREAM, "good", tmp_path),
        Subject(APACHE_KAFKA, "failing", tmp_path),
        Subject(APACHE_KAFKA, "skipping", tmp_path),
    ]
    lines: list[str] = []
    settled: list[int] = []
    (result,) = run_workload(
        workload, subjects, Scale(True), 3, lines.append, lambda: settled.append(len(workload.order))
    )
    assert settled == list(range(len(workload.order))), "before each measurement"
    assert workload.order[:6] == ["good", "failing", "failing", "good", "good", "failing"]
    assert result.values == {"failing": [3.0], "good": [4.0, 5.0, 7.0]}
    assert result.notes == {"failing": "failed: RuntimeError: broke", "skipping": "skipped: cannot"}
