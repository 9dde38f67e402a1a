"""How many connections a broker holds over all its listeners, and whether one more may come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

MANY = 2_147_483_647


def no_limit() -> int:
    return MANY


def no_limit_by_ip(_ip: str) -> int:
    return MANY


class Occupancy:
    """The connections of one broker. The limits are asked for each time: they may be set while it runs."""

    def __init__(
        self,
        max_connections: Callable[[], int] = no_limit,
        max_connections_of_ip: Callable[[str], int] = no_limit_by_ip,
    ) -> None:
        self._max_connections = max_connections
        self._max_connections_of_ip = max_connections_of_ip
        self._total = 0
        self._by_ip: Counter[str] = Counter()

    def enter(self, ip: str, *, is_reserved: bool = False) -> bool:
        """Count a connection if it is within the limits; that of all does not hold for a reserved place."""
        if self._total >= self._max_connections() and not is_reserved:
            return False
        if self._by_ip[ip] >= self._max_connections_of_ip(ip):
            return False
        self._total += 1
        self._by_ip[ip] += 1
        return True

    def leave(self, ip: str) -> None:
        self._total -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
