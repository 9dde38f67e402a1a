"""Sessions with the simulated registry: none believes to live longer than the tree lets it."""

from __future__ import annotations

import asyncio
import math

import pytest

from millstream.registry.contract import NodeExists, SessionLost, Unavailable
from millstream.registry.memory import MemoryTree
from tests.simulation.host import Host, Process
from tests.simulation.network import Network
from tests.simulation.registry import REGISTRY_HOST, SimRegistry
from tests.simulation.world import World

TIMEOUT_MS = 2000


class Place:
    """A world with a tree and hosts that have sessions with it."""

    def __init__(self) -> None:
        self.world = World(7)
        self.network = Network(self.world)
        self.tree = MemoryTree()
        self.hosts: dict[str, Host] = {}

    def start(self, name: str, *, sees_death: bool = False) -> tuple[Process, SimRegistry]:
        host = self.hosts.setdefault(name, Host(self.world, self.network, name))
        process = host.start()
        return process, SimRegistry(self.tree, process, TIMEOUT_MS, sees_death=sees_death)


def test_a_session_lives_on_and_ends_after_its_process() -> None:
    place = Place()

    async def main() -> None:
        process, registry = place.start("one")
        await process.call(registry.start())
        await process.call(registry.create("/me", b"", ephemeral=True))
        await asyncio.sleep(20.0)
        assert place.tree.children("/") == ["me"]
        assert registry.session_deadline() > place.world.now
        place.hosts["one"].crash()
        registry.died()
        await asyncio.sleep(1.0)
        assert place.tree.children("/") == ["me"]
        await asyncio.sleep(1.5)
        assert place.tree.children("/") == []

    place.world.run(main())


def test_a_death_is_seen_at_once_where_it_can_be() -> None:
    place = Place()

    async def main() -> None:
        process, registry = place.start("one", sees_death=True)
        await process.call(registry.start())
        await process.call(registry.create("/me", b"", ephemeral=True))
        place.hosts["one"].crash()
        registry.died()
        assert place.tree.children("/") == []

    place.world.run(main())


def test_who_is_cut_off_gives_up_before_the_tree_does() -> None:
    place = Place()

    async def main() -> None:
        process, registry = place.start("one")
        other, second = place.start("two")
        await process.call(registry.start())
        await other.call(second.start())
        await process.call(registry.create("/office", b"", ephemeral=True))
        lost: list[float] = []
        registry.on_session_lost = lambda: lost.append(place.world.now)
        place.network.block("one", REGISTRY_HOST)
        while place.tree.children("/"):
            with pytest.raises(NodeExists):
                await other.call(second.create("/office", b"", ephemeral=True))
            await asyncio.sleep(0.1)
        assert registry.session_deadline() <= place.world.now
        await other.call(second.create("/office", b"", ephemeral=True))
        with pytest.raises(Unavailable):
            await process.call(registry.get("/office"))
        place.network.heal()
        with pytest.raises(SessionLost):
            await process.call(registry.get("/office"))
        await asyncio.sleep(0.1)
        assert len(lost) == 1
        assert registry.session_deadline() == -math.inf
        await process.call(registry.start())
        assert not (await process.call(registry.get("/office"))).data

    place.world.run(main())


def test_news_that_were_missed_are_made_up_for() -> None:
    place = Place()

    async def main() -> None:
        process, registry = place.start("one")
        other, second = place.start("two")
        await process.call(registry.start())
        await other.call(second.start())
        seen: list[str] = []
        registry.watch("/news", seen.append)
        await other.call(second.create("/news"))
        await asyncio.sleep(0.1)
        assert seen == ["/news"]
        place.network.block(REGISTRY_HOST, "one")
        await other.call(second.set("/news", b"more"))
        await asyncio.sleep(0.5)
        assert seen == ["/news"]
        place.network.heal()
        await asyncio.sleep(1.0)
        assert seen == ["/news", "/news"]

    place.world.run(main())
