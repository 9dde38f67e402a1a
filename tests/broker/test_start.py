"""What a broker's start waits for, and what it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.registry.contract import Unavailable
from millstream.registry.memory import MemoryRegistry


class LateRegistry(MemoryRegistry):
    """One that cannot be reached at first."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def start(self) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("nobody answers")
        await super().start()


def config(path: Path, registry: str) -> BrokerConfig:
    return BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(path),
            "registry": registry,
            "registry.session.timeout.ms": "1000",
        }
    )


@pytest.mark.parametrize(
    ("address", "failures", "starts"),
    [
        ("zookeeper://localhost/here", 3, True),
        ("zookeeper://localhost/here", 1000, False),
        ("sqlite", 1, False),
    ],
)
def test_a_start_waits_for_zookeeper_for_a_while(
    tmp_path: Path, address: str, failures: int, starts: bool
) -> None:
    """It may have been started at the same time. A file that cannot be used will not get better."""
    registry = LateRegistry(failures)

    async def main() -> None:
        async with Broker(config(tmp_path, address), registry=registry):
            assert starts

    if starts:
        asyncio.run(main())
        assert registry.failures == 0
    else:
        with pytest.raises(Unavailable):
            asyncio.run(main())
