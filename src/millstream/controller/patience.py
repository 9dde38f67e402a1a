"""For how long a controller that is cut off stays in office, and when it seeks the office again.

The first time it makes room at once: others may reach one another. Where nobody took the office, or the next
one was cut off as well, nobody does better, and it stays for longer each time.
"""

from __future__ import annotations

import math

from millstream.controller.presence import Presence

STAND_BACK_S = 1.0
"""For how long one who was cut off leaves a free office to others, who take it within milliseconds."""
MAX_ROUNDS = 600
MEMORY_S = 600.0
"""For how long it counts that room was made."""


class Patience:
    """What one broker remembers from term to term. `now` is the loop's time."""

    def __init__(self) -> None:
        self._rounds = 0
        self._made_room_at = -math.inf
        self._free_since = math.inf

    def listened(self, presence: Presence, now: float) -> None:
        """A round of the controller's upkeep is over: forget what counts no more."""
        if presence.is_in_touch:
            self._made_room_at = -math.inf
        if not self.is_tried(now):
            self._rounds = 0

    def is_over(self, presence: Presence) -> bool:
        """Whether the controller has been cut off for so long that another should try."""
        return presence.cut_off_rounds > self._rounds

    def makes_room(self, presence: Presence, now: float) -> None:
        """The office is given up."""
        self._rounds = min(max(2 * self._rounds, presence.max_rounds), MAX_ROUNDS)
        self._made_room_at = now

    def is_tried(self, now: float) -> bool:
        """Whether room was made not long ago, and nothing shows that the others can be reached again."""
        return now - self._made_room_at < MEMORY_S

    def seeks_at(self, now: float, *, is_free: bool) -> float:
        """When one who made room seeks the office: at once, or some time after it became free."""
        if not is_free:
            self._free_since = math.inf
            return now
        self._free_since = min(self._free_since, now)
        return self._free_since + STAND_BACK_S

    def sought(self) -> None:
        """Whoever has the office now, it is not free."""
        self._free_since = math.inf
