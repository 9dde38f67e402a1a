"""Runs workloads over the subjects: warmed up, interleaved, repeated."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from bench.results import Row
from bench.subjects import Subject
from bench.workload import Scale, Skipped, Workload

PAUSE_SECONDS = 0.2
"""Between measurements, for the other broker's garbage collection and deleted files to end."""


def run_workload(
    workload: Workload,
    subjects: Sequence[Subject],
    scale: Scale,
    rounds: int,
    report: Callable[[str], None],
    settle: Callable[[], None],
) -> list[Row]:
    """All rounds of one workload; the order of the subjects turns round by round.

    `settle` is called before each measurement, to make the machine the same for all.

    A subject that cannot run it, or fails, keeps the reason as a note on its rows; the others go on.
    """
    labels = tuple(subject.label for subject in subjects)
    rows = [Row(workload.name, workload.title, metric, labels) for metric in workload.metrics]
    if workload.uses_fresh_broker:
        for subject in subjects:
            subject.stop_shared()
    notes: dict[str, str] = {}

    def attempt(subject: Subject, step: Callable[[], None]) -> bool:
        try:
            step()
        except Skipped as reason:
            notes[subject.label] = f"skipped: {reason}"
        except Exception as error:
            notes[subject.label] = f"failed: {type(error).__name__}: {str(error)[:300]}"
            report(traceback.format_exc())
            if subject.has_shared or workload.uses_fresh_broker:
                report(subject.shared().log_tail(1000))
            subject.stop_shared()
        return subject.label not in notes

    def measure(subject: Subject, *, counts: bool) -> None:
        started = time.perf_counter()
        figures = workload.measure(subject, scale if counts else scale.warm_up())
        if counts:
            for row in rows:
                row.values.setdefault(subject.label, []).append(float(figures[row.metric.name]))
        shown = ", ".join(
            f"{row.metric.name} {figures[row.metric.name]:.{row.metric.digits}f}" for row in rows
        )
        kind = "" if counts else "warm-up: "
        report(f"  {subject.label}: {kind}{shown}  [{time.perf_counter() - started:.1f} s]")

    prepared = [
        subject for subject in subjects if attempt(subject, partial(workload.prepare, subject, scale))
    ]
    passes = ([False] if workload.is_warmed_up else []) + [True] * workload.rounds(rounds, scale)
    for number, counts in enumerate(passes):
        turn = prepared if number % 2 == 0 else prepared[::-1]
        for subject in turn:
            if subject.label not in notes:
                time.sleep(PAUSE_SECONDS)
                settle()
                attempt(subject, partial(measure, subject, counts=counts))
    for subject in prepared:
        if subject.has_shared or workload.uses_fresh_broker:
            attempt(subject, partial(workload.finish, subject))
    for row in rows:
        row.notes = dict(notes)
    return rows
