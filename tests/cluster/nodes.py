"""Brokers reduced to their replicas: real logs, real sockets, and a controller that the test drives.

Each node has a store in a folder of its own, a listener for the others, and is told by the test who leads
what. The controller is at node 1's listener and writes proposed ISRs down, if it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from millstream.clock import SystemClock
from millstream.cluster.metadata import BrokerNode, Endpoint, Metadata, PartitionState, Topic
from millstream.cluster.partition import Partition
from millstream.cluster.peers import Peers
from millstream.cluster.replicas import Replicas
from millstream.cluster.transactional_appends import no_admission
from millstream.config.broker import BrokerConfig
from millstream.errors import IneligibleReplica, InvalidUpdateVersion
from millstream.metrics import Metrics
from millstream.net.connection import Connection
from millstream.net.listener import Limits, Listener
from millstream.protocol.batch import encode_batch
from millstream.protocol.frame import frame_response, read_request_header
from millstream.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
)
from millstream.protocol.record import Record
from millstream.protocol.schema import Request, Response
from millstream.storage.log import Appended
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import Store

TOPIC = "orders"
TOPIC_ID = UUID("12345678-1234-4678-9234-567812345678")
CLUSTER_ID = "cluster"
NOW_MS = 1_700_000_000_000

SERVED: dict[int, type[Request]] = {
    request.key: request for request in (FetchRequest, AlterPartitionRequest, ApiVersionsRequest)
}


def batch(*values: bytes, **options: Any) -> bytearray:
    return encode_batch([Record(value, b"k", (), NOW_MS) for value in values], **options)


class Node:
    """One broker's replicas."""

    def __init__(self, nodes: Nodes, broker_id: int, path: Path) -> None:
        self._nodes = nodes
        self.broker_id = broker_id
        self.path = path
        self.epoch = 0
        self.has_lease = True
        self.fetches = 0

    async def start(self) -> None:
        settings = {"node.id": str(self.broker_id), "log.dirs": str(self.path), **self._nodes.settings}
        config = BrokerConfig(settings)
        self.clock = SystemClock()
        self.metrics = Metrics()
        self.epoch = self._nodes.next_epoch()
        self.metadata = Metadata(CLUSTER_ID)
        self.metadata.controller_id = 1
        self.store = Store(
            [str(self.path)],
            OsDisk(),
            self.clock,
            cluster_id=CLUSTER_ID,
            broker_id=self.broker_id,
            random=Random(self.broker_id),
        )
        self.store.open()
        self.peers = Peers(self.metadata, config, self.clock, Random(self.broker_id))
        self.replicas = Replicas(
            self.store,
            config,
            self.clock,
            self.metrics,
            no_admission,
            metadata=self.metadata,
            peers=self.peers,
            is_lease_held=lambda: self.has_lease,
            broker_epoch=lambda: self.epoch,
        )
        self.listener = Listener(self._serve, self.clock, Limits())
        await self.listener.start("127.0.0.1", 0)
        self.listener.open()
        self._housekeeping = asyncio.create_task(self._keep_house(config["replica.lag.time.max.ms"] / 4000))

    async def _keep_house(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            await self.replicas.check_followers()

    async def stop(self, *, is_clean: bool = True) -> None:
        self._housekeeping.cancel()
        await self.replicas.stop()
        await self.peers.close()
        for partition in self.replicas:
            partition.wake_fetches()
            await partition.settle()
        await self.listener.stop()
        self.store.close(clean=is_clean)

    @property
    def node(self) -> BrokerNode:
        endpoint = Endpoint("BROKERS", "127.0.0.1", self.listener.port)
        rack = f"rack-{self.broker_id}"
        return BrokerNode(self.broker_id, (endpoint,), rack, epoch=self.epoch, peer_listener="BROKERS")

    def partition(self, index: int = 0) -> Partition:
        return self.replicas.topic(TOPIC)[index]

    def append(self, *values: bytes, acks: int = 1, index: int = 0) -> Appended:
        appended = self.partition(index).append(batch(*values), acks, 9)
        assert isinstance(appended, Appended)
        return appended

    async def send(self, *values: bytes, index: int = 0) -> Appended:
        """Append, and wait until all in-sync replicas have it."""
        partition = self.partition(index)
        appended = self.append(*values, acks=-1, index=index)
        acknowledged = partition.when_acknowledged(-1, appended)
        if acknowledged is not None:
            await acknowledged
        return appended

    def exported(self, name: str) -> float:
        """What the metrics say."""
        lines = self.metrics.exposition().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"millstream_{name} "))

    async def until_committed(self, offset: int, index: int = 0) -> None:
        """Wait until this replica knows that everything below the offset is committed."""
        await until(lambda: self.partition(index).high_watermark >= offset)

    def content(self, index: int = 0) -> bytes:
        """All batches below the high watermark, as they lie on disk."""
        partition = self.partition(index)
        data, offset = b"", partition.log.start_offset
        while offset < partition.high_watermark:
            found = partition.log.read(offset, 1 << 20, limit=partition.high_watermark)
            data += bytes(found.data)
            offset = found.next_offset
        return data

    # Serving

    def _serve(self, connection: Connection, frame: memoryview) -> None:
        header, body = read_request_header(frame)
        request = SERVED[header.api_key].decode(frame, header.api_version, body)
        place = connection.reserve(True)
        future = asyncio.ensure_future(self._answer(request))
        place.awaited = future

        def fill(done: asyncio.Future[Response]) -> None:
            if not done.cancelled():
                place.fill(frame_response(header.correlation_id, done.result(), header.api_version))

        future.add_done_callback(fill)

    async def _answer(self, request: Request) -> Response:
        if isinstance(request, ApiVersionsRequest):
            low, high = FetchRequest.versions
            served = ApiVersionsResponse.ApiVersion(api_key=1, min_version=low, max_version=high)
            return ApiVersionsResponse(api_keys=[served])
        if isinstance(request, AlterPartitionRequest):
            return await self._nodes.alter(request)
        assert isinstance(request, FetchRequest)
        assert self.replicas.sessions is not None
        self.fetches += 1
        try:
            result = self.replicas.sessions.fetch(request)
            return result if isinstance(result, Response) else await result
        except Exception as error:
            code = getattr(error, "code", -1)
            return request.response(error_code=code, responses=[])


class Nodes:
    """Several nodes, and the one who decides about them."""

    def __init__(self, path: Path, count: int = 3, **settings: str) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._last_epoch = 100
        self.path = path
        self.nodes = {number: Node(self, number, path / str(number)) for number in range(1, count + 1)}
        self.running: set[int] = set()
        self.topic = Topic(TOPIC, TOPIC_ID, [])
        self.refuses = False
        self.holds = False
        """Whether the controller does not answer proposals."""
        self.proposals: list[list[int]] = []

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def next_epoch(self) -> int:
        self._last_epoch += 1
        return self._last_epoch

    async def start(self, *numbers: int) -> None:
        for number in numbers or self.nodes:
            await self.nodes[number].start()
            self.running.add(number)
        self.tell_brokers()

    async def stop(self, *numbers: int, is_clean: bool = True) -> None:
        for number in numbers or list(self.running):
            self.running.discard(number)
            await self.nodes[number].stop(is_clean=is_clean)
        self.tell_brokers()

    def tell_brokers(self) -> None:
        for number in self.running:
            node = self.nodes[number]
            node.metadata.brokers = {other: self.nodes[other].node for other in self.running}
            node.replicas.brokers_changed()

    async def create(self, partitions: int = 1, replicas: list[int] | None = None, **overrides: str) -> None:
        """Make a topic that node 1 leads."""
        spread = replicas or sorted(self.nodes)
        self.topic.overrides |= {name.replace("_", "."): value for name, value in overrides.items()}
        self.topic.partitions = [PartitionState(spread, list(spread), 1, 0) for _ in range(partitions)]
        await self.tell()

    async def tell(self, *numbers: int, is_new: bool = True) -> None:
        """Say to nodes, by default to all that run, what is so."""
        for number in numbers or sorted(self.running):
            node = self.nodes[number]
            topic = replace(self.topic, partitions=[replace(state) for state in self.topic.partitions])
            node.metadata.put([topic])
            await node.replicas.apply(topic, is_new=is_new)

    def elect(self, leader: int, isr: list[int], index: int = 0) -> None:
        """Decide on a leader; nobody is told yet."""
        state = self.topic.partitions[index]
        state.leader, state.isr = leader, isr
        state.leader_epoch += 1
        state.version += 1

    async def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        while self.holds:
            await asyncio.sleep(0.01)
        response = AlterPartitionResponse(topics=[])
        for topic in request.topics:
            answer = AlterPartitionResponse.TopicData(topic_id=topic.topic_id, partitions=[])
            response.topics.append(answer)
            for wanted in topic.partitions:
                state = self.topic.partitions[wanted.partition_index]
                result = AlterPartitionResponse.PartitionData(
                    partition_index=wanted.partition_index,
                    leader_id=-1,
                    leader_epoch=-1,
                    isr=[],
                    partition_epoch=-1,
                )
                answer.partitions.append(result)
                members = {one.broker_id: one.broker_epoch for one in wanted.new_isr_with_epochs}
                self.proposals.append(list(members))
                if self.refuses or any(
                    number not in self.running or self.nodes[number].epoch != epoch
                    for number, epoch in members.items()
                    if number not in state.isr
                ):
                    result.error_code = IneligibleReplica.code
                elif wanted.partition_epoch != state.version or wanted.leader_epoch != state.leader_epoch:
                    result.error_code = InvalidUpdateVersion.code
                else:
                    state.isr = list(members)
                    state.version += 1
                result.leader_id, result.leader_epoch = state.leader, state.leader_epoch
                result.isr, result.partition_epoch = list(state.isr), state.version
        return response


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for something to become so."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


Test = Callable[[Nodes], Coroutine[Any, Any, None]]


def run(test: Test, path: Path, count: int = 3, **settings: str) -> None:
    """Run a test on nodes that are started before and stopped after it."""

    async def main() -> None:
        async with asyncio.timeout(100):
            nodes = Nodes(path, count, **settings)
            await nodes.start()
            try:
                await test(nodes)
            finally:
                await nodes.stop(is_clean=False)

    asyncio.run(main())
