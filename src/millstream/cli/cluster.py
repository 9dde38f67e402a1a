"""`millstream cluster`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "info": ("millstream.cli.cluster_info:info", "Show the brokers and what lies on each."),
    "health": ("millstream.cli.cluster_health:health", "Say what the cluster lacks; exit 1 if anything."),
    "watch": ("millstream.cli.cluster_health:watch", "Follow the cluster's health."),
    "unregister": ("millstream.cli.cluster_unregister:unregister", "Forget a broker that is gone for good."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def cluster() -> None:
    """Show the brokers, and what the cluster lacks."""
