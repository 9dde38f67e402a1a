"""What groups set for themselves, as a broker reads it from the registry."""

from __future__ import annotations

import asyncio

from millstream.broker.group_configs import ROOT, GroupConfigs
from millstream.config.broker import BrokerConfig
from millstream.config.group import SESSION_TIMEOUT_MS
from millstream.controller import tree
from millstream.registry.memory import MemoryRegistry, MemoryTree


def test_a_node_that_says_nothing_of_use_keeps_nobody_waiting() -> None:
    """Every heartbeat of a consumer group waits until these nodes have been read."""

    async def main() -> None:
        registry = MemoryRegistry(MemoryTree())
        await registry.start()
        good = tree.dump(tree.ConfigNode({SESSION_TIMEOUT_MS: "50000"}))
        await registry.create(f"{ROOT}/bad", b"not what it should be", make_parents=True)
        await registry.create(f"{ROOT}/good", good)
        configs = GroupConfigs(registry, BrokerConfig({}))
        await configs.known()
        assert configs.of("good") == {SESSION_TIMEOUT_MS: 50000}
        assert configs.of("bad") == {}
        await configs.alter("bad", lambda _: {SESSION_TIMEOUT_MS: "46000"}, validate_only=False)
        assert configs.of("bad") == {SESSION_TIMEOUT_MS: 46000}
        await configs.stop()
        await registry.close()

    asyncio.run(asyncio.wait_for(main(), 10))
