"""A moment on the event loop's clock by which something must be done."""

from __future__ import annotations

import asyncio


class Deadline:
    """Made once at the edge of a call and handed down, so that retries share one allowance.

    It reads the running loop's clock only, so that simulated time moves it too.
    """

    __slots__ = ("_at", "_loop", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeout_ms / 1000
        self.timeout_ms = timeout_ms

    @property
    def remaining_ms(self) -> int:
        """Whole milliseconds left; 0 when it has passed, at least 1 before that."""
        left = self._at - self._loop.time()
        return 0 if left <= 0 else max(1, int(left * 1000))

    @property
    def remaining(self) -> float:
        """Seconds left: what calls of the public API take as their `timeout`."""
        return max(0.0, self._at - self._loop.time())

    @property
    def has_passed(self) -> bool:
        return self._loop.time() >= self._at

    def sooner(self, timeout_ms: float) -> Deadline:
        """This deadline, or one `timeout_ms` from now where that comes first."""
        other = Deadline(timeout_ms)
        return other if other._at < self._at else self
