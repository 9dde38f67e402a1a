"""Holding partitions that move to a rate, and letting them go again: what is set for topics and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millstream.client.cluster import Cluster
from millstream.client.configs import Change, Resource, alter_configs, topic_values
from millstream.client.deadline import Deadline
from millstream.model import TopicPartition

LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
ALL_BROKERS = ""


async def throttle(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int]], rate: int, deadline: Deadline
) -> None:
    """Hold what these moves copy to so many bytes a second, at each broker that gives and each that takes.

    Replicas that are in sync are never held back, so that all that is copied from may be named.
    """
    metadata = await cluster.refresh(None, deadline)
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for (topic, index), replicas in sorted(targets.items()):
        known = metadata.topics.get(topic)
        part = None if known is None else known.partitions.get(index)
        if part is None:
            continue  # the move is refused, too
        added = [broker for broker in replicas if broker not in part.replicas]
        if added:
            leaders.setdefault(topic, []).extend(_pairs(index, part.replicas))
            followers.setdefault(topic, []).extend(_pairs(index, added))
    for topic, pairs in leaders.items():
        lists = [
            (LEADERS, Change.SET, ",".join(pairs)),
            (FOLLOWERS, Change.SET, ",".join(followers[topic])),
        ]
        await alter_configs(cluster, Resource.TOPIC, topic, lists, deadline)
    if leaders:
        rates = [(key, Change.SET, str(rate)) for key in RATES]
        await alter_configs(cluster, Resource.BROKER, ALL_BROKERS, rates, deadline)


async def unthrottle(cluster: Cluster, deadline: Deadline) -> list[str]:
    """Let replicas copy as fast as they can; answers the topics that were held back."""
    metadata = await cluster.refresh(None, deadline)
    names = sorted(metadata.topics)
    held = {
        name
        for key in (LEADERS, FOLLOWERS)
        for name, value in (await topic_values(cluster, names, key, deadline)).items()
        if value
    }
    for name in sorted(held):
        lists = [(key, Change.DELETE, None) for key in (LEADERS, FOLLOWERS)]
        await alter_configs(cluster, Resource.TOPIC, name, lists, deadline)
    rates = [(key, Change.DELETE, None) for key in RATES]
    await alter_configs(cluster, Resource.BROKER, ALL_BROKERS, rates, deadline)
    return sorted(held)


def _pairs(index: int, brokers: Iterable[int]) -> list[str]:
    return [f"{index}:{broker}" for broker in brokers]
