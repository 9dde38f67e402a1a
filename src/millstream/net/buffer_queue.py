"""Connections with half a frame that wait until there is room for the rest of it.

While all room is taken, those that wait would wait for one another, since each keeps what has come of its
frame. So one at a time may go on beyond the limit: all of them together take at most the limit and one frame.
The next has its turn when the frame is whole, or when that one is closed: who stops in the midst of its turn,
or takes too long for it, is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.errors import ProtocolError

if TYPE_CHECKING:
    from millstream.net.connection import Connection

STALLED_SECONDS = 5.0
TURN_SECONDS = 60.0


class BufferQueue:
    """Who waits, in the order in which they came, and whose turn it is."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiting: dict[Connection, None] = {}
        self._served: Connection | None = None
        self._served_since = 0.0

    def add(self, connection: Connection) -> None:
        """Tell the connection when it may go on."""
        self._waiting[connection] = None

    def leave(self, connection: Connection) -> None:
        """The connection is closed, or its frame is whole."""
        self._waiting.pop(connection, None)
        if self._served is connection:
            self._served = None

    def proceed(self, now: float, moved_at: dict[Connection, float]) -> None:
        """Let those who wait go on if there is room, else one of them. To be called each second.

        `moved_at`: when bytes of each connection came last.
        """
        if not self._waiting:
            return
        served = self._served
        if served is not None:
            last = max(moved_at.get(served, now), self._served_since)
            is_stalled = now - last >= STALLED_SECONDS
            if is_stalled or now - self._served_since >= TURN_SECONDS:
                self._served = None
                served.refuse(
                    ProtocolError("the rest of its request does not come, and others wait for room")
                )
                served.transport.abort()
        if self._has_room():
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.buffer_room_came(may_exceed=False)
        elif self._served is None:
            self._served, self._served_since = next(iter(self._waiting)), now
            del self._waiting[self._served]
            self._served.buffer_room_came(may_exceed=True)
