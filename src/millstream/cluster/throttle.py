"""Holding the copying of some replicas to a rate, so that moving them leaves room for everyone else.

Which replicas that is, a topic's `leader.replication.throttled.replicas` and
`follower.replication.throttled.replicas` say: pairs of partition and broker, or `*`. Replicas that are in
sync are never held back: producers wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.clock import Clock

LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


class Throttle:
    """A bucket that bytes are poured into and that drains at the rate; while any are in it, nothing goes."""

    def __init__(self, rate: Callable[[], int], clock: Clock) -> None:
        """`rate` is how many bytes may go in a second, as it is set now."""
        self._rate = rate
        self._clock = clock
        self._owed_bytes = 0.0
        self._as_of = clock.monotonic()

    def spend(self, nbytes: int) -> None:
        self._drain()
        self._owed_bytes += nbytes

    def wait_s(self) -> float:
        """For how long nothing may go; 0 if something may go now."""
        if not self._owed_bytes:
            return 0.0
        self._drain()
        return self._owed_bytes / max(self._rate(), 1)

    def _drain(self) -> None:
        now = self._clock.monotonic()
        self._owed_bytes = max(0.0, self._owed_bytes - (now - self._as_of) * self._rate())
        self._as_of = now


def is_listed(overrides: Mapping[str, str], key: str, partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names a broker's replica of a partition."""
    listed = overrides.get(key, "")
    return listed.strip() == "*" or f"{partition}:{broker_id}" in [one.strip() for one in listed.split(",")]
