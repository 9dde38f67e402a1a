"""Three brokers with their controller: replication as clients see it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.brokers import Brokers, run, until


def test_records_are_on_all_brokers_when_they_are_acknowledged(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        for number in range(50):
            await brokers.send("t", b"%d" % number, b"x" * 100)
        for number in brokers.ids:
            assert brokers.replica(number, "t").log.end_offset == 100
            await brokers.until_committed(number, "t", 100)
            assert brokers.content(number, "t") == brokers.content(1, "t")

    run(test, tmp_path)


def test_a_broker_stops_and_comes_back(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", b"a")
        for number in brokers.ids:
            await brokers.stop(number)
            await brokers.send("t", b"without %d" % number)
            await brokers.start(number)
            await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await brokers.send("t", b"z")
        end = brokers.replica(1, "t").log.end_offset
        for number in brokers.ids:
            await brokers.until_committed(number, "t", end)
            assert brokers.content(number, "t") == brokers.content(1, "t")

    run(test, tmp_path)


def test_a_broker_with_an_empty_folder_holds_everything_before_it_counts(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        for number in range(20):
            await brokers.send("t", b"%d" % number, bytes(50_000))
        await brokers.stop(3)
        shutil.rmtree(tmp_path / "3")
        await brokers.start(3)
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await brokers.stop(1)
        await brokers.stop(2)
        await until(lambda: brokers.leader_of("t") == 3)
        assert brokers.replica(3, "t").high_watermark == 40
        assert brokers.content(3, "t").count(bytes(50_000)) == 20
        await brokers.send("t", b"alone")

    run(test, tmp_path)
