"""`millstream cluster info`: who is in the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from millstream.cli.options import client_options
from millstream.cli.output import Cell, human_bytes, print_json, print_table
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.health import current_metadata
from millstream.client.replicas import log_sizes
from millstream.deadline import Deadline
from millstream.errors import KafkaError


@click.command()
@client_options
def info(bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Show the cluster's brokers: their addresses, the controller, partitions led and held, bytes.

    \b
    Examples:
      millstream cluster info
      millstream cluster info --json
    """
    found = with_cluster(bootstrap, timeout_ms, _describe)
    if as_json:
        print_json(found)
        return
    click.echo(f"cluster {found['id']}, controller {_or_none(found['controller'])}")
    rows: list[list[Cell]] = [
        [
            broker["id"],
            broker["address"],
            broker["rack"],
            broker["leads"],
            broker["holds"],
            None if broker["bytes"] is None else human_bytes(broker["bytes"]),
        ]
        for broker in found["brokers"]
    ]
    print_table(["broker", "address", "rack", "leads", "holds", "size"], rows)


async def _describe(cluster: Cluster, deadline: Deadline) -> dict[str, Any]:
    metadata, _ = await current_metadata(cluster, deadline)
    partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    nodes = [metadata.nodes[broker_id] for broker_id in sorted(metadata.nodes)]
    sizes = await asyncio.gather(*(_size(cluster, node.id, deadline) for node in nodes))
    return {
        "id": metadata.cluster_id,
        "controller": metadata.controller_id if metadata.controller_id in metadata.nodes else None,
        "topics": sum(not topic.is_internal for topic in metadata.topics.values()),
        "partitions": len(partitions),
        "brokers": [
            {
                "id": node.id,
                "address": node.address,
                "rack": node.rack,
                "controller": node.id == metadata.controller_id,
                "leads": sum(part.leader == node.id for part in partitions),
                "holds": sum(node.id in part.replicas for part in partitions),
                "bytes": size,
            }
            for node, size in zip(nodes, sizes, strict=True)
        ],
    }


async def _size(cluster: Cluster, broker_id: int, deadline: Deadline) -> int | None:
    try:
        return sum((await log_sizes(cluster, broker_id, deadline)).values())
    except KafkaError:
        return None  # it is listed, and has just gone, or does not answer


def _or_none(number: int | None) -> str:
    return "none" if number is None else str(number)
