"""How work on very many things lets all else on the event loop have its turn."""

from __future__ import annotations

import asyncio

TURN_SECONDS = 0.01
"""How long such work may hold the loop at a time, unless it says otherwise."""


class Pauses:
    """The pauses of one piece of work, whose first turn begins with this.

    Between two things: `if pauses.is_due: await pauses.take()`.
    """

    __slots__ = ("_due_at", "_loop", "_turn_s")

    def __init__(self, turn_s: float | None = None) -> None:
        self._turn_s = TURN_SECONDS if turn_s is None else turn_s
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + self._turn_s

    @property
    def is_due(self) -> bool:
        return self._loop.time() >= self._due_at

    async def take(self) -> None:
        await asyncio.sleep(0)
        self._due_at = self._loop.time() + self._turn_s
