"""`millstream txn list|describe`: which transactions there are, and which of them hang."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict
from typing import Any

import click

from millstream.cli.options import client_options, complete_transactions
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.session import with_cluster
from millstream.cli.txn_hanging import COLUMNS, ago, document, find_hanging, hanging_options, row
from millstream.client.cluster import Cluster
from millstream.client.transactions import (
    ListedTransaction,
    OpenTransaction,
    Transaction,
    describe_transaction,
    list_transactions,
    open_transactions,
)
from millstream.deadline import Deadline

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only ids in this state; several with several options.",
)
@hanging_options
@client_options
def list_all(
    pattern: str | None,
    states: tuple[str, ...],
    hanging: bool,
    topics: tuple[str, ...],
    min_age_ms: int,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """List transactional ids, or those that match PATTERN (with * and ?).

    With --hanging, list the transactions that are open in a partition but that no coordinator knows of:
    they hold back readers of committed records, and nobody will end them but `millstream txn abort`.

    \b
    Examples:
      millstream txn list
      millstream txn list 'billing-*' --state Ongoing --json
      millstream txn list --hanging
      millstream txn list --hanging --topic orders --min-age 1h
    """
    if hanging:
        if pattern or states:
            raise click.UsageError("--hanging looks at partitions: a pattern or a state says nothing there")
        _list_hanging(topics, min_age_ms, bootstrap, timeout_ms, as_json)
        return

    async def work(cluster: Cluster, deadline: Deadline) -> list[ListedTransaction]:
        return await list_transactions(cluster, deadline, states=states)

    found = with_cluster(bootstrap, timeout_ms, work)
    shown = [each for each in found if not pattern or fnmatch.fnmatchcase(each.transactional_id, pattern)]
    if as_json:
        print_json([asdict(each) for each in shown])
    elif shown:
        rows: list[list[Cell]] = [
            [each.transactional_id, each.state, each.producer_id, each.coordinator] for each in shown
        ]
        print_table(["transactional id", "state", "producer", "coordinator"], rows)
    else:
        message = "There are no such transactional ids." if found else "There are no transactional ids."
        click.echo(message, err=True)


def _list_hanging(
    topics: tuple[str, ...], min_age_ms: int, bootstrap: str, timeout_ms: int, as_json: bool
) -> None:
    async def work(cluster: Cluster, deadline: Deadline) -> list[OpenTransaction]:
        return await find_hanging(cluster, topics, min_age_ms, deadline)

    found = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json([document(each) for each in found])
    elif found:
        print_table(COLUMNS, [row(each) for each in found])
    else:
        click.echo("No transaction hangs.", err=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...", shell_complete=complete_transactions)
@client_options
def describe(names: tuple[str, ...], bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Show the state of transactional ids, and the partitions of their open transactions.

    \b
    Examples:
      millstream txn describe billing-1
      millstream txn describe billing-1 billing-2 --json
    """

    async def work(
        cluster: Cluster, deadline: Deadline
    ) -> list[tuple[Transaction, dict[Any, OpenTransaction]]]:
        found = []
        for name in names:
            transaction = await describe_transaction(cluster, name, deadline)
            in_partitions = await open_transactions(cluster, transaction.partitions, deadline)
            mine = {
                each.partition: each for each in in_partitions if each.producer_id == transaction.producer_id
            }
            found.append((transaction, mine))
        return found

    described = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json([_document(transaction, written) for transaction, written in described])
        return
    for number, (transaction, written) in enumerate(described):
        if number:
            click.echo()
        _print(transaction, written)


def _document(transaction: Transaction, written: dict[Any, OpenTransaction]) -> dict[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "started_ms": None if transaction.started_ms < 0 else transaction.started_ms,
        "coordinator": transaction.coordinator,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "start_offset": written[each].start_offset if each in written else None,
                "last_written_ms": written[each].last_written_ms if each in written else None,
            }
            for each in transaction.partitions
        ],
    }


def _print(transaction: Transaction, written: dict[Any, OpenTransaction]) -> None:
    producer = f"producer {transaction.producer_id}, epoch {transaction.producer_epoch}"
    where = f"coordinator {transaction.coordinator}"
    click.echo(f"{transaction.transactional_id}  ({transaction.state}, {producer}, {where})")
    if transaction.partitions:
        begun = f"begun {ago(transaction.started_ms)}, " if transaction.started_ms >= 0 else ""
        click.echo(f"  {begun}may take {transaction.timeout_ms / 1000:g} s")
        rows: list[list[Cell]] = [
            [
                each.topic,
                each.partition,
                written[each].start_offset if each in written else None,
                ago(written[each].last_written_ms) if each in written else None,
            ]
            for each in transaction.partitions
        ]
        print_table(["topic", "partition", "start offset", "last written"], rows)
