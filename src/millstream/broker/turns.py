"""How a request for very many things lets all others have their turn."""

from __future__ import annotations

import asyncio

TURN_SECONDS = 0.01
"""How long such a request may hold the loop at a time."""


class Turns:
    """The turns of one request on the event loop; the first begins with this."""

    __slots__ = ("_ends_at", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + TURN_SECONDS

    async def next(self) -> None:
        """Called between two things: if the turn is over, all else has its own before this goes on."""
        if self._loop.time() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._loop.time() + TURN_SECONDS
