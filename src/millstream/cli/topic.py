"""`millstream topic`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "create": ("millstream.cli.topic_change:create", "Create topics."),
    "list": ("millstream.cli.topic_show:list_topics", "List topics."),
    "describe": ("millstream.cli.topic_show:describe", "Show partitions, replicas and offsets of topics."),
    "config": ("millstream.cli.topic_show:config", "Show the configuration of a topic."),
    "alter": ("millstream.cli.topic_change:alter", "Add partitions or change the configuration of topics."),
    "trim": ("millstream.cli.topic_change:trim", "Delete the oldest records of a topic."),
    "delete": ("millstream.cli.topic_change:delete", "Delete topics."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def topic() -> None:
    """Create, list, describe, alter and delete topics."""
