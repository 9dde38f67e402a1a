"""A configuration key: its name, its kind, its default, what it takes and what it does.

Values travel as text (in files, in the protocol, in the registry) and are used typed. `parse` reads
text as Kafka does: surrounding blanks do not count, booleans are `true` and `false` in any case,
lists are divided by commas. `render` writes it as Kafka does, so that `parse(render(v)) == v`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from millstream.config.checks import Check, Value
from millstream.errors import MillstreamError

Kind = Literal["boolean", "string", "int", "short", "long", "double", "list", "class", "password"]

Scope = Literal["read-only", "per-broker", "cluster-wide", "topic"]
"""Where a key may be set while brokers run: nowhere, on one broker, on one or on all, on a topic."""

KIND_CODES: Mapping[Kind, int] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
"""The ConfigType of DescribeConfigs."""

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1
MAX_DOUBLE = 1.7976931348623157e308

_BITS: Mapping[str, int] = {"short": 16, "int": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")


class ConfigError(MillstreamError):
    """A configuration that a broker cannot start with. The text says what to do."""


class BadValue(ValueError):
    """Text that a key does not take; the text says what it takes."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that gives a topic key its value, in a unit of `factor` of the topic key's."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `check` sees parsed values only, never None."""

    name: str
    kind: Kind
    default: Value
    doc: str
    check: Check | None = None
    scope: Scope = "read-only"
    synonyms: tuple[Synonym, ...] = ()
    """For a topic key, the broker keys that are asked when the topic does not set it, in this order."""
    idle: str = ""
    """Why the key changes nothing here; empty if it does what `doc` says."""
    is_internal: bool = False
    """Taken, but not listed to clients."""

    @property
    def documentation(self) -> str:
        return f"{self.doc} Has no effect here: {self.idle}." if self.idle else self.doc

    @property
    def is_sensitive(self) -> bool:
        return self.kind == "password"

    def parse(self, text: str) -> Value:
        """The typed value of `text`, or BadValue."""
        text = text.strip()
        value = self._typed(text)
        if self.check is not None and not self.check.accepts(value):
            raise BadValue(f"{self.name} takes {self.check}, not {text!r}")
        return value

    def _typed(self, text: str) -> Value:
        match self.kind:
            case "boolean":
                if text.lower() not in ("true", "false"):
                    raise BadValue(f"{self.name} takes true or false, not {text!r}")
                return text.lower() == "true"
            case "int" | "long" | "short":
                bits = _BITS[self.kind]
                if not _INTEGER.fullmatch(text):
                    raise BadValue(f"{self.name} takes a whole number, not {text!r}")
                number = int(text) if len(text) < 40 else 1 << 64
                if not -(1 << bits - 1) <= number < 1 << bits - 1:
                    raise BadValue(f"{self.name} takes a whole number of {bits} bits, not {text!r}")
                return number
            case "double":
                try:
                    real = float(text)
                except ValueError:
                    real = math.nan
                if math.isnan(real):
                    raise BadValue(f"{self.name} takes a number, not {text!r}")
                return real
            case "list":
                return tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
            case _:
                return text

    def render(self, value: Value) -> str | None:
        """The text of a typed value, as Kafka's tools print it; None for null."""
        match value:
            case None:
                return None
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(value)
            case float():
                return repr(value).replace("e+", "E").replace("e", "E")
            case _:
                return str(value)


def by_name(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """The keys by name, in the order of their names; a name claimed twice is a TypeError."""
    found: dict[str, ConfigKey] = {}
    for key in sorted(keys, key=lambda key: key.name):
        if key.name in found:
            raise TypeError(f"the key {key.name} is declared twice")
        found[key.name] = key
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint `; did you mean ...?` for a mistyped name, or nothing."""
    import difflib  # on the way to an error only

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""
