"""`millstream group`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "list": ("millstream.cli.group_show:list_all", "List groups and their states."),
    "describe": ("millstream.cli.group_show:describe", "Show the members of groups and what they read."),
    "lag": ("millstream.cli.group_show:lag", "Show how far behind groups are."),
    "seek": ("millstream.cli.group_change:seek", "Move the offsets of a group."),
    "delete": ("millstream.cli.group_change:delete", "Delete groups, or their offsets in a topic."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def group() -> None:
    """List, describe, move and delete groups of consumers."""
