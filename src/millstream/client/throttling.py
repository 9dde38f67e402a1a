"""Holding partitions that move to a rate, and letting them go again: what is set for topics and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence

from millstream.client.cluster import Cluster
from millstream.client.configs import Change, Resource, alter_configs, describe_configs, topic_values
from millstream.client.replicas import list_reassignments
from millstream.deadline import Deadline
from millstream.model import TopicPartition

LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
ALL_BROKERS = ""
OF_ONE_BROKER = "dynamic broker"

ANSWER_TIMEOUT_MS = 2000
"""How long a broker is asked for its own rates before it is looked whether it is still there."""


async def throttle(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int]], rate: int, deadline: Deadline
) -> None:
    """Hold what these moves copy to so many bytes a second, at each broker that gives and each that takes.

    So are the moves that are under way: brokers have one rate, and a topic's list names all of its replicas
    that are held. Those in sync are never held back, so that all that is copied from may be named. Rates that
    single brokers have would win over that one, and are taken away.
    """
    metadata = await cluster.refresh(None, deadline)
    moving = await list_reassignments(cluster, deadline)
    wanted = {key: _without(each.replicas, each.removing) for key, each in moving.items()} | dict(targets)
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for key, replicas in sorted(wanted.items()):
        topic, index = key
        known = metadata.topics.get(topic)
        part = None if known is None else known.partitions.get(index)
        if part is None:
            continue  # the move is refused, too
        before = _without(part.replicas, moving[key].adding) if key in moving else part.replicas
        added = _without(replicas, before)
        if added:
            leaders.setdefault(topic, []).extend(_pairs(index, part.replicas))
            followers.setdefault(topic, []).extend(_pairs(index, added))
    for topic, pairs in leaders.items():
        lists = [
            (LEADERS, Change.SET, ",".join(pairs)),
            (FOLLOWERS, Change.SET, ",".join(followers[topic])),
        ]
        await alter_configs(cluster, Resource.TOPIC, topic, lists, deadline)
    rates = [(key, Change.SET, str(rate)) for key in RATES]
    await alter_configs(cluster, Resource.BROKER, ALL_BROKERS, rates, deadline)
    await _take_own_rates(cluster, deadline)


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
    await _take_own_rates(cluster, deadline)
    return sorted(held)


async def _take_own_rates(cluster: Cluster, deadline: Deadline) -> None:
    """Take away the rates that are set for single brokers. Each is asked for its own, and told, by itself."""

    async def take(broker_id: int) -> None:
        name = str(broker_id)

        async def attempt() -> None:
            if broker_id not in (await cluster.refresh([], deadline)).nodes:
                return
            within = deadline.sooner(ANSWER_TIMEOUT_MS)
            found = await describe_configs(cluster, Resource.BROKER, name, within, keys=RATES)
            sources = {each.name: each.source for each in found}
            # Brokers of Apache Kafka may have a rate that they do not describe.
            own = [key for key in RATES if sources.get(key, OF_ONE_BROKER) == OF_ONE_BROKER]
            if own:
                changes = [(key, Change.DELETE, None) for key in own]
                await alter_configs(cluster, Resource.BROKER, name, changes, within)

        await cluster.retrying(attempt, deadline)

    await asyncio.gather(*map(take, cluster.metadata.nodes))


def _without(brokers: Iterable[int], those: Container[int]) -> Sequence[int]:
    return [broker for broker in brokers if broker not in those]


def _pairs(index: int, brokers: Iterable[int]) -> list[str]:
    return [f"{index}:{broker}" for broker in brokers]
