"""How long nothing more is logged of something that has been logged, or a flood fills the log."""

from __future__ import annotations

from millstream.clock import Clock

QUIET_SECONDS = 60.0
MAX_REMEMBERED = 1000


class Silence:
    """What was said within the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def is_over(self, subject: str) -> bool:
        """Whether something is to be said of `subject` now; its minute begins if so."""
        now = self._clock.monotonic()
        if now < self._until.get(subject, now):
            return False
        if len(self._until) >= MAX_REMEMBERED:
            self._until.clear()
        self._until[subject] = now + QUIET_SECONDS
        return True
