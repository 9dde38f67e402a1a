"""Whole brokers in one process: one registry in memory, real sockets, real files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from millstream.broker.server import Broker
from millstream.client.connection import Connection, connect
from millstream.cluster.partition import Partition
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.deadline import Deadline
from millstream.protocol.batch import encode_batch
from millstream.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from millstream.protocol.record import Record
from millstream.registry.memory import MemoryRegistry, MemoryTree
from millstream.storage.disk import Disk
from tests.cluster.nodes import until

__all__ = ["Brokers", "run", "until"]


def batch(*values: bytes, **options: Any) -> bytes:
    return bytes(encode_batch([Record(value, b"k", (), 1_700_000_000_000) for value in values], **options))


class Brokers:
    """Several brokers of one cluster."""

    def __init__(self, path: Path, count: int = 3, **settings: str) -> None:
        self.path = path
        self.tree = MemoryTree()
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.ids = range(1, count + 1)
        self.running: dict[int, Broker] = {}
        self.disks: dict[int, Disk] = {}
        """Those that are not the machine's own."""
        self.registries: dict[int, MemoryRegistry] = {}
        self._links: dict[int, Connection] = {}

    def __getitem__(self, number: int) -> Broker:
        return self.running[number]

    async def start(self, *numbers: int, **settings: str) -> None:
        for number in numbers or self.ids:
            own = {
                "node.id": str(number),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(self.path / str(number)),
                "broker.rack": f"rack-{number}",
                **self.settings,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
            registry = self.registries[number] = MemoryRegistry(self.tree)
            broker = Broker(BrokerConfig(own), registry=registry, disk=self.disks.get(number))
            await broker.start()
            self.running[number] = broker

    async def stop(self, *numbers: int) -> None:
        for number in numbers or list(self.running):
            link = self._links.pop(number, None)
            if link is not None:
                await link.close()
            await self.running.pop(number).stop()

    @property
    def controller(self) -> Broker:
        return next(broker for broker in self.running.values() if broker.controller.is_active)

    async def create(self, name: str, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await self.controller.controller.create_topic(NewTopic(name, partitions, replicas, {}, named))

    async def place(self, name: str, assignment: dict[int, list[int]], configs: dict[str, str]) -> None:
        """Create a topic whose replicas are where they are said to be."""
        topic = NewTopic(name, assignment=assignment, configs=configs)
        await self.controller.controller.create_topic(topic)

    def leader_of(self, name: str, index: int = 0) -> int:
        state = self.controller.metadata.topic(name).partitions[index]
        return state.leader

    def isr_of(self, name: str, index: int = 0) -> list[int]:
        return sorted(self.controller.metadata.topic(name).partitions[index].isr)

    def replica(self, number: int, name: str, index: int = 0) -> Partition:
        return self.running[number].replicas.topic(name)[index]

    async def until_committed(self, number: int, name: str, offset: int, index: int = 0) -> None:
        """Wait until a broker knows that everything below the offset is committed."""
        await until(lambda: self.replica(number, name, index).high_watermark >= offset)

    def content(self, number: int, name: str, index: int = 0) -> bytes:
        """All batches below the high watermark, as they lie on disk."""
        partition = self.replica(number, name, index)
        data, offset = b"", partition.log.start_offset
        while offset < partition.high_watermark:
            found = partition.log.read(offset, 1 << 20, limit=partition.high_watermark)
            data += bytes(found.data)
            offset = found.next_offset
        return data

    # As a client

    async def link(self, number: int) -> Connection:
        found = self._links.get(number)
        if found is None or not found.is_open:
            found = await connect(
                "127.0.0.1", self.running[number].port, deadline=Deadline(5000), client_id="test"
            )
            self._links[number] = found
        return found

    async def produce(
        self, number: int, name: str, *values: bytes, **options: Any
    ) -> ProduceResponse.PartitionProduceResponse:
        response = await self.ask_produce(number, name, *values, **options)
        return response.responses[0].partition_responses[0]

    async def ask_produce(
        self,
        number: int,
        name: str,
        *values: bytes,
        index: int = 0,
        acks: int = -1,
        timeout_ms: int = 5000,
        **options: Any,
    ) -> ProduceResponse:
        """`options` are those of the batch."""
        data = ProduceRequest.PartitionProduceData(index=index, records=batch(*values, **options))
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[ProduceRequest.TopicProduceData(name=name, partition_data=[data])],
        )
        link = await self.link(number)
        return await link.request(request, ProduceResponse, timeout_ms + 5000, max_version=12)

    async def send(self, name: str, *values: bytes, index: int = 0, timeout_s: float = 20.0) -> int:
        """Produce with acks=all to whoever leads, until it is acknowledged; the base offset."""
        async with asyncio.timeout(timeout_s):
            while True:
                leader = self.leader_of(name, index)
                if leader in self.running:
                    answer = await self.produce(leader, name, *values, index=index)
                    if answer.error_code == 0:
                        return answer.base_offset
                await asyncio.sleep(0.02)

    async def fetch(
        self, number: int, name: str, offset: int, *, index: int = 0, rack: str = "", max_wait_ms: int = 0
    ) -> FetchResponse.PartitionData:
        wanted = FetchRequest.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            rack_id=rack,
            topics=[FetchRequest.FetchTopic(topic=name, partitions=[wanted])],
        )
        link = await self.link(number)
        response = await link.request(request, FetchResponse, max_wait_ms + 5000, max_version=12)
        return response.responses[0].partitions[0]


Test = Callable[[Brokers], Coroutine[Any, Any, None]]


def run(test: Test, path: Path, count: int = 3, **settings: str) -> None:
    """Run a test on brokers that are started before and stopped after it."""

    async def main() -> None:
        async with asyncio.timeout(60):
            brokers = Brokers(path, count, **settings)
            await brokers.start()
            try:
                await test(brokers)
            finally:
                await brokers.stop()

    asyncio.run(main())
