"""`millstream txn abort`: through the coordinator, or in the partitions where nobody else will."""

from __future__ import annotations

import re

import click

from millstream.cli.options import ask, client_options, complete_transactions
from millstream.cli.output import print_json, print_table
from millstream.cli.session import with_cluster
from millstream.cli.txn_hanging import COLUMNS, document, find_hanging, hanging_options, row
from millstream.client.cluster import Cluster
from millstream.client.transactions import (
    OpenTransaction,
    fence_producer,
    open_transactions,
    write_abort_marker,
)
from millstream.client.wording import counted
from millstream.deadline import Deadline
from millstream.model import TopicPartition


def _partitions(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[TopicPartition]:
    found = []
    for value in values:
        match = re.fullmatch(r"(.+):(\d+)", value)
        if match is None:
            raise click.BadParameter(f"{value!r} is not a partition: write TOPIC:NUMBER")
        found.append(TopicPartition(match[1], int(match[2])))
    return found


@click.command()
@click.argument("names", nargs=-1, metavar="[ID]...", shell_complete=complete_transactions)
@click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    metavar="TOPIC:NUMBER",
    callback=_partitions,
    help="Whatever is open in this partition, without asking its coordinator.",
)
@click.option(
    "--start-offset", type=click.IntRange(min=0), help="With --partition: only the one that starts here."
)
@hanging_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def abort(
    names: tuple[str, ...],
    partitions: list[TopicPartition],
    start_offset: int | None,
    hanging: bool,
    topics: tuple[str, ...],
    min_age_ms: int,
    yes: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Abort transactions.

    By transactional ID the coordinator does it, in all partitions, and the producer is shut out: it has
    to begin anew. With --hanging or --partition the end is written to the partitions themselves, for
    transactions that no coordinator knows of (see `millstream txn list --hanging`).

    \b
    Examples:
      millstream txn abort billing-1
      millstream txn abort --hanging --yes
      millstream txn abort --partition orders:3 --start-offset 1234
    """
    if (bool(names) + bool(partitions) + hanging) != 1:
        raise click.UsageError("name transactional ids, or give --hanging, or --partition")
    if start_offset is not None and not partitions:
        raise click.UsageError("--start-offset goes with --partition")
    if names:
        _fence(names, yes, bootstrap, timeout_ms, as_json)
        return

    async def find(cluster: Cluster, deadline: Deadline) -> list[OpenTransaction]:
        if hanging:
            return await find_hanging(cluster, topics, min_age_ms, deadline)
        found = await open_transactions(cluster, partitions, deadline)
        return [each for each in found if start_offset in (None, each.start_offset)]

    found = with_cluster(bootstrap, timeout_ms, find)
    if not as_json:
        if not found:
            click.echo("There is nothing to abort.", err=True)
            return
        print_table(COLUMNS, [row(each) for each in found])
    if found:
        ask(f"Abort {counted(len(found), 'transaction')}?", yes)

    async def end(cluster: Cluster, deadline: Deadline) -> None:
        for each in found:
            await write_abort_marker(cluster, each, deadline)

    with_cluster(bootstrap, timeout_ms, end)
    if as_json:
        print_json([{**document(each), "aborted": True} for each in found])
    else:
        click.echo(f"{counted(len(found), 'transaction')} aborted.")


def _fence(names: tuple[str, ...], yes: bool, bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    ask(f"Abort what {', '.join(names)} has open and shut the producer out?", yes)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        for name in names:
            await fence_producer(cluster, name, deadline)

    with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json([{"transactional_id": name, "aborted": True} for name in names])
    else:
        for name in names:
            click.echo(f"{name} has no open transaction any more; its producer is shut out.")
