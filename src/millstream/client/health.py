"""What a cluster lacks: brokers, replicas in sync, leaders. Decided from metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.client.cluster import Cluster
from millstream.client.configs import topic_values
from millstream.client.deadline import Deadline
from millstream.client.metadata import Metadata, Partition
from millstream.model import TopicPartition

MIN_IN_SYNC = "min.insync.replicas"


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
    """Some replica is not in sync."""

    @property
    def is_healthy(self) -> bool:
        return self.controller is not None and not (
            self.missing_brokers or self.offline or self.under_min_isr or self.under_replicated
        )

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.is_healthy:
            return f"healthy: {_count(len(self.brokers), 'broker')}, {_count(self.partitions, 'partition')}"
        found = [
            "no controller" if self.controller is None else "",
            f"brokers missing: {', '.join(map(str, self.missing_brokers))}" if self.missing_brokers else "",
            f"{len(self.offline)} offline" if self.offline else "",
            f"{len(self.under_min_isr)} under min ISR" if self.under_min_isr else "",
            f"{len(self.under_replicated)} under-replicated" if self.under_replicated else "",
        ]
        return f"unhealthy: {'; '.join(filter(None, found))} (of {_count(self.partitions, 'partition')})"


async def examine(cluster: Cluster, deadline: Deadline) -> Health:
    """The cluster's health now."""
    metadata = await cluster.refresh(None, deadline)
    names = sorted(metadata.topics)
    values = await topic_values(cluster, names, MIN_IN_SYNC, deadline)
    return judge(metadata, {name: int(value or 1) for name, value in values.items()})


def judge(metadata: Metadata, min_in_sync: Mapping[str, int]) -> Health:
    """The health that metadata shows, given what min.insync.replicas is for each topic."""
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
            if alive < min(min_in_sync.get(name, 1), len(partition.replicas)):
                under_min[key] = partition
            if alive < len(partition.replicas):
                under[key] = partition
    return Health(
        metadata.controller_id if metadata.controller_id in nodes else None,
        sorted(nodes),
        sorted(mentioned - nodes.keys()),
        total,
        offline,
        under_min,
        under,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
