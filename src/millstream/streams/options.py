"""The options of a source or a sink: text by name, read and checked in one place.

Names are those of Spark's own Kafka connector, and upper and lower case are the same, as Spark has it. What
is wrong with an option is raised as BadOption: one line that says what to write instead. An option that
nobody knows is an error, not a guess: a misspelt one would else be a silent default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from millstream.client.cluster import parse_bootstrap
from millstream.errors import MillstreamError
from millstream.streams.kafka_names import NAMES, is_kafkas

KAFKA = "kafka."
BOOTSTRAP = "kafka.bootstrap.servers"

PLUMBING = frozenset({"checkpointlocation", "path", "queryname"})
"""What Spark itself puts among the options."""


class BadOption(MillstreamError):
    """An option that cannot be used, and what to write instead."""

    # A data source's errors cross processes by pickling and reach people as one line of a longer trace.


class Setting(NamedTuple):
    """What one `kafka.*` option is to Millstream's own client: its keyword, and what reads the text."""

    keyword: str
    read: Callable[[str], Any]


def bootstrap_of(options: Mapping[str, str]) -> str:
    """The brokers' addresses."""
    given = get(options, BOOTSTRAP)
    if not given:
        raise BadOption(f'no broker is named: add .option("{BOOTSTRAP}", "localhost:9092")')
    try:
        parse_bootstrap(given)
    except MillstreamError as error:
        raise BadOption(f"option {BOOTSTRAP}: {error}") from None
    return given


def get(options: Mapping[str, str], name: str) -> str | None:
    """The text of an option without the blanks around it; None where it is not given."""
    wanted = name.lower()
    for key, value in options.items():
        if key.lower() == wanted:
            return value.strip()
    return None


def text(options: Mapping[str, str], name: str, default: str, allowed: Collection[str] = ()) -> str:
    """An option that is a word; one of `allowed` in any case, where these are given."""
    given = get(options, name)
    if given is None:
        return default
    if not allowed:
        return given
    if given.lower() not in allowed:
        raise BadOption(f"option {name} is one of {', '.join(sorted(allowed))}, not {given!r}")
    return given.lower()


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false."""
    given = get(options, name)
    if given is None:
        return default
    if given.lower() not in ("true", "false"):
        raise BadOption(f"option {name} is true or false, not {given!r}")
    return given.lower() == "true"


def number(
    options: Mapping[str, str], name: str, default: int | None = None, *, least: int = 0
) -> int | None:
    """An option that is a whole number, not below `least`."""
    given = get(options, name)
    if given is None:
        return default
    try:
        value = int(given)
    except ValueError:
        raise BadOption(f"option {name} is a whole number, not {given!r}") from None
    if value < least:
        raise BadOption(f"option {name} is at least {least}, not {value}")
    return value


def check_names(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    """Refuse options that nobody knows, with the nearest name that is known. `kafka.*` is not looked at."""
    names = {name.lower(): name for name in known}
    if get(options, "provider") is not None:
        raise BadOption(
            f"a Millstream {what} cannot be a table of the catalog, as Spark does not pass a table's options "
            "on: write CREATE TEMPORARY VIEW name USING millstream OPTIONS (...)"
        )
    for key in options:
        low = key.lower()
        if low.startswith(KAFKA) or low in names or low in PLUMBING:
            continue
        near = get_close_matches(low, names, n=1, cutoff=0.6) or (
            [BOOTSTRAP] if low.endswith(("bootstrap", "bootstrap.servers", "bootstrapservers")) else []
        )
        hint = f": did you mean {names.get(near[0], near[0])}?" if near else ""
        raise BadOption(f"a Millstream {what} has no option {key!r}{hint}")


def client_settings(
    options: Mapping[str, str], settings: Mapping[str, Setting], forbidden: Mapping[str, str], what: str
) -> dict[str, Any]:
    """The `kafka.*` options as keywords of Millstream's client.

    `settings` are those that mean something to it, `forbidden` those that must not be given, with the
    reason. Those of Kafka's own clients that have no meaning here (buffer sizes of the Java client and the
    like) are passed over; what Kafka does not know either is refused.
    """
    found: dict[str, Any] = {}
    for key, value in options.items():
        low = key.lower()
        if not low.startswith(KAFKA) or low == BOOTSTRAP:
            continue
        name = low.removeprefix(KAFKA)
        if name in forbidden:
            raise BadOption(f"option {key} cannot be set on a {what}: {forbidden[name]}")
        if name == "security.protocol" and value.strip().upper() != "PLAINTEXT":
            raise BadOption(f"option {key}={value}: Millstream's client speaks PLAINTEXT only so far")
        setting = settings.get(name)
        if setting is not None:
            try:
                found[setting.keyword] = setting.read(value.strip())
            except ValueError as error:
                raise BadOption(f"option {key}={value} cannot be used: {error}") from None
        elif not is_kafkas(name):
            near = get_close_matches(name, [*settings, *NAMES], n=1, cutoff=0.6)
            hint = f": did you mean {KAFKA}{near[0]}?" if near else ""
            raise BadOption(f"no Kafka client has an option {key!r}{hint}")
    return found
