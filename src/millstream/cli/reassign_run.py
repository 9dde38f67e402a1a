"""`millstream reassign execute|status|cancel`: moves under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import IO

import click

from millstream.cli.elect import Results, report
from millstream.cli.options import ask, byte_count, client_options, complete_topics
from millstream.cli.output import print_json, print_table
from millstream.cli.reassign_plan import make_plan, plan_options, print_moves, read_plan
from millstream.cli.session import with_cluster
from millstream.client import throttling
from millstream.client.cluster import Cluster
from millstream.client.replicas import Reassignment, list_reassignments
from millstream.client.replicas import reassign as ask_to_reassign
from millstream.client.wording import counted
from millstream.deadline import Deadline
from millstream.errors import KafkaError, MillstreamError, NoReassignmentInProgress
from millstream.model import TopicPartition

POLL_S = 0.2
STILL_HELD = "The rate holds until `millstream reassign unthrottle`."
ANSWER_TIMEOUT_MS = 2000


@click.command()
@click.argument("file", type=click.File("r"), required=False)
@plan_options
@click.option("--wait", is_flag=True, help="Come back when all have arrived, or --timeout has passed.")
@click.option(
    "--throttle",
    "rate",
    callback=byte_count,
    metavar="RATE",
    help="Copy at most so many bytes a second at each broker, such as 10MB. With --wait until all have"
    " arrived, else until `reassign unthrottle`.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def execute(
    file: IO[str] | None,
    brokers: list[int] | None,
    patterns: tuple[str, ...],
    factor: int | None,
    wait: bool,
    rate: int | None,
    yes: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> int:
    """Move partitions as FILE says (- is standard input), or as `reassign plan` would.

    Records are copied in the background; partitions are written and read meanwhile.

    \b
    Examples:
      millstream reassign execute plan.json
      millstream reassign execute --brokers 1,2,3,4,5 --wait --yes --timeout 10m
      millstream reassign execute plan.json --throttle 20MB --wait --timeout 2h
    """
    if file is not None and (brokers or patterns or factor):
        raise click.UsageError("give a plan or what decides one, not both")
    targets = None if file is None else read_plan(file)

    async def planned(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, list[int]]:
        moves = await make_plan(cluster, brokers, patterns, factor, deadline)
        if moves and not yes:
            print_moves(moves)
        return {partition: replicas for partition, (_, replicas) in moves.items()}

    if targets is None:
        targets = with_cluster(bootstrap, timeout_ms, planned)
    if targets:
        ask(f"Move {counted(len(targets), 'partition')}?", yes)

    results: Results = {}
    moving: Collection[TopicPartition] = targets
    is_held = is_asked = False

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        nonlocal moving, is_held, is_asked
        if targets and rate is not None:
            is_held = True
            await throttling.throttle(cluster, targets, rate, deadline)
        if targets:
            results.update(await ask_to_reassign(cluster, targets, deadline))
        is_asked = True
        if wait:
            moving = await _arrived(cluster, deadline)
        else:
            with contextlib.suppress(KafkaError):  # what was asked for has been done
                moving = await list_reassignments(cluster, deadline)
        is_over = wait or (is_held and None not in results.values())  # other moves may be held, too
        if is_over and not moving and rate is not None:
            await throttling.unthrottle(cluster, Deadline(timeout_ms))
            is_held = False

    failure: MillstreamError | None = None
    try:
        with_cluster(bootstrap, timeout_ms, work)
    except MillstreamError as error:
        failure = error
    finally:
        if is_held:
            click.echo(STILL_HELD, err=True)
    if is_asked:
        code = report(results, as_json, "Nothing has to be moved.", dict.fromkeys(moving, "begun"))
    if failure is not None:
        raise failure
    if wait and moving:
        raise MillstreamError(
            f"--timeout has passed with {counted(len(moving), 'partition')} still on the way. "
            "The moves go on: see `millstream reassign status`"
        )
    return code


async def _arrived(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, Reassignment]:
    """Wait until no partition is on its way, or the deadline has passed; those that still are."""
    while True:
        # Also at the end there is time for an answer: that none came in it says something of the broker.
        moving = await list_reassignments(cluster, Deadline(max(deadline.remaining_ms, ANSWER_TIMEOUT_MS)))
        if not moving or deadline.has_passed:
            return moving
        await asyncio.sleep(min(POLL_S, deadline.remaining))


@click.command()
@client_options
def unthrottle(bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Let replicas copy as fast as they can: takes back what --throttle set, for all topics.

    \b
    Examples:
      millstream reassign unthrottle
    """
    held = with_cluster(bootstrap, timeout_ms, throttling.unthrottle)
    if as_json:
        print_json(held)
    else:
        click.echo(f"No longer held back: {', '.join(held)}" if held else "No topic was held back.", err=True)


@click.command()
@client_options
def status(bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Show the partitions that are on their way: where to, and what they leave.

    \b
    Examples:
      millstream reassign status --json
    """
    found = with_cluster(bootstrap, timeout_ms, list_reassignments)
    if as_json:
        print_json(
            [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "replicas": list(each.replicas),
                    "adding": list(each.adding),
                    "removing": list(each.removing),
                }
                for key, each in sorted(found.items())
            ]
        )
    elif found:
        print_table(
            ["topic", "partition", "replicas", "adding", "removing"],
            [[key.topic, key.partition, *_ids(each)] for key, each in sorted(found.items())],
        )
    else:
        click.echo("No partition is on its way.", err=True)


def _ids(each: Reassignment) -> list[str]:
    return [",".join(map(str, ids)) or "-" for ids in (each.replicas, each.adding, each.removing)]


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option(
    "--yes", is_flag=True, expose_value=False, help="As with `reassign execute`; nothing is asked here."
)
@client_options
def cancel(topics: tuple[str, ...], bootstrap: str, timeout_ms: int, as_json: bool) -> int:
    """Leave the partitions of TOPICs, or all that are on their way, where they were.

    \b
    Examples:
      millstream reassign cancel
      millstream reassign cancel orders
    """

    async def work(cluster: Cluster, deadline: Deadline) -> Results:
        moving = await list_reassignments(cluster, deadline)
        chosen = [key for key in moving if not topics or key.topic in topics]
        for name in sorted({*topics} - {key.topic for key in chosen}):
            await cluster.topic(name, deadline)  # an error, if there is none
        results = await ask_to_reassign(cluster, dict.fromkeys(chosen), deadline) if chosen else {}
        return {
            key: None if isinstance(error, NoReassignmentInProgress) else error
            for key, error in results.items()
        }

    whose = f" of {', '.join(topics)}" if topics else ""
    return report(with_cluster(bootstrap, timeout_ms, work), as_json, f"No partition{whose} is on its way.")
