"""The run for a person: a table of all rows, then the bars with met or missed."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.bars import verdicts
from bench.results import Row, Run


def write_json(run: Run, folder: Path) -> Path:
    """`<time>.json` of this run, and the same as `latest.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**run.as_json(), "bars": [verdict.as_json() for verdict in verdicts(run.rows)]}
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    path = folder / f"{run.started_at.replace(':', '')}.json"
    path.write_text(text)
    (folder / "latest.json").write_text(text)
    return path


def write_markdown(run: Run, folder: Path) -> Path:
    """The same tables for a document: `latest.md`."""
    first, second = run.labels[0], run.labels[-1]
    lines = [f"| workload | metric | {first} | {second} | ratio |", "|---|---|---:|---:|---:|"]
    for row in run.rows:
        cells = [_plain(row, label) for label in (first, second)]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.workload} | {row.metric.name} | {cells[0]} | {cells[1]} | {ratio} |")
    lines += [f"\n{note}" for note in _notes(run.rows)]
    lines += ["", "| bar | wanted | worst row | of | |", "|---|---|---:|---|---|"]
    for verdict in verdicts(run.rows):
        worst = verdict.worst
        value, name = ("", "") if worst is None else (f"{worst[1]:.2f}", worst[0].workload)
        lines.append(f"| {verdict.bar.title} | {verdict.bar.text()} | {value} | {name} | {verdict.state} |")
    lines += ["", "| the machine's own limits | MB/s |", "|---|---:|"]
    lines += [f"| {name} | {value:,.0f} |" for name, value in run.limits.items()]
    path = folder / "latest.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def show(run: Run, console: Console) -> None:
    console.print(_rows_table(run))
    for line in _notes(run.rows):
        console.print(line, style="yellow", highlight=False, markup=False)
    if run.limits:
        table = Table("the machine's own limits", "MB/s", title_justify="left")
        table.columns[1].justify = "right"
        for name, value in run.limits.items():
            table.add_row(name, f"{value:,.0f}")
        console.print(table)
    if len(run.labels) == 2:
        console.print(_bars_table(run))


def _rows_table(run: Run) -> Table:
    table = Table(title="medians (± half the range over the rounds)")
    table.add_column("workload")
    table.add_column("metric")
    for label in run.labels:
        table.add_column(label, justify="right")
    table.add_column("ratio", justify="right")
    last = ""
    for row in run.rows:
        cells = [_cell(row, label) for label in run.labels]
        ratio = "" if row.ratio is None else _colour(f"{row.ratio:.2f}", row)
        name = row.workload if row.workload != last else ""
        if name and last:
            table.add_section()
        table.add_row(name, f"{row.metric.name}", *cells, ratio)
        last = row.workload
    return table


def _plain(row: Row, label: str) -> str:
    value, around = row.median_of(label), row.spread_of(label)
    if value is None or around is None:
        return "—"
    many = f" ±{around:.0%}" if len(row.values[label]) > 1 else ""
    return f"{value:,.{row.metric.digits}f}{many}"


def _cell(row: Row, label: str) -> str:
    value, around = row.median_of(label), row.spread_of(label)
    if value is None or around is None:
        return "—"
    unit = "" if row.metric.unit in row.metric.name else f" {row.metric.unit}"
    many = f" ±{around:.0%}" if len(row.values[label]) > 1 else ""
    return f"{value:,.{row.metric.digits}f}{unit}[dim]{many}[/dim]"


def _colour(text: str, row: Row) -> str:
    ratio = row.ratio or 1.0
    is_better = ratio >= 1 if row.metric.is_higher_better else ratio <= 1
    return f"[green]{text}[/green]" if is_better else f"[red]{text}[/red]"


def _notes(rows: list[Row]) -> list[str]:
    seen = {f"{row.workload}, {label}: {note}": None for row in rows for label, note in row.notes.items()}
    return list(seen)


def _bars_table(run: Run) -> Table:
    table = Table(title=f"bars ({run.labels[0]} beside {run.labels[1]})")
    for name in ("bar", "wanted"):
        table.add_column(name)
    table.add_column("worst row", justify="right")
    table.add_column("of")
    table.add_column("")
    for verdict in verdicts(run.rows):
        worst = verdict.worst
        colour = {"met": "green", "missed": "red"}.get(verdict.state, "dim")
        met = sum(bool(verdict.bar.is_met(row)) for row, _ in verdict.judged)
        detail = f" ({met} of {len(verdict.judged)} rows)" if len(verdict.judged) > 1 else ""
        table.add_row(
            verdict.bar.title,
            verdict.bar.text(),
            "" if worst is None else f"{worst[1]:.2f}",
            "" if worst is None else worst[0].workload,
            f"[{colour}]{verdict.state}{detail}[/{colour}]",
        )
    return table
