"""`millstream reassign plan`: which partitions to move. Plans are files of Kafka's own format."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeVar

import click

from millstream.cli.options import client_options
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.session import with_cluster
from millstream.client.balance import balanced
from millstream.client.cluster import Cluster
from millstream.client.metadata import Metadata, Topic
from millstream.client.replicas import list_reassignments
from millstream.client.wording import counted
from millstream.deadline import Deadline
from millstream.errors import MillstreamError
from millstream.model import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])
Moves = dict[TopicPartition, tuple[tuple[int, ...], list[int]]]
"""By partition its replicas now, or those that it is on its way to, and those that it should have."""

MAX_NUMBER = 2**31 - 1


def broker_list(_: click.Context, __: click.Parameter, value: str | None) -> list[int] | None:
    """An option such as `--brokers 1,2,3`."""
    if value is None:
        return None
    try:
        brokers = [int(number) for number in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of brokers: write 1,2,3") from None
    for broker in brokers:
        if brokers.count(broker) > 1:
            raise click.BadParameter(f"broker {broker} is named more than once")
    return brokers


def plan_options(command: F) -> F:
    """What decides a plan."""
    for option in (
        click.option(
            "--brokers",
            callback=broker_list,
            metavar="IDS",
            help="Where partitions may lie, such as 1,2,3; all brokers that are alive, unless said.",
        ),
        click.option(
            "--topic",
            "patterns",
            multiple=True,
            metavar="PATTERN",
            help="Only topics whose name matches (with * and ?); several with several options.",
        ),
        click.option("--replicas", "factor", type=click.IntRange(1), help="How many each is to have."),
    ):
        command = option(command)
    return command


@click.command()
@plan_options
@client_options
def plan(
    brokers: list[int] | None,
    patterns: tuple[str, ...],
    factor: int | None,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Show which partitions would move so that each broker holds and leads as many as the others.

    With --json it prints a file for `reassign execute`, in the format of Kafka's own tool.

    \b
    Examples:
      millstream reassign plan
      millstream reassign plan --brokers 1,2,3,4,5 --json > plan.json
      millstream reassign plan --topic 'orders*' --replicas 3
    """

    async def work(cluster: Cluster, deadline: Deadline) -> Moves:
        return await make_plan(cluster, brokers, patterns, factor, deadline)

    moves = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json(plan_document({partition: replicas for partition, (_, replicas) in moves.items()}))
    elif moves:
        print_moves(moves)
    else:
        click.echo("Replicas and leaders lie evenly; nothing has to be moved.", err=True)


async def make_plan(
    cluster: Cluster,
    brokers: Sequence[int] | None,
    patterns: Sequence[str],
    factor: int | None,
    deadline: Deadline,
) -> Moves:
    """The moves to an even placement on these brokers (all that are alive, where None).

    Whoever names none is told which brokers are away and lose their replicas.

    A partition on its way counts as having arrived: the brokers that it leaves hold it until then, and would
    stay with it for good if they were taken for its replicas.
    """
    moving = await list_reassignments(cluster, deadline)  # first: who arrives meanwhile leaves nobody else
    metadata = await cluster.refresh(None, deadline)
    if brokers is not None and not set(brokers) <= metadata.nodes.keys():
        missing = ", ".join(str(broker) for broker in brokers if broker not in metadata.nodes)
        raise MillstreamError(f"there is no broker {missing}. See `millstream cluster info`")
    placement: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in _matching(metadata, patterns):
        for part in topic.partitions.values():
            partition = TopicPartition(topic.name, part.index)
            leaving = moving[partition].removing if partition in moving else ()
            placement[partition] = tuple(broker for broker in part.replicas if broker not in leaving)
    racks = {node.id: node.rack for node in metadata.nodes.values()}
    chosen = brokers or list(metadata.nodes)
    for partition in sorted(placement):
        wanted = factor or len(placement[partition])
        if wanted > len(chosen):
            lack = f"{counted(wanted, 'replica')} on {counted(len(chosen), 'broker')}"
            raise MillstreamError(f"{partition} is to have {lack}. Name more --brokers, or fewer --replicas")
    away = sorted({broker for replicas in placement.values() for broker in replicas} - metadata.nodes.keys())
    if away and brokers is None:
        whose = (
            f"Broker {away[0]} is away: its" if len(away) == 1 else f"Brokers {_ids(away)} are away: their"
        )
        click.echo(f"{whose} replicas are planned onto others.", err=True)
    moves = balanced(placement, chosen, racks, factor)
    return {partition: (placement[partition], replicas) for partition, replicas in moves.items()}


def _matching(metadata: Metadata, patterns: Sequence[str]) -> list[Topic]:
    """The topics whose names match one of the patterns, all if there are none; an error if none does."""
    if not patterns:
        return list(metadata.topics.values())
    found = [
        topic
        for topic in metadata.topics.values()
        if any(fnmatch.fnmatchcase(topic.name, pattern) for pattern in patterns)
    ]
    if not found:
        raise MillstreamError(f"no topic matches {', '.join(patterns)}. See `millstream topic list`")
    return found


def print_moves(moves: Moves) -> None:
    rows: list[list[Cell]] = [
        [key.topic, key.partition, _ids(now), _ids(then)] for key, (now, then) in moves.items()
    ]
    print_table(["topic", "partition", "replicas", "to be"], rows)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def plan_document(targets: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    return {
        "version": 1,
        "partitions": [
            {"topic": key.topic, "partition": key.partition, "replicas": list(replicas)}
            for key, replicas in targets.items()
        ],
    }


def read_plan(file: IO[str]) -> dict[TopicPartition, list[int]]:
    """The plan in a file of Kafka's format, which is refused as a whole unless all of it can be asked for."""
    try:
        return _targets(json.load(file))
    except ValueError as error:
        raise MillstreamError(
            f"{file.name} is no plan, as `millstream reassign plan --json` makes: {error}"
        ) from None


def _targets(document: Any) -> dict[TopicPartition, list[int]]:
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise ValueError('it has no list "partitions"')
    if document.get("version", 1) != 1:
        raise ValueError(f"its version is {json.dumps(document['version'])}, and only 1 is known")
    targets: dict[TopicPartition, list[int]] = {}
    for number, entry in enumerate(document["partitions"]):
        try:
            partition, replicas = _target(entry)
            if partition in targets:
                raise ValueError(f"{partition} is listed before")
        except ValueError as error:
            raise ValueError(f"partitions[{number}]: {error}") from None
        targets[partition] = replicas
    return targets


def _target(entry: Any) -> tuple[TopicPartition, list[int]]:
    """One partition and its replicas. No number or list is made of what is none."""
    if not isinstance(entry, dict):
        raise ValueError(f"{json.dumps(entry)} is not an object")
    for key in ("topic", "partition", "replicas"):
        if key not in entry:
            raise ValueError(f'it has no "{key}"')
    topic, index, replicas = entry["topic"], entry["partition"], entry["replicas"]
    if not isinstance(topic, str):
        raise ValueError(f'"topic" is {json.dumps(topic)}, not a string')
    if not _is_number(index):
        raise ValueError(f'"partition" is {json.dumps(index)}, not a number')
    if not isinstance(replicas, list) or not all(map(_is_number, replicas)):
        raise ValueError(f'"replicas" is {json.dumps(replicas)}, not a list of brokers')
    log_dirs = entry.get("log_dirs", [])
    if not isinstance(log_dirs, list) or any(folder != "any" for folder in log_dirs):
        raise ValueError(
            f'"log_dirs" is {json.dumps(log_dirs)}, but brokers choose the log dir themselves: '
            'leave it out, or write "any" for each'
        )
    return TopicPartition(topic, index), replicas


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER
