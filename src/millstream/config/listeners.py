"""Listeners: an address, the name it goes by, and the security protocol it speaks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.config.checks import Matches

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_ADDRESS = re.compile(r"\s*([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9_.-]*)):([0-9]{1,5})\s*")
_PAIR = r"\s*[A-Za-z0-9_.-]+:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)\s*"

LISTENER_LIST = Matches(
    re.compile(rf"|{_ADDRESS.pattern}(?:,{_ADDRESS.pattern})*"),
    "one or more of NAME://HOST:PORT, such as PLAINTEXT://localhost:9092",
)
PROTOCOL_MAP = Matches(
    re.compile(rf"{_PAIR}(?:,{_PAIR})*", re.IGNORECASE),
    "NAME:PROTOCOL pairs, each protocol one of " + ", ".join(PROTOCOLS),
)


@dataclass(frozen=True, slots=True)
class Listener:
    """One address. `host` is empty for all interfaces; `port` is 0 for any free one."""

    name: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocols(text: str) -> dict[str, str]:
    """The protocol of each listener name, from the text of listener.security.protocol.map."""
    pairs = (pair.strip().rpartition(":") for pair in text.split(","))
    return {name.upper(): protocol.upper() for name, _, protocol in pairs}


def parse_listeners(addresses: Iterable[str], protocols: Mapping[str, str]) -> list[Listener]:
    """The listeners of checked addresses; ValueError says which one is wrong and why."""
    found: list[Listener] = []
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ValueError(f"{address!r} is not of the form NAME://HOST:PORT")
        name, port = match[1].upper(), int(match[4])
        if port > 65535:
            raise ValueError(f"{address!r} has a port above 65535")
        if name not in protocols:
            raise ValueError(f"{address!r} has a name that listener.security.protocol.map does not have")
        if any(name == other.name for other in found):
            raise ValueError(f"the listener name {name} is used twice")
        found.append(Listener(name, match[2] or match[3], port, protocols[name]))
    return found
