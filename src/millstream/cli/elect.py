"""`millstream elect`: who leads."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

from millstream.cli.options import ask, client_options, complete_topics
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.replicas import hold_elections
from millstream.deadline import Deadline
from millstream.errors import ElectionNotNeeded, KafkaError
from millstream.model import TopicPartition

NAME = r"[^:]+(:[0-9]{1,9})?"
"""A topic, or one of its partitions."""
Results = dict[TopicPartition, KafkaError | None]


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
    for name in names:
        if not re.fullmatch(NAME, name):
            raise click.UsageError(f"{name!r} is no partition: write TOPIC:NUMBER, such as orders:0")
    if unclean:
        if not names:
            raise click.UsageError("name the partitions that may lose records, such as orders:0")
        ask(f"Records of {', '.join(names)} may be lost. Go on?", yes)

    async def work(cluster: Cluster, deadline: Deadline) -> Results:
        partitions = [part for name in names for part in await _partitions(cluster, name, deadline)]
        return await hold_elections(cluster, partitions if names else None, deadline, is_unclean=unclean)

    results = with_cluster(bootstrap, timeout_ms, work)
    idle = [key for key, error in results.items() if isinstance(error, ElectionNotNeeded)]
    results.update(dict.fromkeys(idle))
    return report(results, as_json, "Nothing had to be changed.", dict.fromkeys(idle, "not needed"))


async def _partitions(cluster: Cluster, name: str, deadline: Deadline) -> list[TopicPartition]:
    topic, _, number = name.partition(":")
    if number:
        return [TopicPartition(topic, int(number))]
    return [TopicPartition(name, index) for index in (await cluster.topic(name, deadline)).partitions]


def report(
    results: Results, as_json: bool, nothing: str, words: Mapping[TopicPartition, str] | None = None
) -> int:
    """Say what became of each partition; 1 if one was refused.

    `words` are for those that were not refused and are not done.
    """
    words = words or {}
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
            [key.topic, key.partition, words.get(key, "done") if error is None else error.message]
            for key, error in sorted(results.items())
        ]
        print_table(["topic", "partition", "result"], rows)
    else:
        click.echo(nothing, err=True)
    return 1 if any(results.values()) else 0
