"""`millstream topic create|alter|trim|delete`: changes, each said in one line when it is done."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.options import ask, client_options, complete_topics, key_values
from millstream.cli.output import print_json
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.configs import Change, Resource, alter_configs
from millstream.client.errors import NoSuchTopic
from millstream.client.offsets import LATEST, list_offsets
from millstream.client.record_deletion import delete_records
from millstream.client.topics import (
    BROKER_DEFAULT,
    add_partitions,
    create_topic,
    delete_topic,
)
from millstream.client.wording import counted
from millstream.deadline import Deadline
from millstream.errors import KafkaError, OffsetOutOfRange, TopicAlreadyExists
from millstream.model import TopicPartition, encode_uuid


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), help="How many; the broker's default if left out."
)
@click.option(
    "-r", "--replicas", type=click.IntRange(min=1), help="Copies of each partition, on as many brokers."
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    callback=key_values,
    metavar="KEY=VALUE",
    help="A configuration key, such as retention.ms=3600000.",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing for a topic that exists.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")
@client_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: dict[str, str],
    if_not_exists: bool,
    dry_run: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Create topics.

    \b
    Examples:
      millstream topic create orders -p 12
      millstream topic create users -c cleanup.policy=compact
    """

    async def work(cluster: Cluster, deadline: Deadline) -> list[dict[str, Any]]:
        done = []
        for name in names:
            try:
                created = await create_topic(
                    cluster,
                    name,
                    deadline,
                    partitions=partitions or BROKER_DEFAULT,
                    replication_factor=replicas or BROKER_DEFAULT,
                    configs=configs,
                    validate_only=dry_run,
                )
            except TopicAlreadyExists:
                if not if_not_exists:
                    raise
                done.append({"name": name, "created": False})
                continue
            done.append(
                {
                    "name": name,
                    "created": not dry_run,
                    "id": encode_uuid(created.id),
                    "partitions": created.partitions,
                    "replicas": created.replication_factor,
                }
            )
        return done

    done = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json(done)
        return
    for topic in done:
        if "partitions" not in topic:
            click.echo(f"Topic {topic['name']} exists already.")
            continue
        verb = "could be created" if dry_run else "created"
        click.echo(f"Topic {topic['name']} {verb}: {counted(topic['partitions'], 'partition')}.")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), help="Grow to this many; they cannot become fewer."
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    callback=key_values,
    metavar="KEY=VALUE",
    help="Set a configuration key.",
)
@click.option("--reset", "resets", multiple=True, metavar="KEY", help="Give a key its default again.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")
@client_options
def alter(
    names: tuple[str, ...],
    partitions: int | None,
    configs: dict[str, str],
    resets: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Add partitions to topics, or change their configuration.

    \b
    Examples:
      millstream topic alter orders -p 24
      millstream topic alter orders -c retention.ms=86400000 --reset max.message.bytes
    """
    changes: list[tuple[str, Change, str | None]] = [
        *((key, Change.SET, value) for key, value in configs.items()),
        *((key, Change.DELETE, None) for key in resets),
    ]
    if not changes and partitions is None:
        raise click.UsageError("there is nothing to change: give -p, -c KEY=VALUE or --reset KEY")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        for name in names:
            await cluster.topic(name, deadline)
            if changes:
                await alter_configs(cluster, Resource.TOPIC, name, changes, deadline, validate_only=dry_run)
            if partitions is not None:
                await add_partitions(cluster, name, partitions, deadline, validate_only=dry_run)

    with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json([{"name": name, "altered": not dry_run} for name in names])
        return
    for name in names:
        click.echo(f"Topic {name} {'could be altered' if dry_run else 'altered'}.")


@click.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "--before", "before", required=True, metavar="OFFSET", help="An offset, or `end` for all records."
)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Only this one; may be repeated."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
def trim(
    name: str,
    before: str,
    partitions: tuple[int, ...],
    yes: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Delete the records of TOPIC before an offset. They are gone for good.

    \b
    Examples:
      millstream topic trim orders --before end --yes
      millstream topic trim orders --before 1000 -p 0
    """
    if before != "end" and not before.isdecimal():
        raise click.UsageError(f"--before {before}: write an offset, or end")
    ask(f"Delete records of topic {name} before {before}?", yes)

    async def work(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, int | KafkaError]:
        topic = await cluster.topic(name, deadline)
        chosen = [TopicPartition(name, index) for index in partitions or topic.partitions]
        offset = -1 if before == "end" else int(before)
        results = await delete_records(cluster, dict.fromkeys(chosen, offset), deadline)
        beyond = [at for at, result in results.items() if isinstance(result, OffsetOutOfRange)]
        ends = await list_offsets(cluster, dict.fromkeys(beyond, LATEST), deadline) if beyond else {}
        for at, end in ends.items():
            results[at] = OffsetOutOfRange(
                f"--before {before} is beyond the end of {at}: write an offset up to {end.offset}, or end"
            )
        return results

    results = with_cluster(bootstrap, timeout_ms, work)
    failures = [error for error in results.values() if isinstance(error, KafkaError)]
    if as_json:
        print_json(
            [
                {"partition": p.partition, "error": str(result)}
                if isinstance(result, KafkaError)
                else {"partition": p.partition, "start_offset": result}
                for p, result in results.items()
            ]
        )
    else:
        for partition, result in results.items():
            if not isinstance(result, KafkaError):
                click.echo(f"Partition {partition} now starts at offset {result}.")
    if failures:
        raise failures[0]


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Do nothing for a topic that does not exist.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(
    names: tuple[str, ...], if_exists: bool, yes: bool, bootstrap: str, timeout_ms: int, as_json: bool
) -> None:
    """Delete topics and all their records. They are gone for good.

    \b
    Examples:
      millstream topic delete orders
      millstream topic delete orders payments --yes
    """
    ask(f"Delete {counted(len(names), 'topic')} ({', '.join(names)})?", yes)

    async def work(cluster: Cluster, deadline: Deadline) -> list[dict[str, Any]]:
        done = []
        for name in names:
            try:
                await delete_topic(cluster, name, deadline)
            except NoSuchTopic:
                if not if_exists:
                    raise
                done.append({"name": name, "deleted": False})
                continue
            done.append({"name": name, "deleted": True})
        return done

    done = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json(done)
        return
    for topic in done:
        click.echo(f"Topic {topic['name']} {'deleted' if topic['deleted'] else 'does not exist'}.")
