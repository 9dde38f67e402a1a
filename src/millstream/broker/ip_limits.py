"""How many connections one address may have: max.connections.per.ip, and what is said for single ones."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from functools import partial

from millstream.config.broker import BrokerConfig
from millstream.config.keys import ConfigError

log = logging.getLogger(__name__)

OVERRIDES = "max.connections.per.ip.overrides"


class IpLimits:
    """The limits as they are set now. Names of hosts are looked up once, when they are set."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._text = ""
        self._overrides: dict[str, int] = {}

    async def start(self) -> None:
        """Look up what was given at the start; ConfigError if a name is not known."""
        text: str = self._config[OVERRIDES]
        addresses, names = _parsed(text)
        found = await asyncio.get_running_loop().run_in_executor(None, _look_up, names) if names else {}
        self._text, self._overrides = text, found | addresses

    def of(self, ip: str) -> int:
        """How many connections this address may have. Addresses hold at once, names when they are found."""
        if self._config[OVERRIDES] != self._text:
            self._begin_anew()
        limit: int = self._config["max.connections.per.ip"]
        return self._overrides.get(ip, limit)

    def _begin_anew(self) -> None:
        self._text = self._config[OVERRIDES]
        self._overrides, names = _parsed(self._text)
        if names:
            looking = asyncio.get_running_loop().run_in_executor(None, _look_up, names)
            looking.add_done_callback(partial(self._found, self._text))

    def _found(self, text: str, looking: asyncio.Future[dict[str, int]]) -> None:
        if looking.cancelled():
            return
        error = looking.exception()
        if error is not None:
            log.error("%s", error)
        elif text == self._text:
            self._overrides = looking.result() | self._overrides


def _parsed(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """The limits of addresses, and those of names, in a text such as 10.0.0.7:20,[::1]:5,localhost:50."""
    addresses: dict[str, int] = {}
    names: dict[str, int] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        host, _, limit = pair.rpartition(":")
        host = host.strip("[]")
        try:
            addresses[str(ipaddress.ip_address(host))] = int(limit)
        except ValueError:
            names[host] = int(limit)
    return addresses, names


def _look_up(names: dict[str, int]) -> dict[str, int]:
    """The limits of the names' addresses, in a thread: it may take long."""
    limits: dict[str, int] = {}
    for name, limit in names.items():
        try:
            found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
        except OSError:
            raise ConfigError(f"{OVERRIDES} has {name}, a name that nobody knows") from None
        for one in found:
            limits[str(one[4][0])] = limit
    return limits
