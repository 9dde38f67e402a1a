from __future__ import annotations

import asyncio

from millstream.broker.membership import Membership
from millstream.clock import SystemClock
from millstream.cluster.metadata import Endpoint
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.registry.memory import MemoryRegistry, MemoryTree


def test_a_broker_that_leaves_takes_nobody_elses_registration_away() -> None:
    """One that lost its session, and whose number another process has taken meanwhile."""

    async def main() -> None:
        shared = MemoryTree()
        mine, other = MemoryRegistry(shared), MemoryRegistry(shared)
        await mine.start()
        await other.start()
        for root in tree.ROOTS:
            await mine.create(root)
        lost = asyncio.Event()
        membership = Membership(
            mine,
            BrokerConfig({"node.id": "1"}),
            SystemClock(),
            (Endpoint("PLAINTEXT", "localhost", 9092),),
            "PLAINTEXT",
            on_lost=lost.set,
            on_joined=lambda: None,
        )
        await membership.join(was_clean=True)
        path = f"{tree.BROKERS}/1"
        mine.lose()
        await other.create(path, b"{}", ephemeral=True)
        await lost.wait()
        await asyncio.sleep(0.2)  # it has a new session by now, and waits for the other to go
        await membership.leave()
        assert (await other.get(path)).data == b"{}"
        await mine.close()
        await other.close()

    asyncio.run(main())
