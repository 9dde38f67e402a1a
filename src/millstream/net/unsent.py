"""What the answers that clients have not taken hold in memory, over all connections of a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.clock import Clock
from millstream.net.occupancy import no_limit

if TYPE_CHECKING:
    from millstream.net.listener import Listener

RECOUNT_SECONDS = 0.1


class Unsent:
    """Every byte of an answer counts from when it is ready until the system has taken it.

    What the system took since a connection's last answer is not told, so `bytes` may be too large, never
    too small; connections are counted one by one from half of `max_bytes` on, where that matters. Beyond it
    answers are made smaller, or not at all, by who makes them. Beyond twice that, which takes many
    connections, those who do not read are sent away.
    """

    def __init__(self, clock: Clock, max_bytes: Callable[[], int] = no_limit) -> None:
        self.bytes = 0
        self.listeners: list[Listener] = []
        """Those that share this."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._recount_at = 0.0

    @property
    def room_bytes(self) -> int:
        """How much more may wait."""
        max_bytes = self._max_bytes()
        if self.bytes > max_bytes // 2 and self._clock.monotonic() >= self._recount_at:
            self._recount()
        return max(0, max_bytes - self.bytes)

    @property
    def is_excessive(self) -> bool:
        return self.bytes > 2 * self._max_bytes()

    def relieve(self, listener: Listener) -> None:
        """If far too much waits, send away who reads too slowly: before each look that a listener takes.

        First who took nothing since the last look, of these who holds most. Whose answers were all taken
        in between, or came since, may stay.
        """
        if self.is_excessive:
            self._recount()
        if not self.is_excessive:
            return
        max_bytes = self._max_bytes()
        slow = [
            (taken == 0, connection.counted_bytes, connection)
            for connection in listener.connections
            if (taken := connection.taken_bytes) is not None
        ]
        slow.sort(key=lambda each: each[:2], reverse=True)
        for _, _, connection in slow:
            if self.bytes <= max_bytes:
                return
            connection.give_up()

    def _recount(self) -> None:
        self._recount_at = self._clock.monotonic() + RECOUNT_SECONDS
        for listener in self.listeners:
            for connection in listener.connections:
                connection.count_unsent()
