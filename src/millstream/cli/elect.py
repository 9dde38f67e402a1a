"""`millstream elect`: who leads."""

from __future__ import annotations

import re

import click

from millstream.cli.options import ask, client_options, complete_topics
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.client.replicas import elect_leaders
from millstream.errors import KafkaError
from millstream.model import TopicPartition


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC[:PARTITION]]...", shell_complete=complete_topics)
@click.option(
    "--unclean",
    is_flag=True,
    help="Let any replica that is alive lead where none is in sync. Records that it lacks are lost.",
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@client_options
def elect(
    names: tuple[str, ...], unclean: bool, yes: bool, bootstrap: str, timeout_ms: int, as_json: bool
) -> int:
    """Have partitions led by their preferred replica, the first of their list; all, if none is named.

    \b
    Examples:
      millstream elect
      millstream elect orders payments:3
      millstream elect orders:0 --unclean
    """
    if unclean:
        if not names:
            raise click.UsageError("name the partitions that may lose records, such as orders:0")
        ask(f"Records of {', '.join(names)} may be lost. Go on?", yes)

    async def work(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, KafkaError | None]:
        partitions = [part for name in names for part in await _partitions(cluster, name, deadline)]
        return await elect_leaders(cluster, partitions if names else None, deadline, is_unclean=unclean)

    return report(with_cluster(bootstrap, timeout_ms, work), as_json, "Nothing had to be changed.")


async def _partitions(cluster: Cluster, name: str, deadline: Deadline) -> list[TopicPartition]:
    match = re.fullmatch(r"(.*):(\d+)", name)
    if match is not None:
        return [TopicPartition(match[1], int(match[2]))]
    topic = await cluster.topic(name, deadline)
    return [TopicPartition(name, index) for index in topic.partitions]


def report(results: dict[TopicPartition, KafkaError | None], as_json: bool, nothing: str) -> int:
    """Say what became of each partition; 1 if one was refused."""
    if as_json:
        print_json(
            [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "error": None if error is None else type(error).__name__,
                    "message": None if error is None else error.message,
                }
                for key, error in sorted(results.items())
            ]
        )
    elif results:
        rows: list[list[Cell]] = [
            [key.topic, key.partition, "done" if error is None else error.message]
            for key, error in sorted(results.items())
        ]
        print_table(["topic", "partition", "result"], rows)
    else:
        click.echo(nothing, err=True)
    return 1 if any(results.values()) else 0
