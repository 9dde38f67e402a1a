"""Until when a ZooKeeper session certainly holds.

ZooKeeper's leader ends a session when it has not heard of it for the negotiated time-out. It hears of a
session directly when the client connects, and else from the server that the client is connected to, which
collects signs of life and passes them on with its answers to the leader's pings, at least each half tick.
A tick is at most half the time-out. So an answer from the nearest server alone proves nothing: it may have
lost the leader and not know it yet. What does prove something is a `sync`, which the leader itself answers:

- a sign of life sent LAG before an answered sync had reached the leader when it answered, if both went
  through the same connection; the leader then keeps the session for the time-out from that sign on;
- a new connection is the leader's own sign of life, from when the client began to make it.

All times are those of *sending*, on the monotonic clock, and MARGIN is kept for clocks that run differently.
"""

from __future__ import annotations

import threading
from collections import deque

LAG = 1 / 4
"""The share of the time-out after which a sign of life has reached the leader: half of the longest tick."""

MARGIN = 1 / 12
"""The share of the time-out that is not counted on."""

BEATS = 12
"""How many signs of life are sent in a time-out."""


class Lease:
    """The deadline of one session. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timeout_s = 0.0
        self._connection = 0
        self._signs: deque[float] = deque()
        self._is_over = False
        self.deadline = float("-inf")

    @property
    def connection(self) -> int:
        """The number of the connection, to be given back with the beats that were sent through it."""
        return self._connection

    def connected(self, began_at: float, timeout_s: float) -> None:
        """A connection was made, which the client began at that time, with this negotiated time-out."""
        with self._lock:
            self._connection += 1
            self._timeout_s = timeout_s
            self._signs.clear()
            self._signs.append(began_at)
            self._hold(began_at)

    def answered(self, sent_at: float, connection: int) -> None:
        """The leader answered a sync that was sent at that time."""
        with self._lock:
            if connection != self._connection:
                return
            arrived = sent_at - self._timeout_s * LAG
            self._signs.append(sent_at)
            while len(self._signs) > 1 and self._signs[1] <= arrived:
                self._signs.popleft()
            if self._signs[0] <= arrived:
                self._hold(self._signs[0])

    def end(self) -> None:
        """The session is over; nothing makes it hold again."""
        with self._lock:
            self._is_over = True
            self.deadline = float("-inf")

    def _hold(self, sign_at: float) -> None:
        if not self._is_over:
            self.deadline = max(self.deadline, sign_at + self._timeout_s * (1 - MARGIN))
