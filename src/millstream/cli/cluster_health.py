"""`millstream cluster health|watch`: what the cluster lacks, now or from now on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import click

from millstream.cli.options import client_options, duration_ms
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.session import run
from millstream.client.cluster import Cluster
from millstream.client.health import Health, examine
from millstream.client.metadata import Partition
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition

POLL_S = 0.2
SHOWN = 20
"""How many partitions a person is shown; --json has all."""


@click.command()
@click.option(
    "--wait",
    "wait_ms",
    default="0s",
    metavar="DURATION",
    callback=duration_ms,
    help="Go on asking for so long until the cluster is healthy.",
)
@client_options
def health(wait_ms: int, bootstrap: str, timeout_ms: int, as_json: bool) -> int:
    """Say which brokers are missing and which partitions are offline, under min ISR or under-replicated.

    Brokers that do not answer are named, too, and log dirs that have failed or have no room, and partitions
    with records that cannot be read.

    The exit code is 1 if there are any. With --wait a cluster that does not answer yet is waited for, too.

    \b
    Examples:
      millstream cluster health
      millstream cluster health --wait 1m --json
    """

    async def main() -> Health:
        patience = Deadline(wait_ms)
        async with Cluster(bootstrap, client_id="millstream-cli", must_answer_at_once=not wait_ms) as cluster:
            while True:
                try:
                    within_ms = min(timeout_ms, max(patience.remaining_ms, 1000)) if wait_ms else timeout_ms
                    found = await examine(cluster, Deadline(within_ms))
                    if found.is_healthy or patience.remaining_ms <= 0:
                        return found
                except KafkaError as error:
                    if not error.retriable or patience.remaining_ms <= 0:
                        raise
                await asyncio.sleep(POLL_S)

    found = run(main())
    if as_json:
        print_json(document(found))
    else:
        click.echo(found.summary)
        _print_partitions(found)
    return 0 if found.is_healthy else 1


@click.command()
@click.option(
    "--interval",
    "interval_ms",
    default="1s",
    show_default=True,
    metavar="DURATION",
    callback=duration_ms,
    help="How often to ask.",
)
@client_options
def watch(interval_ms: int, bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Print a line whenever the cluster's health changes, until Ctrl-C.

    It goes on when no broker answers, and says so.

    \b
    Examples:
      millstream cluster watch
      millstream cluster watch --json --interval 500ms
    """

    async def main() -> None:
        said: object = None
        async with Cluster(bootstrap, client_id="millstream-cli") as cluster:
            while True:
                try:
                    found = await examine(cluster, Deadline(min(timeout_ms, max(interval_ms, 1000))))
                    text, what = found.summary, document(found)
                except KafkaError as error:
                    text, what = f"unreachable: {error}", {"healthy": False, "error": str(error)}
                if what != said:
                    said = what
                    _say(text, what, as_json)
                await asyncio.sleep(interval_ms / 1000)

    run(main())


def _say(text: str, what: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"time_ms": int(time.time() * 1000), **what}))
    else:
        click.echo(f"{time.strftime('%H:%M:%S')}  {text}")


def document(found: Health) -> dict[str, Any]:
    """What a program is told."""
    return {
        "healthy": found.is_healthy,
        "controller": found.controller,
        "brokers": found.brokers,
        "missing_brokers": found.missing_brokers,
        "unresponsive_brokers": found.unresponsive_brokers,
        "partitions": found.partitions,
        "offline": _list(found.offline),
        "under_min_isr": _list(found.under_min_isr),
        "under_replicated": _list(found.under_replicated),
        "damaged": [
            {"topic": key.topic, "partition": key.partition, "brokers": brokers}
            for key, brokers in found.damaged.items()
        ],
        "failed_log_dirs": {str(broker): paths for broker, paths in found.failed_dirs.items()},
        "full_log_dirs": {str(broker): paths for broker, paths in found.full_dirs.items()},
    }


def _list(partitions: Mapping[TopicPartition, Partition]) -> list[dict[str, Any]]:
    return [
        {
            "topic": key.topic,
            "partition": key.partition,
            "leader": None if part.leader < 0 else part.leader,
            "replicas": list(part.replicas),
            "isr": list(part.isr),
        }
        for key, part in partitions.items()
    ]


def _print_partitions(found: Health) -> None:
    rows: list[list[Cell]] = []
    for what, partitions in (
        ("offline", found.offline),
        ("under min ISR", found.under_min_isr),
        ("under-replicated", found.under_replicated),
    ):
        for key, part in partitions.items():
            replicas, isr = (",".join(map(str, ids)) or "-" for ids in (part.replicas, part.isr))
            leader = None if part.leader < 0 else part.leader
            rows.append([what, key.topic, key.partition, leader, replicas, isr])
    for key, brokers in found.damaged.items():
        rows.append(["damaged", key.topic, key.partition, None, ",".join(map(str, brokers)), None])
    if rows:
        columns = ["problem", "topic", "partition", "leader", "replicas", "in sync"]
        print_table(columns, rows[:SHOWN])
    if len(rows) > SHOWN:
        click.echo(f"... and {len(rows) - SHOWN} more; --json has all", err=True)
