"""What groups set for themselves, as a broker reads it from the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millstream.broker import group_configs
from millstream.broker.group_configs import ROOT, GroupConfigs
from millstream.config.broker import BrokerConfig
from millstream.config.group import SESSION_TIMEOUT_MS
from millstream.controller import tree
from millstream.registry.contract import Node, Unavailable
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


class Restless(MemoryRegistry):
    """Out of reach for some reads, of which each fails in its own words."""

    failures = 0

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        if self.failures:
            self.failures -= 1
            raise Unavailable(f"{self.failures} more times")
        return await super().get_many(paths)


def test_a_registry_that_is_out_of_reach_is_said_once_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was said with every attempt, for as long as the outage lasted."""
    monkeypatch.setattr(group_configs, "RETRY_SECONDS", 0.01)

    async def main() -> None:
        registry = Restless(MemoryTree())
        await registry.start()
        configs = GroupConfigs(registry, BrokerConfig({}))
        await configs.known()
        for outage, value in enumerate(("50000", "51000"), 1):
            registry.failures = 5
            node = tree.dump(tree.ConfigNode({SESSION_TIMEOUT_MS: value}))
            await registry.create(f"{ROOT}/g{outage}", node, make_parents=True)
            while not configs.of(f"g{outage}"):
                await asyncio.sleep(0.01)
            assert registry.failures == 0
            assert caplog.text.count("what groups set could not be read") == outage
        await configs.stop()
        await registry.close()

    asyncio.run(asyncio.wait_for(main(), 10))
