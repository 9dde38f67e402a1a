"""`millstream reassign`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "plan": ("millstream.cli.reassign_plan:plan", "Show which partitions to move for an even cluster."),
    "execute": ("millstream.cli.reassign_run:execute", "Move partitions, as planned or as a file says."),
    "status": ("millstream.cli.reassign_run:status", "Show the partitions that are on their way."),
    "unthrottle": ("millstream.cli.reassign_run:unthrottle", "Let replicas copy as fast as they can again."),
    "cancel": ("millstream.cli.reassign_run:cancel", "Leave partitions where they were."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def reassign() -> None:
    """Move partitions between brokers, evenly."""
