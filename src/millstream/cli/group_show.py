"""`millstream group list|describe|lag`: who reads what, and how far they are."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click

from millstream.cli.group_lag import PartitionLag, lags_of
from millstream.cli.options import client_options, complete_groups, complete_topics
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.session import with_admin
from millstream.client.admin import AsyncAdmin
from millstream.client.groups import Group, ListedGroup
from millstream.deadline import Deadline
from millstream.model import TopicPartition

STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@click.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state; several with several options.",
)
@client_options
def list_all(
    pattern: str | None, states: tuple[str, ...], bootstrap: str, timeout_ms: int, as_json: bool
) -> None:
    """List groups, or those whose name matches PATTERN (with * and ?).

    \b
    Examples:
      millstream group list
      millstream group list 'billing-*' --state Empty --json
    """

    async def work(admin: AsyncAdmin, deadline: Deadline) -> list[ListedGroup]:
        return await admin.list_groups(states=states, timeout=deadline.remaining)

    found = with_admin(bootstrap, timeout_ms, work)
    groups = [group for group in found if not pattern or fnmatch.fnmatchcase(group.name, pattern)]
    if as_json:
        print_json([asdict(group) for group in groups])
    elif groups:
        rows: list[list[Cell]] = [
            [group.name, group.state, group.type, group.protocol_type or "-", group.coordinator]
            for group in groups
        ]
        print_table(["group", "state", "type", "protocol", "coordinator"], rows)
    else:
        click.echo("There are no such groups." if pattern or states else "There are no groups.", err=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@client_options
def describe(names: tuple[str, ...], bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Show the members of groups, what they read, and how far they are.

    \b
    Examples:
      millstream group describe billing
      millstream group describe billing shipping --json
    """

    async def work(admin: AsyncAdmin, deadline: Deadline) -> list[tuple[Group, list[PartitionLag]]]:
        found = []
        for name in names:
            group = await admin.describe_group(name, timeout=deadline.remaining)
            found.append((group, await lags_of(admin, group, deadline)))
        return found

    groups = with_admin(bootstrap, timeout_ms, work)
    if as_json:
        print_json([{**_described(group), "offsets": [lag.row() for lag in lags]} for group, lags in groups])
        return
    for number, (group, lags) in enumerate(groups):
        if number:
            click.echo()
        _print_group(group, lags)


def _described(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host.lstrip("/"),
                "topics": member.topics,
                "partitions": [
                    {"topic": each.topic, "partition": each.partition} for each in member.partitions
                ],
            }
            for member in group.members
        ],
    }


def _print_group(group: Group, lags: list[PartitionLag]) -> None:
    kind = f"{group.type}, {group.assignor}" if group.assignor else group.type
    click.echo(f"{group.name}  ({group.state}, {kind}, coordinator {group.coordinator})")
    if group.members:
        rows = [
            [
                member.member_id,
                member.instance_id or "-",
                member.client_id,
                member.host.lstrip("/"),
                ranges(member.partitions) or "-",
            ]
            for member in group.members
        ]
        print_table(["member", "instance", "client", "host", "partitions"], rows)
    if group.members and lags:
        click.echo()
    if lags:
        _print_lags(lags)
    if not group.members and not lags:
        click.echo("  no members and no offsets")


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for a person: `orders:0-3,5 payments:1`."""
    by_topic: dict[str, list[list[int]]] = {}
    for topic, index in sorted(partitions):
        runs = by_topic.setdefault(topic, [])
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return " ".join(
        f"{topic}:" + ",".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)
        for topic, runs in by_topic.items()
    )


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@click.option(
    "-t", "--topic", "topics", multiple=True, shell_complete=complete_topics, help="Only in this topic."
)
@client_options
def lag(
    names: tuple[str, ...], topics: tuple[str, ...], bootstrap: str, timeout_ms: int, as_json: bool
) -> None:
    """Show, by partition, how many records groups (all of them if none is named) have still to read.

    \b
    Examples:
      millstream group lag billing
      millstream group lag --topic orders --json
    """

    async def work(admin: AsyncAdmin, deadline: Deadline) -> list[PartitionLag]:
        wanted = list(names) or [group.name for group in await admin.list_groups(timeout=deadline.remaining)]
        lags = []
        for name in wanted:
            lags += await lags_of(
                admin, await admin.describe_group(name, timeout=deadline.remaining), deadline
            )
        return [each for each in lags if not topics or each.partition.topic in topics]

    lags = with_admin(bootstrap, timeout_ms, work)
    if as_json:
        print_json([{"group": each.group, **each.row()} for each in lags])
    elif lags:
        _print_lags(lags, with_group=True)
    else:
        click.echo("Nothing was committed, and nobody reads.", err=True)


def _print_lags(lags: list[PartitionLag], *, with_group: bool = False) -> None:
    columns = ["topic", "partition", "committed", "end", "lag", "client"]
    rows: list[list[Any]] = [
        [
            each.partition.topic,
            each.partition.partition,
            each.committed,
            each.end,
            each.lag,
            "-" if each.member is None else each.member.client_id,
        ]
        for each in lags
    ]
    if with_group:
        columns = ["group", *columns]
        rows = [[each.group, *row] for each, row in zip(lags, rows, strict=True)]
    print_table(columns, rows)
