"""`python -m bench`: both brokers side by side; a table, JSON and plots in bench/results."""

from __future__ import annotations

import datetime
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from bench import machine
from bench.apache_kafka import REPOSITORY, KafkaUnavailable, jars
from bench.ballast import Ballast
from bench.plots import draw
from bench.report import show, write_json, write_markdown
from bench.results import Run
from bench.runner import run_workload
from bench.subjects import APACHE_KAFKA, MILLSTREAM, Subject
from bench.workload import Scale
from bench.workloads import chosen_workloads

RESULTS = REPOSITORY / "bench" / "results"


def _subjects(names: str, folder: Path) -> list[Subject]:
    kinds = [name.strip() for name in names.split(",")]
    for kind in kinds:
        if kind not in (MILLSTREAM, APACHE_KAFKA):
            raise click.BadParameter(f"{kind}: choose from {MILLSTREAM}, {APACHE_KAFKA}")
    labels = [kind if kinds.count(kind) == 1 else f"{kind}-{index + 1}" for index, kind in enumerate(kinds)]
    return [Subject(kind, label, folder) for kind, label in zip(kinds, labels, strict=True)]


@click.command()
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only workloads whose name contains NAME (repeatable)."
)
@click.option("--quick", is_flag=True, help="A row of each kind, small loads, two rounds.")
@click.option("--rounds", type=click.IntRange(1), help="Measurements of each workload (default 5, quick 2).")
@click.option("--factor", type=float, default=1.0, help="Multiplies the size of every load.")
@click.option("--backlog-gb", type=float, help="Size of the cold backlog (default 10, quick 0.5).")
@click.option(
    "--subjects",
    default=f"{MILLSTREAM},{APACHE_KAFKA}",
    show_default=True,
    help="The brokers to compare; the same one twice shows the noise of the machine.",
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Where the brokers write (default .cache/bench)."
)
@click.option("--list", "is_list", is_flag=True, help="Print the names of the workloads.")
@click.option("--limits/--no-limits", default=True, help="Measure the machine's own limits first.")
def main(
    only: tuple[str, ...],
    quick: bool,
    rounds: int | None,
    factor: float,
    backlog_gb: float | None,
    subjects: str,
    data: Path | None,
    is_list: bool,
    limits: bool,
) -> None:
    """Benchmark Millstream beside Apache Kafka on this machine."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    workloads = chosen_workloads(only, is_quick=quick)
    if is_list:
        for workload in workloads:
            console.print(f"{workload.name:32} {workload.title}", highlight=False)
        return
    if not workloads:
        raise click.UsageError("no workload has such a name; --list shows them")
    try:
        jars()
    except KafkaUnavailable as error:
        raise click.ClickException(str(error)) from error
    scale = Scale(quick, factor, backlog_gb if backlog_gb is not None else (0.5 if quick else 10.0))
    repeated = rounds or (2 if quick else 5)
    root = data or REPOSITORY / ".cache" / "bench"
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    compared = _subjects(subjects, folder)
    run = Run(
        tuple(subject.label for subject in compared),
        datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        {"quick": quick, "rounds": repeated, "factor": factor, "only": only, "backlog_gb": scale.backlog_gb},
        machine.describe(),
    )
    started = time.monotonic()

    def report(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    ballast = Ballast(folder)
    try:
        ballast.fill()
        if limits:
            report("the machine's own limits")
            run.limits = machine.limits(folder, 100_000_000 if quick else 500_000_000)
        for number, workload in enumerate(workloads, 1):
            report(f"[{number}/{len(workloads)}, {time.monotonic() - started:.0f} s] {workload.title}")
            run.rows += run_workload(workload, compared, scale, repeated, report, ballast.fill)
    except KeyboardInterrupt:
        report("interrupted: the rows so far follow")
    finally:
        for subject in compared:
            subject.stop_shared()
        ballast.close()
        run.seconds = time.monotonic() - started
        shutil.rmtree(folder, ignore_errors=True)
    path = write_json(run, RESULTS)
    write_markdown(run, RESULTS)
    plots = draw(run, RESULTS)
    show(run, console)
    report(f"{run.seconds:.0f} s; {path} and {', '.join(plot.name for plot in plots) or 'no plots'}")


if __name__ == "__main__":
    main()
