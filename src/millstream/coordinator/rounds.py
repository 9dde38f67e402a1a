"""Work over all that a shard holds, which may be much: a little at a time, so that others get their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millstream.coordinator.shard import Entry, Result, Timers
from millstream.errors import KafkaError

Look = Callable[[str], tuple[list[Entry], int]]
"""Looks at a group, or whatever has that id: the entries to be written, and how much more than the thing
itself it looked at."""


class Rounds:
    """Looks at one thing after the other, such as groups with their offsets, in steps of about `step`.

    Every step is a timer's work, in a turn of its own. One whose entries the log refuses is done again: the
    timer that would have gone on is set anew then. What cannot be looked at fails a step of its own, and the
    round goes on behind it.
    """

    def __init__(self, name: str, timers: Timers, step: int) -> None:
        self._name = name
        self._timers = timers
        self._step = step

    def begin(self, ids: Iterable[str], look: Look, then: Callable[[], None]) -> Result[Any]:
        """Begin a round, in place of one that is under way; `then` is called when all is written."""
        self._later(tuple(ids), 0, look, then)
        return Result(None)

    def _later(self, ids: tuple[str, ...], position: int, look: Look, then: Callable[[], None]) -> None:
        self._timers.set_idle(self._name, lambda: self._go_on(ids, position, look, then))

    def _go_on(self, ids: tuple[str, ...], start: int, look: Look, then: Callable[[], None]) -> Result[Any]:
        if start >= len(ids):
            then()
            return Result(None)
        entries: list[Entry] = []
        position, looked_at = start, 0
        while position < len(ids) and looked_at < self._step:
            try:
                found, count = look(ids[position])
            except KafkaError:
                raise
            except Exception:
                if position > start:
                    break  # what was found before is written first
                self._later(ids, position + 1, look, then)
                raise
            entries += found
            looked_at += count + 1
            position += 1
        self._later(ids, position, look, then)
        return Result(None, entries, is_atomic=False)
