"""Moves that are held to a rate: one after another, and at another rate while they are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from millstream.client import throttling
from millstream.client.cluster import Cluster as Client
from millstream.client.configs import Change, Resource, alter_configs
from millstream.client.replicas import list_reassignments, reassign
from millstream.deadline import Deadline
from millstream.model import TopicPartition
from tests.controller.cluster import Cluster
from tests.storage.logs import batch

FIRST, SECOND = {TopicPartition("t", 0): [2]}, {TopicPartition("t", 1): [3]}
SLOWLY, FASTER, FAST = 1, 2, 100_000_000


def held(cluster: Cluster) -> tuple[list[str], list[str], set[int]]:
    """What is set: the replicas that give, those that take, and the rates of all brokers."""
    overrides = cluster.brokers[1].metadata.topic("t").overrides
    leaders, followers = (
        overrides.get(key, "").split(",") for key in (throttling.LEADERS, throttling.FOLLOWERS)
    )
    rates = {broker.config[key] for broker in cluster.brokers.values() for key in throttling.RATES}
    return leaders, followers, rates


def test_a_rate_holds_for_all_moves_under_way_until_another_is_given(tmp_path: Path) -> None:
    async def test(cluster: Cluster, client: Client) -> None:
        deadline = Deadline(60_000)
        await cluster.create("t", assignment={0: [1], 1: [1]})
        for partition in cluster.brokers[1].replicas.topic("t").values():
            for _ in range(40):
                partition.append(bytearray(batch(bytes(50_000))), 1, 9)
        await throttling.throttle(client, FIRST, SLOWLY, deadline)
        assert await reassign(client, FIRST, deadline) == dict.fromkeys(FIRST)
        assert held(cluster) == (["0:1"], ["0:2"], {SLOWLY})
        await throttling.throttle(client, FIRST, FASTER, deadline)
        assert held(cluster)[1:] == (["0:2"], {FASTER})
        await throttling.throttle(client, SECOND, SLOWLY, deadline)
        assert await reassign(client, SECOND, deadline) == dict.fromkeys(SECOND)
        assert held(cluster)[1:] == (["0:2", "1:3"], {SLOWLY})
        assert {"0:1", "1:1"} <= set(held(cluster)[0])
        assert (await list_reassignments(client, deadline)).keys() == {*FIRST, *SECOND}
        await throttling.throttle(client, SECOND, FAST, deadline)
        assert held(cluster)[1:] == (["0:2", "1:3"], {FAST})
        while await list_reassignments(client, deadline):
            await asyncio.sleep(0.05)
        await throttling.throttle(client, FIRST, SLOWLY, deadline)  # nothing is left to be copied
        assert held(cluster)[2] == {SLOWLY}
        assert await throttling.unthrottle(client, deadline) == ["t"]

    run(test, tmp_path)


def test_a_rate_wins_over_those_of_single_brokers_and_both_are_taken_away(tmp_path: Path) -> None:
    """Kafka's own tool sets them; a broker that had one kept to it."""

    async def own(client: Client, broker_id: int, rate: int) -> None:
        changes = [(key, Change.SET, str(rate)) for key in throttling.RATES]
        await alter_configs(client, Resource.BROKER, str(broker_id), changes, Deadline(60_000))

    async def test(cluster: Cluster, client: Client) -> None:
        deadline = Deadline(60_000)
        await cluster.create("t", assignment={0: [1], 1: [1]})
        before = held(cluster)[2]
        for broker_id in (1, 3):
            await own(client, broker_id, 10 * broker_id)
        await cluster.until(lambda: held(cluster)[2] == {10, 30, *before})
        await throttling.throttle(client, FIRST, SLOWLY, deadline)
        await cluster.until(lambda: held(cluster)[2] == {SLOWLY})
        await own(client, 2, 20)
        await cluster.until(lambda: held(cluster)[2] == {SLOWLY, 20})
        assert await throttling.unthrottle(client, deadline) == ["t"]
        await cluster.until(lambda: held(cluster)[2] == before)
        await throttling.throttle(client, FIRST, SLOWLY, deadline)
        await cluster.stop(3)  # its rate is not asked for, as it is not there
        await throttling.throttle(client, FIRST, FASTER, deadline)
        assert held(cluster)[2] == {FASTER}

    run(test, tmp_path)


def run(test: Callable[[Cluster, Client], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Cluster(folder) as cluster,
            Client(f"127.0.0.1:{cluster.brokers[1].port}") as client,
        ):
            await test(cluster, client)

    asyncio.run(main())
