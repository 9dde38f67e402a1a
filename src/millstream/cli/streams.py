"""`millstream streams`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "run": ("millstream.cli.streams_run:run", "Run the apps of a file until Ctrl-C."),
    "describe": (
        "millstream.cli.streams_show:describe",
        "Show what apps read and write, and where they stand.",
    ),
    "state": ("millstream.cli.streams_show:state", "Look into an app's state store."),
    "reset": ("millstream.cli.streams_run:reset", "Have apps start over from the beginning."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def streams() -> None:
    """Run apps of the Streams API on Spark, and see what they do.

    They need the extra millstream[streams] and Java 17 or newer.
    """
