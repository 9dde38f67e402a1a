"""How many connections a broker holds over all its listeners, and whether one more may come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

MANY = 2_147_483_647

OF_BROKER = "max.connections"
OF_IP = "max.connections.per.ip, or an override of it,"
OF_PROCESS = "what the process may open (raise it with ulimit -n)"


def no_limit() -> int:
    return MANY


def no_limit_by_ip(_ip: str) -> int:
    return MANY


@dataclass(frozen=True, slots=True)
class Full:
    """Why no more connections are let in."""

    limit: str
    """The key that sets the limit, or what else does."""
    allowed: int
    held: int

    def __str__(self) -> str:
        return f"{self.limit} allows {self.allowed} connections, and {self.held} are there"


class Occupancy:
    """The connections of one broker. The limits are asked for each time: they may be set while it runs."""

    def __init__(
        self,
        max_connections: Callable[[], int] = no_limit,
        max_connections_of_ip: Callable[[str], int] = no_limit_by_ip,
        *,
        descriptors: int = MANY,
        reserved: int = 0,
    ) -> None:
        """`descriptors` is how many connections the process has room for; the last `reserved` of them are
        for those that have a reserved place."""
        self._max_connections = max_connections
        self._max_connections_of_ip = max_connections_of_ip
        self._descriptors = descriptors
        self._reserved = reserved
        self._total = 0
        self._by_ip: Counter[str] = Counter()

    def enter(self, ip: str, *, is_reserved: bool = False) -> Full | None:
        """Count a connection, or say why it may not come. Who has a reserved place may come though there
        are max.connections."""
        total, of_ip = self._total, self._by_ip.get(ip, 0)
        if not is_reserved and total >= (allowed := self._max_connections()):
            return Full(OF_BROKER, allowed, total)
        if total >= (allowed := self._descriptors - (0 if is_reserved else self._reserved)):
            return Full(OF_PROCESS, allowed, total)
        if of_ip >= (allowed := self._max_connections_of_ip(ip)):
            return Full(OF_IP, allowed, of_ip)
        self._total = total + 1
        self._by_ip[ip] = of_ip + 1
        return None

    def leave(self, ip: str) -> None:
        self._total -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
