"""What the log says while a registry is out of reach: that it is, what that means each minute, and the end.

A connection that breaks again as soon as it is back is one outage. So its end is said when the connection has
held for SETTLED_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.clock import Clock

logger = logging.getLogger(__name__)

REPEAT_S = 60.0
"""How often it is said again that nothing is led."""

SETTLED_S = 1.0


class Outage:
    """The outages of one registry, one after another. Used on the event loop."""

    def __init__(
        self, name: str, clock: Clock, deadline: Callable[[], float], reason: Callable[[], str]
    ) -> None:
        """`deadline` says until when the session certainly holds, `reason` why nobody answered last."""
        self._name = name
        self._clock = clock
        self._deadline = deadline
        self._reason = reason
        self._began_at: float | None = None
        self._say_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def broke(self) -> None:
        """The connection is gone; the session may outlive that."""
        if self._began_at is None:
            self._begin(float("-inf"))
            logger.warning(
                "the connection to %s broke; the session ends unless it comes again soon", self._name
            )
        self._look()

    def lost(self) -> None:
        """The session is over. Whoever tries to begin a new one has said so, and what that means."""
        if self._began_at is None:
            self._begin(asyncio.get_running_loop().time() + REPEAT_S)
        self._wait(None)

    def failed(self, reason: str) -> None:
        """A new session could not begin. It is tried again soon: no time is waited for here."""
        self.lost()
        if asyncio.get_running_loop().time() >= self._say_at:
            self._say(reason)

    def back(self) -> None:
        """There is a connection again, in the same session or in another."""
        if self._began_at is not None:
            lasted_s = asyncio.get_running_loop().time() - self._began_at
            self._wait(SETTLED_S, lambda: self._over(lasted_s))

    def forget(self) -> None:
        """Nobody wants the session any more."""
        self._began_at = None
        self._wait(None)

    def _begin(self, say_at: float) -> None:
        self._began_at = asyncio.get_running_loop().time()
        self._say_at = say_at

    def _look(self) -> None:
        """Say that the lease has lapsed, once it has, and again when that is due."""
        held_s = self._deadline() - self._clock.monotonic()
        due_s = max(held_s, self._say_at - asyncio.get_running_loop().time())
        if due_s <= 0:
            self._say(self._reason())
            due_s = REPEAT_S
        self._wait(due_s, self._look)

    def _say(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        assert self._began_at is not None
        logger.warning(
            "%s has been out of reach for %.0f s; until it is back no topic is made or changed, and only"
            " partitions that have no other replica are led%s",
            self._name,
            now - self._began_at,
            reason and f": {reason}",
        )
        self._say_at = now + REPEAT_S

    def _over(self, lasted_s: float) -> None:
        self.forget()
        logger.warning("%s is back, after %.1f s", self._name, lasted_s)

    def _wait(self, delay_s: float | None, then: Callable[[], None] = lambda: None) -> None:
        """Have one thing done later, instead of what was to be done; None for nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_s is None else asyncio.get_running_loop().call_later(delay_s, then)
