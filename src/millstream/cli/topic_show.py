"""`millstream topic list|describe|config`: what there is."""

from __future__ import annotations

import fnmatch
from typing import Any

import click

from millstream.cli.options import client_options, complete_topics
from millstream.cli.output import print_json, print_table
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.configs import Config, Resource, describe_configs
from millstream.client.metadata import NO_LEADER, Partition, Topic
from millstream.client.offsets import EARLIEST, LATEST, Found, list_offsets
from millstream.deadline import Deadline
from millstream.model import TopicPartition, encode_uuid


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Show internal topics too.")
@client_options
def list_topics(pattern: str | None, internal: bool, bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """List topics, or those whose name matches PATTERN (with * and ?).

    \b
    Examples:
      millstream topic list
      millstream topic list 'orders-*' --json
    """

    async def work(cluster: Cluster, deadline: Deadline) -> list[Topic]:
        metadata = await cluster.refresh(None, deadline)
        return sorted(metadata.topics.values(), key=lambda topic: topic.name)

    topics = [
        topic
        for topic in with_cluster(bootstrap, timeout_ms, work)
        if (internal or not topic.is_internal) and (not pattern or fnmatch.fnmatchcase(topic.name, pattern))
    ]
    if as_json:
        print_json(
            [
                {
                    "name": topic.name,
                    "id": encode_uuid(topic.id),
                    "partitions": len(topic.partitions),
                    "replicas": _replicas(topic),
                    "internal": topic.is_internal,
                }
                for topic in topics
            ]
        )
    elif topics:
        print_table(
            ["topic", "partitions", "replicas"],
            [[topic.name, len(topic.partitions), _replicas(topic)] for topic in topics],
        )
    else:
        click.echo("There are no topics. Create one with `millstream topic create NAME`.", err=True)


def _replicas(topic: Topic) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@client_options
def describe(names: tuple[str, ...], bootstrap: str, timeout_ms: int, as_json: bool) -> None:
    """Show partitions, leaders, replicas and offsets of topics, and what they configure themselves.

    \b
    Examples:
      millstream topic describe orders
      millstream topic describe orders payments --json
    """

    async def work(cluster: Cluster, deadline: Deadline) -> list[dict[str, Any]]:
        return [await _describe(cluster, name, deadline) for name in names]

    topics = with_cluster(bootstrap, timeout_ms, work)
    if as_json:
        print_json(topics)
        return
    for number, topic in enumerate(topics):
        if number:
            click.echo()
        _print_topic(topic)


async def _describe(cluster: Cluster, name: str, deadline: Deadline) -> dict[str, Any]:
    cluster.forget(name)
    topic = await cluster.topic(name, deadline)
    led = [TopicPartition(name, p.index) for p in topic.partitions.values() if p.leader != NO_LEADER]
    first = await list_offsets(cluster, dict.fromkeys(led, EARLIEST), deadline)
    end = await list_offsets(cluster, dict.fromkeys(led, LATEST), deadline)
    configs = await describe_configs(cluster, Resource.TOPIC, name, deadline)
    return {
        "name": name,
        "id": encode_uuid(topic.id),
        "internal": topic.is_internal,
        "configs": {config.name: config.value for config in configs if config.source == "topic"},
        "partitions": [_partition(name, p, first, end) for p in topic.partitions.values()],
    }


def _partition(
    name: str,
    partition: Partition,
    first: dict[TopicPartition, Found],
    end: dict[TopicPartition, Found],
) -> dict[str, Any]:
    key = TopicPartition(name, partition.index)
    has_leader = key in first and key in end
    return {
        "partition": partition.index,
        "leader": None if partition.leader == NO_LEADER else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "offline": list(partition.offline),
        "start_offset": first[key].offset if has_leader else None,
        "end_offset": end[key].offset if has_leader else None,
    }


def _print_topic(topic: dict[str, Any]) -> None:
    click.echo(f"{topic['name']}  (id {topic['id']}{', internal' if topic['internal'] else ''})")
    for key, value in topic["configs"].items():
        click.echo(f"  {key}={value}")
    rows = [
        [
            part["partition"],
            part["leader"],
            part["leader_epoch"],
            _ids(part["replicas"]),
            _ids(part["isr"]),
            part["start_offset"],
            part["end_offset"],
        ]
        for part in topic["partitions"]
    ]
    print_table(["partition", "leader", "epoch", "replicas", "in sync", "start", "end"], rows)


def _ids(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


@click.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "show_all", is_flag=True, help="Show keys that have their default, too.")
@click.option("--doc", is_flag=True, help="Show what each key means.")
@client_options
def config(
    name: str,
    keys: tuple[str, ...],
    show_all: bool,
    doc: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Show the configuration of TOPIC: what differs from the defaults, all of it, or the KEYs named.

    \b
    Examples:
      millstream topic config orders
      millstream topic config orders retention.ms cleanup.policy --doc
      millstream topic config orders --all --json
    """

    async def work(cluster: Cluster, deadline: Deadline) -> list[Config]:
        return await describe_configs(cluster, Resource.TOPIC, name, deadline, keys=keys)

    found = with_cluster(bootstrap, timeout_ms, work)
    missing = set(keys) - {config.name for config in found}
    if missing:
        raise click.ClickException(
            f"a topic has no key {', '.join(sorted(missing))}. See `millstream topic config {name} --all`."
        )
    shown = [config for config in found if show_all or keys or not config.is_default]
    if as_json:
        print_json(
            [
                {
                    "name": config.name,
                    "value": config.value,
                    "source": config.source,
                    "type": config.kind,
                    "read_only": config.is_read_only,
                    "doc": config.doc,
                }
                for config in shown
            ]
        )
    elif shown:
        columns = ["key", "value", "source", *(["meaning"] if doc else [])]
        rows = [
            [config.name, config.value, config.source, *([config.doc or ""] if doc else [])]
            for config in shown
        ]
        print_table(columns, rows)
    else:
        click.echo(f"Topic {name} has the defaults only; --all shows them.", err=True)
