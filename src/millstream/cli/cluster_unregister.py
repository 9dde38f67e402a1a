"""`millstream cluster unregister`: a broker that will not come back."""

from __future__ import annotations

import click

from millstream.cli.options import client_options
from millstream.cli.output import print_json
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.replicas import unregister_broker
from millstream.client.wording import counted
from millstream.deadline import Deadline


@click.command()
@click.argument("broker", type=click.IntRange(min=0), metavar="BROKER")
@client_options
def unregister(broker: int, bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Forget a broker that is stopped and will not come back: it gets no more new replicas.

    The replicas that it has stay assigned to it: move them with `millstream reassign`.

    \b
    Example:
      millstream cluster unregister 3
    """

    async def work(cluster: Cluster, deadline: Deadline) -> list[str]:
        await unregister_broker(cluster, broker, deadline)
        metadata = await cluster.refresh(None, deadline)
        return sorted(
            f"{topic.name}:{index}"
            for topic in metadata.topics.values()
            for index, part in topic.partitions.items()
            if broker in part.replicas
        )

    held = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json({"broker": broker, "replicas": held})
        return
    click.echo(f"broker {broker} does not belong to the cluster any more")
    if held:
        click.echo(
            f"{counted(len(held), 'partition')} left with a replica on it; `millstream reassign` moves them",
            err=True,
        )
