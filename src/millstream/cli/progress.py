"""A progress bar on stderr for work that takes long, shown to people only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

SHOW_AFTER_SECONDS = 0.5


class Progress:
    """Counts work; draws a bar once it has taken half a second, if stderr is a terminal.

    With `quiet` it draws nothing: what is printed meanwhile would tear it apart.
    """

    def __init__(self, what: str, total: int | None, unit: str, *, quiet: bool = False) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0
        self._is_shown = not quiet and sys.stderr.isatty()
        self._started = time.monotonic()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        self._done += amount
        if not self._is_shown:
            return
        if self._bar is None:
            if time.monotonic() - self._started < SHOW_AFTER_SECONDS:
                return
            self._open()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        columns = [TextColumn("{task.description}")]
        if self._total is None:
            bar = RichProgress(
                *columns,
                TextColumn("{task.completed:,} " + self._unit),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        else:
            bar = RichProgress(
                *columns,
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self._unit),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        bar.start()
        self._bar = bar
        self._task = bar.add_task(self._what, total=self._total, completed=self._done)
