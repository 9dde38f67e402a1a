"""What a cluster lacks: brokers that answer, replicas in sync, leaders, room on disks, readable records."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millstream.client.cluster import NO_CONTROLLER, Cluster
from millstream.client.configs import topic_values
from millstream.client.errors import raise_for
from millstream.client.metadata import Metadata, Partition
from millstream.client.replicas import reassignments_by
from millstream.client.wording import counted
from millstream.deadline import Deadline
from millstream.errors import KafkaError, LeaderNotAvailable, NetworkException, RequestTimedOut
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    MetadataRequest,
    MetadataResponse,
)

MIN_IN_SYNC = "min.insync.replicas"

DIRS_TIMEOUT_MS = 2000
"""How long a broker is asked for its log dirs, the controller then also for moves. One that does not answer
the first is said to be unresponsive."""

MAX_ASKED = 4
"""How many brokers are asked in search of the controller. Apache Kafka's do not tell which one it is."""

Adding = Mapping[TopicPartition, Collection[int]]
"""The brokers to which partitions are being moved. They are not missed before they have arrived."""

Dirs = Mapping[int, Sequence[DescribeLogDirsResponse.DescribeLogDirsResult]]
"""The log dirs of brokers, as they describe them."""


@dataclass(frozen=True, slots=True)
class Health:
    """A cluster at one moment. Partitions by what is wrong with them; one may be in several lists."""

    controller: int | None
    brokers: list[int]
    missing_brokers: list[int]
    partitions: int
    offline: dict[TopicPartition, Partition] = field(default_factory=dict)
    """Without a leader: neither written nor read."""
    under_min_isr: dict[TopicPartition, Partition] = field(default_factory=dict)
    """Refuse writes with acks=all. A topic with fewer replicas than min.insync.replicas needs all of them."""
    under_replicated: dict[TopicPartition, Partition] = field(default_factory=dict)
    """Some replica is not in sync; those to which a partition is being moved are not counted."""
    failed_dirs: dict[int, list[str]] = field(default_factory=dict)
    """Log dirs, by broker, that cannot be used."""
    full_dirs: dict[int, list[str]] = field(default_factory=dict)
    """Log dirs, by broker, that have no room."""
    damaged: dict[TopicPartition, list[int]] = field(default_factory=dict)
    """Brokers whose replica of a partition has records that cannot be read."""
    unresponsive_brokers: list[int] = field(default_factory=list)
    """In the cluster, but they did not answer: what they lead may be neither written nor read."""

    @property
    def is_healthy(self) -> bool:
        return self.controller is not None and not (
            self.missing_brokers
            or self.unresponsive_brokers
            or self.offline
            or self.under_min_isr
            or self.under_replicated
            or self.failed_dirs
            or self.full_dirs
            or self.damaged
        )

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.is_healthy:
            return f"healthy: {counted(len(self.brokers), 'broker')}, {counted(self.partitions, 'partition')}"
        missing, silent = (
            ", ".join(map(str, ids)) for ids in (self.missing_brokers, self.unresponsive_brokers)
        )
        found = [
            "no controller" if self.controller is None else "",
            f"brokers missing: {missing}" if missing else "",
            f"brokers that do not answer: {silent}" if silent else "",
            f"{len(self.offline)} offline" if self.offline else "",
            f"{len(self.under_min_isr)} under min ISR" if self.under_min_isr else "",
            f"{len(self.under_replicated)} under-replicated" if self.under_replicated else "",
            f"{len(self.damaged)} with damaged records" if self.damaged else "",
            *(f"log dir {path} of broker {id_} has failed" for id_, path in _each(self.failed_dirs)),
            *(f"log dir {path} of broker {id_} is full" for id_, path in _each(self.full_dirs)),
        ]
        return f"unhealthy: {'; '.join(filter(None, found))} (of {counted(self.partitions, 'partition')})"


async def examine(cluster: Cluster, deadline: Deadline) -> Health:
    """The cluster's health now."""
    metadata, told_by = await current_metadata(cluster, deadline)
    names = sorted(metadata.topics)
    values = await topic_values(cluster, names, MIN_IN_SYNC, deadline, first_asked=told_by)
    dirs, unresponsive, adding = await ask_brokers(cluster, metadata, deadline)
    min_in_sync = {name: int(value or 1) for name, value in values.items()}
    return judge(metadata, min_in_sync, dirs, unresponsive, adding)


async def current_metadata(cluster: Cluster, deadline: Deadline) -> tuple[Metadata, int | None]:
    """The cluster as its controller sees it, and that broker; where it does not answer, as any broker does.

    A broker that is cut off from the others tells what it last heard, and of no controller where it cannot
    reach the registry. Whoever is said to be the controller may have been that long ago, and know who is now.
    """
    # As it was told: who does not answer what follows is no longer taken for the controller by `cluster`.
    seen, told_by = replace(await cluster.refresh([], deadline)), None
    asked: set[int] = set()
    while len(asked) < MAX_ASKED and (told_by is None or told_by != seen.controller_id):
        is_named = seen.controller_id not in {NO_CONTROLLER, *asked}
        broker_id = seen.controller_id if is_named else next(iter(seen.nodes.keys() - asked), NO_CONTROLLER)
        if broker_id == NO_CONTROLLER:
            break
        asked.add(broker_id)
        within = deadline.sooner(min(DIRS_TIMEOUT_MS, deadline.remaining_ms / 3))
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        try:
            response = await cluster.request(broker_id, request, MetadataResponse, within)
        except (NetworkException, RequestTimedOut, LeaderNotAvailable):
            if is_named:
                break
            continue
        raise_for(response.error_code, None, "metadata")
        cluster.metadata.update(response, is_complete=True)
        seen, told_by = replace(cluster.metadata), broker_id
    if told_by is None:
        seen = replace(await cluster.refresh(None, deadline))
    return seen, told_by


async def adding_replicas(cluster: Cluster, metadata: Metadata, deadline: Deadline) -> Adding:
    """What is being moved, as the controller says if it answers; it is asked only if something is missing."""
    partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    if not any(is_under_replicated(part, metadata) for part in partitions):
        return {}
    try:
        moving = await reassignments_by(cluster, metadata.controller_id, deadline)
    except KafkaError:
        return {}  # it is silent, does not tell this to everybody, or does not know of it
    return {key: each.adding for key, each in moving.items()}


def is_under_replicated(partition: Partition, metadata: Metadata, adding: Collection[int] = ()) -> bool:
    """Whether a replica is not in sync, or not there, other than those that are being added."""
    in_sync = [replica for replica in partition.isr if replica in metadata.nodes]
    return any(replica not in in_sync for replica in partition.replicas if replica not in adding)


async def ask_brokers(
    cluster: Cluster, metadata: Metadata, deadline: Deadline
) -> tuple[Dirs, list[int], Adding]:
    """What brokers say of their log dirs, nothing of those that do not tell it; who is silent; the moves."""
    dirs: dict[int, Sequence[DescribeLogDirsResponse.DescribeLogDirsResult]] = {}
    unresponsive: list[int] = []
    adding: dict[TopicPartition, Collection[int]] = {}

    async def ask(broker_id: int) -> None:
        request = DescribeLogDirsRequest(topics=[], wants_hindrances=True)
        within = deadline.sooner(DIRS_TIMEOUT_MS)
        try:
            answer = await cluster.request(broker_id, request, DescribeLogDirsResponse, within)
            dirs[broker_id] = answer.results
        except (NetworkException, RequestTimedOut):
            unresponsive.append(broker_id)
            return
        except KafkaError:
            pass  # it answers, and does not tell this to everybody
        if broker_id == metadata.controller_id:  # afterwards: a controller that is busy is not silent
            adding.update(await adding_replicas(cluster, metadata, within))

    await asyncio.gather(*map(ask, metadata.nodes))
    return dirs, sorted(unresponsive), adding


def judge(
    metadata: Metadata,
    min_in_sync: Mapping[str, int],
    dirs: Dirs | None = None,
    unresponsive: Sequence[int] = (),
    adding: Adding | None = None,
) -> Health:
    """The health that metadata shows, given what min.insync.replicas is for each topic, and the log dirs.

    `unresponsive` are brokers that did not answer, `adding` those to which partitions are being moved.
    """
    adding = adding or {}
    dirs = dict(sorted((dirs or {}).items()))
    nodes = metadata.nodes
    total = 0
    mentioned: set[int] = set()
    offline, under_min, under = {}, {}, {}
    for name, topic in sorted(metadata.topics.items()):
        for partition in topic.partitions.values():
            key = TopicPartition(name, partition.index)
            total += 1
            mentioned.update(partition.replicas)
            if partition.leader not in nodes:
                offline[key] = partition
            alive = sum(replica in nodes for replica in partition.isr)
            # Brokers count those being added, too.
            if alive < min(min_in_sync.get(name, 1), len(partition.replicas)):
                under_min[key] = partition
            if is_under_replicated(partition, metadata, adding.get(key, ())):
                under[key] = partition
    return Health(
        metadata.controller_id if metadata.controller_id in nodes else None,
        sorted(nodes),
        sorted(mentioned - nodes.keys()),
        total,
        offline,
        under_min,
        under,
        {id_: paths for id_ in dirs if (paths := [each.log_dir for each in dirs[id_] if each.error_code])},
        {id_: paths for id_ in dirs if (paths := [each.log_dir for each in dirs[id_] if each.is_full])},
        _damaged(dirs),
        list(unresponsive),
    )


def _damaged(dirs: Dirs) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for broker_id, described in dirs.items():
        for topic in (topic for each in described for topic in each.damaged):
            for index in topic.partitions:
                found.setdefault(TopicPartition(topic.name, index), []).append(broker_id)
    return found


def _each(dirs: Mapping[int, Sequence[str]]) -> list[tuple[int, str]]:
    return [(broker_id, path) for broker_id, paths in dirs.items() for path in paths]
