"""Connections with half a frame that wait until there is room for the rest of it.

While all room is taken, those that wait would wait for one another, since each keeps what has come of its
frame. So one at a time may go on beyond the limit: all buffers together take at most the limit and one frame.
What the service keeps of whole frames is counted among them, but waits for no room. The next has its turn
at once when the frame is whole, or when that one is closed: who stops in the midst of its turn, or takes too
long for it, is. Only the time counts in which it keeps others waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.net.connection import Connection

STALLED_SECONDS = 5.0
TURN_SECONDS = 60.0

log = logging.getLogger(__name__)


class BufferQueue:
    """Who waits, in the order in which they came, and whose turn it is."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        self._waiting: dict[Connection, int] = {}
        """The bytes that each waits for."""
        self._served: Connection | None = None
        self._awaited_since: float | None = None
        """Since which look others have waited for the end of this turn; None if none did at the last one."""

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for room."""
        return bool(self._waiting)

    def add(self, connection: Connection, growth: int) -> None:
        """Tell the connection when it may go on: there is room for so many bytes, or it is its turn."""
        self._waiting[connection] = growth

    def leave(self, connection: Connection) -> None:
        """The connection is closed, or its frame is whole."""
        self._waiting.pop(connection, None)
        if self._served is connection:
            self._served = self._awaited_since = None
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._serve_next)

    def proceed(self, now: float, moved_at: dict[Connection, float]) -> None:
        """Let those go on for whom there is room, and one of the others. To be called each second.

        `moved_at`: when bytes of each connection came last.
        """
        for connection, growth in list(self._waiting.items()):
            if self._has_room(growth):
                self._waiting.pop(connection, None)
                _go_on(connection, may_exceed=False)
        self._serve_next()
        served = self._served
        if served is None or not self._waiting:
            self._awaited_since = None
        elif self._awaited_since is None:
            self._awaited_since = now
        else:
            last = max(moved_at.get(served, now), self._awaited_since)
            if now - last >= STALLED_SECONDS or now - self._awaited_since >= TURN_SECONDS:
                served.stalled()  # it leaves when it is gone: until then it has its bytes

    def _serve_next(self) -> None:
        if self._served is None and self._waiting:
            self._served = next(iter(self._waiting))
            del self._waiting[self._served]
            _go_on(self._served, may_exceed=True)


def _go_on(connection: Connection, *, may_exceed: bool) -> None:
    """If a connection cannot, for want of memory say, it is closed, and the others are not held up."""
    try:
        connection.buffer_room_came(may_exceed=may_exceed)
    except Exception:
        log.exception("closing the connection of %s", connection.peer)
        connection.transport.abort()
