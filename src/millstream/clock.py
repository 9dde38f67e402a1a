"""Time, as everything in Millstream reads it: injected, so that a simulation owns it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records and retention, monotonic time for deadlines."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as records carry them. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
