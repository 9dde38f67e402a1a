"""`millstream group seek|delete`: moves that say first what they would do."""

from __future__ import annotations

import time
from typing import Any

import click

from millstream.cli.group_lag import existing_partitions
from millstream.cli.offset_range import OffsetRange, parse_offset_range, resolve
from millstream.cli.options import ask, client_options, complete_groups, complete_topics
from millstream.cli.output import print_json, print_table
from millstream.cli.session import with_admin
from millstream.client.admin import AsyncAdmin
from millstream.client.offsets import EARLIEST, LATEST
from millstream.deadline import Deadline
from millstream.errors import UnknownMemberId
from millstream.model import TopicPartition


@click.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option("--to", "to", metavar="POSITION", help="start, end, an offset, +N, -N, or @TIME.")
@click.option("--shift", type=int, metavar="N", help="By N records from where the group is; may be negative.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    shell_complete=complete_topics,
    help="Only there, such as orders or orders:0,2; else everywhere that the group has committed.",
)
@click.option("--execute", is_flag=True, help="Do it; without this nothing is changed.")
@client_options
def seek(
    name: str,
    to: str | None,
    shift: int | None,
    topics: tuple[str, ...],
    execute: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Move the offsets of GROUP. Without --execute it only shows where they would go.

    POSITION is `start`, `end`, an offset, `+N` (N after the first record), `-N` (the last N records), or
    a time: `@2026-05-31T12:30:00Z`, `@-1h` (an hour ago). Offsets outside of a partition become its first
    or its end. The group must not have members: stop its consumers first.

    \b
    Examples:
      millstream group seek billing --to start
      millstream group seek billing --to @-1h --topic orders --execute
      millstream group seek billing --shift -10 --topic orders:0,2 --execute
    """
    if (to is None) == (shift is None):
        raise click.UsageError("give either --to POSITION or --shift N")
    wanted = None if to is None else _position(to)
    places = [_place(text) for text in topics]

    async def work(admin: AsyncAdmin, deadline: Deadline) -> list[dict[str, Any]]:
        committed = {
            partition: position.offset
            for partition, position in (await admin.group_offsets(name, timeout=deadline.remaining)).items()
        }
        partitions = await _partitions(admin, places, list(committed), deadline)
        if wanted is None:
            targets = await _shifted(admin, partitions, committed, shift or 0, deadline)
        else:
            spans = await resolve(admin, partitions, wanted, deadline) if partitions else {}
            targets = {partition: span.start for partition, span in spans.items()}
        if execute and targets:
            try:
                await admin.alter_group_offsets(name, targets, timeout=deadline.remaining)
            except UnknownMemberId:
                raise click.ClickException(
                    f"the group {name} has members, which would go on from where they are. "
                    "Stop its consumers first."
                ) from None
        return [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "from": committed.get(partition),
                "to": offset,
            }
            for partition, offset in sorted(targets.items())
        ]

    moves = with_admin(bootstrap, timeout_ms, work)
    if as_json:
        print_json({"group": name, "executed": execute, "moves": moves})
    elif not moves:
        raise click.ClickException(
            f"the group {name} has committed nothing that could be moved. Name a topic with --topic."
        )
    else:
        columns = ["topic", "partition", "from", "to"]
        print_table(columns, [[move[column] for column in columns] for move in moves])
        if not execute:
            click.echo("Nothing was changed. Give --execute to do it.", err=True)


def _position(text: str) -> OffsetRange:
    try:
        found = parse_offset_range(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if found.stop is not None:
        raise click.UsageError(f"{text!r} is a range; a group can only go to one place")
    return found


def _place(text: str) -> tuple[str, list[int] | None]:
    """A topic, and those of its partitions that are meant; None for all."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    try:
        return topic, [int(number) for number in numbers.split(",")]
    except ValueError:
        raise click.UsageError(f"{text!r} is not a topic with partitions: write orders:0,2") from None


async def _partitions(
    admin: AsyncAdmin,
    places: list[tuple[str, list[int] | None]],
    committed: list[TopicPartition],
    deadline: Deadline,
) -> list[TopicPartition]:
    if not places:
        return await existing_partitions(admin, sorted(committed), deadline)
    found: list[TopicPartition] = []
    for topic, numbers in places:
        known = (await admin.describe_topic(topic, timeout=deadline.remaining)).partitions
        missing = [number for number in numbers or () if number not in known]
        if missing:
            raise click.ClickException(f"the topic {topic} has no partition {missing[0]}")
        found += [TopicPartition(topic, index) for index in (known if numbers is None else numbers)]
    return list(dict.fromkeys(found))


async def _shifted(
    admin: AsyncAdmin,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
    shift: int,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """Where the group goes from where it is; it has to be somewhere."""
    for partition in partitions:
        if partition not in committed:
            raise click.ClickException(
                f"the group has committed nothing in {partition}, so that it cannot be moved from there. "
                "Use --to."
            )
    if not partitions:
        return {}
    first = await admin.offsets_at(dict.fromkeys(partitions, EARLIEST), timeout=deadline.remaining)
    end = await admin.offsets_at(dict.fromkeys(partitions, LATEST), timeout=deadline.remaining)
    return {
        each: min(max(committed[each] + shift, first[each].offset), end[each].offset) for each in partitions
    }


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Only forget the offsets in this topic; the group stays.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    yes: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Delete groups that have no members, with all their offsets.

    \b
    Examples:
      millstream group delete billing
      millstream group delete billing --topic orders --yes
    """
    what = f"the offsets of {', '.join(names)} in {', '.join(topics)}" if topics else ", ".join(names)
    ask(f"Delete {what}?", yes)

    async def work(admin: AsyncAdmin, deadline: Deadline) -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        for name in names:
            if not topics:
                await admin.delete_group(name, timeout=deadline.remaining)
                done.append({"name": name, "deleted": True})
                continue
            committed = await admin.group_offsets(name, timeout=deadline.remaining)
            gone = sorted(partition for partition in committed if partition.topic in topics)
            if gone:
                await admin.delete_group_offsets(name, gone, timeout=deadline.remaining)
            done.append({"name": name, "deleted": False, "offsets": len(gone)})
        return done

    for result in (results := with_admin(bootstrap, timeout_ms, work)):
        if as_json:
            break
        if result["deleted"]:
            click.echo(f"Group {result['name']} deleted.")
        else:
            count = result["offsets"]
            click.echo(f"Group {result['name']}: {count} offset{'' if count == 1 else 's'} deleted.")
    if as_json:
        print_json(results)
