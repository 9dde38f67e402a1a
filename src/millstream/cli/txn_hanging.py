"""Looking for transactions that hang: what `txn list` and `txn abort` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from millstream.cli.options import complete_topics, duration_ms
from millstream.cli.output import Cell
from millstream.client.cluster import Cluster
from millstream.client.metadata import NO_LEADER
from millstream.client.transactions import OpenTransaction, hanging_transactions
from millstream.deadline import Deadline
from millstream.model import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = ("topic", "partition", "producer", "epoch", "start offset", "last written")


def hanging_options(command: F) -> F:
    """`--hanging`, and where and how old."""
    for option in (
        click.option(
            "--min-age",
            "min_age_ms",
            default="15m",
            show_default=True,
            metavar="DURATION",
            callback=duration_ms,
            help="With --hanging: only transactions without a write for so long.",
        ),
        click.option(
            "-t",
            "--topic",
            "topics",
            multiple=True,
            metavar="TOPIC",
            shell_complete=complete_topics,
            help="With --hanging: only in this topic.",
        ),
        click.option(
            "--hanging", is_flag=True, help="Those that are open in a partition and that nobody will end."
        ),
    ):
        command = option(command)
    return command


async def find_hanging(
    cluster: Cluster, topics: Iterable[str], min_age_ms: int, deadline: Deadline
) -> list[OpenTransaction]:
    """The transactions that hang in some topics, or in all, internal ones too."""
    looked_at = [await cluster.topic(name, deadline) for name in topics]
    if not looked_at:
        looked_at = list((await cluster.refresh(None, deadline)).topics.values())
    partitions = [
        TopicPartition(topic.name, partition.index)
        for topic in looked_at
        for partition in topic.partitions.values()
        if partition.leader != NO_LEADER
    ]
    return await hanging_transactions(
        cluster, partitions, deadline, now_ms=int(time.time() * 1000), min_age_ms=min_age_ms
    )


def row(transaction: OpenTransaction) -> list[Cell]:
    """A line of a table."""
    topic, index = transaction.partition
    return [
        topic,
        index,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.start_offset,
        ago(transaction.last_written_ms),
    ]


def document(transaction: OpenTransaction) -> dict[str, Any]:
    """For a program."""
    return {
        "topic": transaction.partition.topic,
        "partition": transaction.partition.partition,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "coordinator_epoch": transaction.coordinator_epoch,
        "start_offset": transaction.start_offset,
        "last_written_ms": transaction.last_written_ms,
    }


def ago(moment_ms: int) -> str:
    """How long ago something was, for a person."""
    seconds = max(int(time.time()) - moment_ms // 1000, 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
