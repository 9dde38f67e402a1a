"""`millstream offsets`: where each partition starts and ends, also at a time."""

from __future__ import annotations

import time
from typing import Any

import click

from millstream.cli.offset_range import parse_time_ms
from millstream.cli.options import client_options, complete_topics
from millstream.cli.output import print_json, print_table
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.offsets import EARLIEST, LATEST, list_offsets
from millstream.deadline import Deadline
from millstream.model import TopicPartition


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option("--at", "at", metavar="TIME", help="Also the first offset at or after a time, such as -1h.")
@client_options
def offsets(names: tuple[str, ...], at: str | None, bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Show the first and the next offset of every partition of TOPICs, or of all topics.

    \b
    Examples:
      millstream offsets orders
      millstream offsets orders --at -1h
      millstream offsets --at 2026-05-31T12:00:00Z --json
    """
    try:
        time_ms = None if at is None else parse_time_ms(at.removeprefix("@"), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def work(cluster: Cluster, deadline: Deadline) -> list[dict[str, Any]]:
        wanted = list(names)
        if not wanted:
            metadata = await cluster.refresh(None, deadline)
            wanted = sorted(topic.name for topic in metadata.topics.values() if not topic.is_internal)
        partitions = [
            TopicPartition(name, index)
            for name in wanted
            for index in (await cluster.topic(name, deadline)).partitions
        ]
        first = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), deadline)
        end = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), deadline)
        found = None
        if time_ms is not None:
            found = await list_offsets(cluster, dict.fromkeys(partitions, time_ms), deadline)
        rows = []
        for partition in partitions:
            row: dict[str, Any] = {
                "topic": partition.topic,
                "partition": partition.partition,
                "start": first[partition].offset,
                "end": end[partition].offset,
                "count": end[partition].offset - first[partition].offset,
            }
            if found is not None:
                at_time = found[partition]
                row["at"] = at_time.offset if at_time.offset >= 0 else None
                row["at_timestamp"] = at_time.timestamp_ms if at_time.offset >= 0 else None
            rows.append(row)
        return rows

    rows = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json(rows)
        return
    columns = ["topic", "partition", "start", "end", "count", *(["at"] if at else [])]
    print_table(columns, [[row[column] for column in columns] for row in rows])
