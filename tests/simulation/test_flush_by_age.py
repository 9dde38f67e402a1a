"""How old a record grows before flush.ms=T has it flushed, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.housekeeping import HASTY_CHECK_MS
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.protocol.batch import Record, encode_batch
from millstream.registry.memory import MemoryRegistry
from tests.simulation.host import Host
from tests.simulation.network import Network
from tests.simulation.world import World

FSYNC_MS = 60
"""A flush that has begun may take this long on the simulated disk."""


@pytest.mark.parametrize("flush_ms", [10, 60, 300, 1000, 1900, 2500, 6000])
def test_nothing_older_than_flush_ms_is_unflushed(flush_ms: int) -> None:
    world = World(flush_ms)
    host = Host(world, Network(world), "broker")
    settings = {"listeners": "PLAINTEXT://broker:9092", "log.dirs": "/data"}
    oldest_ms = 0.0

    async def serve() -> None:
        nonlocal oldest_ms
        process = host.process
        assert process is not None
        broker = Broker(
            BrokerConfig(settings),
            registry=MemoryRegistry(),
            disk=process.disk,
            clock=process.clock,
            random=process.random,
        )
        await broker.start()
        wanted = {"slow": {}, "fast": {"flush.ms": str(flush_ms)}}
        for name, configs in wanted.items():
            await broker.controller.create_topic(NewTopic(name, 1, 1, configs=configs))
        await asyncio.sleep(2.1)  # until it has looked at the new topic
        fast, slow = (broker.replicas.leader(name, 0) for name in ("fast", "slow"))
        written: dict[int, float] = {}
        for step in range(3000):
            if step % 1000 < 600:  # and some silence
                written[fast.log.end_offset] = world.now
                for partition in (fast, slow):
                    partition.append(encode_batch([Record(b"v", None, (), process.clock.now_ms())]), 1, 9)
            await asyncio.sleep(0.007)
            written = {at: when for at, when in written.items() if at >= fast.log.recovery_point}
            oldest_ms = max(oldest_ms, (world.now - min(written.values(), default=world.now)) * 1000)
        assert slow.log.recovery_point == 0  # nobody asked for that
        await broker.stop()

    async def main() -> None:
        await host.start().call(serve())

    world.run(main())
    assert flush_ms / 4 < oldest_ms <= max(flush_ms, HASTY_CHECK_MS) + FSYNC_MS
