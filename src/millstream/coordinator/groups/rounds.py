"""Work over all groups of a shard, which may be many: a few at a time, so that others get their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millstream.coordinator.shard import Entry, Result, Timers

Look = Callable[[str], tuple[list[Entry], int]]
"""Looks at a group: the entries to be written, and how many offsets it looked at."""


class Rounds:
    """Looks at one group after the other, in steps of about `step` offsets.

    Every step is a timer's work, in a turn of its own. One whose entries the log refuses is done again: the
    timer that would have gone on is set anew then.
    """

    def __init__(self, name: str, timers: Timers, step: int) -> None:
        self._name = name
        self._timers = timers
        self._step = step

    def begin(self, groups: Iterable[str], look: Look, then: Callable[[], None]) -> Result[Any]:
        """Begin a round, in place of one that is under way; `then` is called when all is written."""
        self._later(tuple(groups), 0, look, then)
        return Result(None)

    def _later(self, groups: tuple[str, ...], position: int, look: Look, then: Callable[[], None]) -> None:
        self._timers.set_idle(self._name, lambda: self._go_on(groups, position, look, then))

    def _go_on(
        self, groups: tuple[str, ...], position: int, look: Look, then: Callable[[], None]
    ) -> Result[Any]:
        if position >= len(groups):
            then()
            return Result(None)
        entries: list[Entry] = []
        looked_at = 0
        while position < len(groups) and looked_at < self._step:
            found, count = look(groups[position])
            entries += found
            looked_at += count + 1
            position += 1
        self._later(groups, position, look, then)
        return Result(None, entries, is_atomic=False)
