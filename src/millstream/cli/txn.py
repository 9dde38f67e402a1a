"""`millstream txn`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "list": ("millstream.cli.txn_show:list_all", "List transactions, or those that hang."),
    "describe": ("millstream.cli.txn_show:describe", "Show the state and the partitions of transactions."),
    "abort": ("millstream.cli.txn_abort:abort", "Abort transactions, or those that hang."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def txn() -> None:
    """List, describe and abort transactions."""
