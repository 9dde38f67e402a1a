"""Brokers that are alive by the registry, and cannot be reached: others go on without them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.server import Broker
from millstream.controller.presence import Presence
from millstream.errors import NetworkException
from tests.controller.cluster import Cluster

CONFIG = {"registry.session.timeout.ms": "2000"}


def test_silence_is_counted_in_rounds() -> None:
    presence = Presence(1, max_rounds=3)
    epochs = {1: 10, 2: 20, 3: 30}
    for _ in range(2):
        presence.next_round(epochs)
    assert presence.silent == {}
    presence.heard(2)
    presence.heard(9)  # nobody knows it
    presence.next_round(epochs)
    assert (presence.silent, presence.news(), presence.is_cut_off) == ({3: 30}, {3: 30}, False)
    presence.note(3, 30)
    presence.next_round(epochs)
    assert presence.news() == {}
    assert presence.is_noted(3)
    presence.next_round({**epochs, 3: 31})  # it has begun again
    assert not presence.is_noted(3)
    assert presence.silent == {2: 20}
    for _ in range(2):
        presence.next_round({**epochs, 3: 31})
    assert (presence.silent, presence.is_cut_off) == ({2: 20, 3: 31}, True)
    presence.next_round({1: 10, 2: 20})
    assert (presence.silent, presence.is_cut_off) == ({2: 20}, False)  # of two, either may be


def cut_off(cluster: Cluster, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other broker reaches this one, nor it them; all of them reach the registry."""
    for each in cluster.brokers.values():
        place = each.peers.place

        def unreachable(broker_id: int, own: int = each.config.node_id, place=place):  # type: ignore[no-untyped-def]
            if broker.config.node_id in (own, broker_id) and own != broker_id:
                raise NetworkException("cut off")
            return place(broker_id)

        monkeypatch.setattr(each.peers, "place", unreachable)
        for link in list(each.peers._links.values()):
            link.abort()
        each.peers._links.clear()


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_broker_that_is_cut_off_from_the_others_is_replaced(
    is_controller: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path, config=CONFIG) as cluster:
            broker = await cluster.until_controller() if is_controller else cluster.follower
            number = broker.config.node_id
            others = [id_ for id_ in cluster.brokers if id_ != number]
            await cluster.create("t", assignment={0: [number, *others], 1: [*others, number]})
            await cluster.until(lambda: cluster.states("t")[0].leader == number)
            with monkeypatch.context() as patched:
                cut_off(cluster, broker, patched)
                reached = cluster.brokers[others[0]]
                await cluster.until(
                    lambda: (
                        [state.leader for state in cluster.states("t", others[0])] == [others[0]] * 2
                        and all(number not in state.isr for state in cluster.states("t", others[0]))
                    )
                )
                active = [id_ for id_, each in cluster.brokers.items() if each.controller.is_active]
                assert len(active) == 1
                assert active[0] in others
                assert number in reached.metadata.brokers  # its session goes on
                await asyncio.sleep(1)
                assert [id_ for id_, each in cluster.brokers.items() if each.controller.is_active] == active
            await cluster.until_in_sync("t", cluster.brokers)

    asyncio.run(main())
