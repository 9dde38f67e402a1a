"""The options of commands about a file of apps, and the apps that they load from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.options import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from millstream.streams.app import App

F = TypeVar("F", bound=Callable[..., Any])


def file_options(command: F) -> F:
    """A file of apps, and what is said about them outside of it."""
    for decorate in (
        click.option(
            "--state", metavar="DIR", help="Where apps keep where they are.  [default: millstream-state]"
        ),
        click.option(
            "-b",
            "--bootstrap",
            metavar="HOST:PORT",
            help=f"The broker to use instead of the one that the file, or {BOOTSTRAP_VARIABLE}, names.",
        ),
        click.argument("file", type=click.Path(dir_okay=False)),
    ):
        command = decorate(command)
    return command


def spark_options(command: F) -> F:
    """How Spark runs."""
    for decorate in (
        click.option("--ship", "ships", is_flag=True, help="Send this package to the cluster's executors."),
        click.option("--ui", "has_ui", is_flag=True, help="Serve Spark's own web pages."),
        click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
        click.option(
            "--master", metavar="URL", help="Spark's master, such as local[4] or spark://host:7077."
        ),
    ):
        command = decorate(command)
    return command


def load_apps(
    file: str,
    bootstrap: str | None,
    state: str | None,
    *,
    master: str | None = None,
    confs: tuple[str, ...] = (),
    has_ui: bool = False,
    ships: bool = False,
) -> list[App]:
    """The apps of a file."""
    from millstream.streams.loading import Settings, load

    conf = {}
    for each in confs:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {each}: write KEY=VALUE")
        conf[key] = value
    return load(file, Settings(bootstrap, state, master, conf, has_ui, ships))
