"""A folder that is copied to another place while its broker works, as somebody does who moves a broker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.registry.memory import MemoryRegistry
from tests.cluster.brokers import Brokers, run, until


def test_a_copy_that_waited_for_the_first_process_to_stop_is_an_older_one(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", b"first")
        moved = brokers.leader_of("t")
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / str(moved), copy)
        for number in range(10):
            await brokers.send("t", b"acknowledged later %d" % number)
        config = BrokerConfig(
            {"node.id": str(moved), "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(copy)}
        )
        second = Broker(config, registry=MemoryRegistry(brokers.tree))
        starting = asyncio.create_task(second.start())
        done, _ = await asyncio.wait([starting], timeout=0.5)
        assert not done
        await brokers.stop(moved)
        try:
            await asyncio.wait_for(starting, 30)
            assert not second.store.dirs.kept_all
            await until(lambda: brokers.isr_of("t") == [1, 2, 3])
            assert second.replicas.topic("t")[0].log.end_offset == 11
        finally:
            await second.stop()

    run(test, tmp_path)
