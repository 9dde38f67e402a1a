"""The checks of `millstream doctor` on brokers that run, and on what their cluster lacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from millstream.cli.checks import Check, State
from millstream.cli.session import with_cluster
from millstream.client.cluster import Cluster
from millstream.client.health import Health, ask_brokers, current_metadata, judge
from millstream.client.metadata import Metadata, Node, Partition
from millstream.client.wording import counted
from millstream.deadline import Deadline
from millstream.errors import MillstreamError

REACH_TIMEOUT_MS = 3000


def broker_checks(bootstrap: str) -> list[Check]:
    """Whether a broker answers, how fast, whether every partition has a leader, and what else is missing."""

    async def ask(cluster: Cluster, deadline: Deadline) -> list[Check]:
        await cluster.any_connection(deadline)
        started = time.perf_counter()
        await cluster.refresh([], deadline)
        answer_ms = (time.perf_counter() - started) * 1000
        metadata, _ = await current_metadata(cluster, deadline)
        brokers = ", ".join(f"{node.id} at {node.address}" for node in metadata.nodes.values())
        (dirs, _, adding), addresses = await asyncio.gather(
            ask_brokers(cluster, metadata, deadline), _address_checks(cluster, metadata)
        )
        found = f"answers in {answer_ms:.1f} ms; cluster {metadata.cluster_id}; {brokers}"
        health = judge(metadata, {}, dirs, adding=adding)
        return [
            Check("broker", State.GOOD, found),
            *cluster_checks(health, len(metadata.topics)),
            *addresses,
        ]

    try:
        return with_cluster(bootstrap, REACH_TIMEOUT_MS, ask)
    except MillstreamError as error:
        return [
            Check("broker", State.NOTE, f"none at {bootstrap}: {error}", "Start one with `millstream serve`.")
        ]


def cluster_checks(health: Health, topics: int) -> list[Check]:
    """What a cluster with so many topics lacks."""
    checks = []
    if health.controller is None:
        found = "there is none: no topic is made or changed, and no other leader elected"
        advice = "The brokers may not reach their registry, or its disk failed: their logs say what is wrong."
        checks.append(Check("controller", State.BAD, found, advice))
    if health.missing_brokers:
        advice = "Start them, or have others hold their replicas with `millstream reassign execute`."
        found = f"not there, though replicas are on them: {_listed(health.missing_brokers)}"
        checks.append(Check("missing brokers", State.NOTE, found, advice))
    checks.append(_partitions_check(health, topics))
    failed, full = "See to its disk; the broker's log says what is wrong.", "Make room: writes are refused."
    checks += _dir_checks(health.failed_dirs, "has failed", failed)
    checks += _dir_checks(health.full_dirs, "is full", full)
    return checks


def _partitions_check(health: Health, topics: int) -> Check:
    name = "partitions"
    found = f"{counted(health.partitions, 'partition')} in {counted(topics, 'topic')}"
    if health.offline:
        found = f"{found}, {len(health.offline)} without a leader"
        return Check(name, State.BAD, found, _advice(health.offline.values(), health.brokers))
    if health.under_replicated:
        found = f"{found}, {len(health.under_replicated)} not fully in sync"
        return Check(name, State.NOTE, found, "Some replicas are behind or away.")
    if health.controller is None:
        found = f"{found}; who leads them is as last known: those of several replicas may have no leader"
        return Check(name, State.NOTE, found)
    return Check(name, State.GOOD, found)


def _advice(offline: Iterable[Partition], brokers: Collection[int]) -> str:
    """What to do for partitions without a leader: brokers that are there need not be started."""
    away: set[int] = set()
    there: set[int] = set()
    for partition in offline:
        absent = {broker for broker in partition.replicas if broker not in brokers}
        away |= absent
        if not absent:
            there.update(partition.replicas)
    start = f"Start {_named(away)}." if away else ""
    look = f"See `millstream cluster health`, and the log of {_named(there)}." if there else ""
    return " ".join(filter(None, (start, look)))


def _named(brokers: Collection[int]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {_listed(brokers)}"


def _listed(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))


def _dir_checks(dirs: Mapping[int, Sequence[str]], what: str, advice: str) -> list[Check]:
    return [
        Check("log dir", State.BAD, f"{path} of broker {broker} {what}", advice)
        for broker, paths in dirs.items()
        for path in paths
    ]


async def _address_check(cluster: Cluster, node: Node) -> Check | None:
    """What is wrong with the address of a broker; each has as long to answer as if it were the only one."""
    try:
        await cluster.connection(node.id, Deadline(REACH_TIMEOUT_MS))
    except MillstreamError as error:
        advice = "Set advertised.listeners to an address that clients can reach."
        return Check("broker address", State.BAD, f"{node.address}: {error}", advice)
    return None


async def _address_checks(cluster: Cluster, metadata: Metadata) -> list[Check]:
    found = await asyncio.gather(*(_address_check(cluster, node) for node in metadata.nodes.values()))
    return [check for check in found if check is not None]
