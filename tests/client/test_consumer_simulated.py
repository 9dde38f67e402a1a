"""The consumer in the simulation, unchanged: virtual time, a lossy network, a broker that is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from millstream.client.consumer import AsyncConsumer
from millstream.model import TopicPartition
from tests.client.test_simulated import PARTITIONS, RECORDS, TOPIC, Run
from tests.simulation.host import Host, Process
from tests.simulation.machine import PORT

EXPECTED = {TopicPartition(TOPIC, index): list(range(RECORDS)) for index in range(PARTITIONS)}


class ReadingRun(Run):
    """Reads all partitions by hand."""

    async def read(self, process: Process) -> None:
        async with AsyncConsumer(
            f"broker:{PORT}", offset_reset="earliest", request_timeout_ms=5_000
        ) as consumer:
            consumer.assign(EXPECTED)
            async for record in consumer:
                place = TopicPartition(record.topic, record.partition)
                self.seen.setdefault(place, []).append(int(record.value))
                if sum(map(len, self.seen.values())) == PARTITIONS * RECORDS:
                    break


class GroupRun(Run):
    """Two members of a group on machines of their own, which commit what they have read."""

    def __init__(self, seed: int, protocol: str) -> None:
        super().__init__(seed)
        self.protocol = protocol
        self.counts: Counter[tuple[int, int]] = Counter()
        self.owners: dict[TopicPartition, str] = {}

    async def read(self, process: Process) -> None:
        other = Host(self.world, self.network, "other").start()
        await asyncio.gather(self.member("reader"), other.call(self.member("other")))

    async def member(self, name: str) -> None:
        options: dict[str, Any] = {"group_protocol": self.protocol}
        async with AsyncConsumer(
            f"broker:{PORT}",
            group="simulated",
            offset_reset="earliest",
            request_timeout_ms=5_000,
            auto_commit_interval_ms=500,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            **options,
        ) as consumer:

            def assigned(partitions: list[TopicPartition]) -> None:
                self.owners.update(dict.fromkeys(partitions, name))

            consumer.subscribe(TOPIC, on_assigned=assigned)
            while len(self.counts) < PARTITIONS * RECORDS:
                for record in await consumer.poll(timeout=0.5):
                    self.counts[record.partition, int(record.value)] += 1


@pytest.mark.parametrize("seed", range(5))
def test_every_record_once_and_in_order(seed: int) -> None:
    run = ReadingRun(seed)
    run.world.run(run.main(), limit_s=900)
    assert run.sent == EXPECTED
    assert run.seen == EXPECTED


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("seed", range(3))
def test_a_group_reads_every_record(seed: int, protocol: str) -> None:
    run = GroupRun(seed, protocol)
    run.world.run(run.main(), limit_s=900)
    assert set(run.counts) == {(index, number) for index in range(PARTITIONS) for number in range(RECORDS)}
    assert set(run.owners) == set(EXPECTED)
