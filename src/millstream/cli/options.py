"""Options that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP_VARIABLE = "MILLSTREAM_BOOTSTRAP"


def bootstrap_option(command: F) -> F:
    return click.option(
        "-b",
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The broker to ask, or several with commas.",
    )(command)


def timeout_option(command: F) -> F:
    return click.option(
        "--timeout",
        "timeout_ms",
        default="30s",
        show_default=True,
        metavar="DURATION",
        callback=duration_ms,
        help="How long to go on trying, such as 500ms, 30s or 2m.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for a program.")(command)


def client_options(command: F) -> F:
    """What every command that talks to a broker takes."""
    return bootstrap_option(timeout_option(json_option(command)))


def duration_ms(_: click.Context, __: click.Parameter, value: str | int) -> int:
    """An option such as `--timeout 30s`, in milliseconds."""
    if isinstance(value, int):
        return value
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return int(float(value) * 1000)
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration: write 500ms, 30s or 2m")
    return int(float(match[1]) * units[match[2]])


def byte_count(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """An option such as `--throttle 10MB`, in bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB)?", value, re.IGNORECASE)
    if match is None or not (size := int(float(match[1]) * 1024 ** _UNITS[(match[2] or "B").upper()])):
        raise click.BadParameter(f"{value!r} is not a number of bytes: write 500KB, 10MB or 1.5GB")
    return size


_UNITS = {"B": 0, "KB": 1, "MB": 2, "GB": 3}


def key_values(_: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Options such as `-c key=value`, given any number of times."""
    pairs: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            name = (parameter.opts or [""])[0]
            raise click.BadParameter(f"{value!r} has no '=': write {name} key=value")
        pairs[key.strip()] = text.strip()
    return pairs


def ask(question: str, is_answered: bool) -> None:
    """Ask before what cannot be undone; where nobody can be asked, the answer must be given."""
    if is_answered:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: give --yes if that is what you want")
    click.confirm(question, abort=True, err=True)


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of groups for shell completion, as `complete_topics`."""
    from millstream.cli.session import group_names

    return [name for name in group_names(ctx.params.get("bootstrap")) if name.startswith(incomplete)]


def complete_transactions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Transactional ids for shell completion, as `complete_topics`."""
    from millstream.cli.session import transactional_ids

    return [name for name in transactional_ids(ctx.params.get("bootstrap")) if name.startswith(incomplete)]


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of topics for shell completion; none when no broker answers within a second."""
    from millstream.cli.session import topic_names

    return [name for name in topic_names(ctx.params.get("bootstrap")) if name.startswith(incomplete)]
