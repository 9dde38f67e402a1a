"""A small client of the broker under simulation: one connection, requests answered in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from uuid import UUID

from millstream.errors import error_for
from millstream.protocol.frame import frame_request, read_correlation_id, read_response
from millstream.protocol.messages import (
    CreateTopicsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
)
from tests.simulation.loop import SimLoop
from tests.simulation.world import SimulationFailed

REQUEST_TIMEOUT_S = 8.0
RETRY_S = 0.2
LATEST, EARLIEST = -1, -2


class Refused(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{error_for(code).__name__} {text}".strip())
        self.code = code

    @property
    def is_retriable(self) -> bool:
        return error_for(self.code).retriable


class Connection(asyncio.Protocol):
    """Pipelines requests; the answers come in order, as the protocol promises."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._buffer = bytearray()
        self._next_id = 0
        self._waiting: deque[tuple[int, Any, int, asyncio.Future[Any]]] = deque()
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            size = int.from_bytes(buffer[:4], "big")
            if len(buffer) < 4 + size:
                return
            frame = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            correlation_id, response, version, answer = self._waiting.popleft()
            if read_correlation_id(frame) != correlation_id:
                raise AssertionError(f"expected answer {correlation_id}, got {read_correlation_id(frame)}")
            if not answer.done():
                answer.set_result(read_response(frame, response, version))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for *_, answer in self._waiting:
            if not answer.done():
                answer.set_exception(ConnectionResetError("connection lost"))
                answer.exception()
        self._waiting.clear()

    def send(self, request: Any, version: int) -> asyncio.Future[Any]:
        """Send now; the future is the answer."""
        answer = asyncio.get_running_loop().create_future()
        if self.is_lost:
            answer.set_exception(ConnectionResetError("connection lost"))
            answer.exception()
            return answer
        self._next_id += 1
        self._waiting.append((self._next_id, request.response, version, answer))
        self._transport.writelines(frame_request(self._next_id, "simulation", request, version))
        return answer

    def post(self, request: Any, version: int) -> None:
        """Send what is never answered."""
        if self.is_lost:
            raise ConnectionResetError("connection lost")
        self._next_id += 1
        self._transport.writelines(frame_request(self._next_id, "simulation", request, version))

    async def request(self, request: Any, version: int, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        async with asyncio.timeout(timeout_s):
            return await self.send(request, version)

    def close(self) -> None:
        self.is_lost = True
        self._transport.abort()


class Client:
    """A client of one broker that connects again whenever it lost its connection."""

    def __init__(self, host: str, port: int, topic: str) -> None:
        self.topic = topic
        self._address = (host, port)
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        if self._connection is None or self._connection.is_lost:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                _, self._connection = await asyncio.get_running_loop().create_connection(
                    Connection, *self._address
                )
        return self._connection

    def log(self, text: str) -> None:
        """A line in the trace."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            loop.world.log(text)

    def drop(self) -> None:
        """Give the connection up, as a client does with one that answers too late."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def refused(self) -> None:
        """The broker refused something: another one may be the right one to ask."""

    async def request(self, request: Any, version: int) -> Any:
        try:
            return await (await self.connection()).request(request, version)
        except OSError:
            self.drop()
            raise

    async def until_done(self, request: Any, version: int) -> Any:
        """Ask until it is answered."""
        while True:
            try:
                return await self.request(request, version)
            except OSError:
                await asyncio.sleep(RETRY_S)

    async def create_topic(self, partitions: int, configs: dict[str, str]) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=self.topic,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                for name, value in configs.items()
            ],
        )
        while True:
            answer = await self.until_done(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
            code = answer.topics[0].error_code
            if not error_for(code).retriable:
                _check(code, str(answer.topics[0].error_message))
                return
            await asyncio.sleep(RETRY_S)

    async def topic_id(self) -> UUID:
        """The id of the topic that has the name now; it must exist."""
        asked = MetadataRequest.MetadataRequestTopic(name=self.topic)
        request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
        found = (await self.until_done(request, 12)).topics[0]
        _check(found.error_code, f"for the topic {self.topic}")
        return UUID(int=found.topic_id.int)

    async def producer_id(self) -> tuple[int, int]:
        while True:
            answer = await self.until_done(InitProducerIdRequest(transaction_timeout_ms=60_000), 4)
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            if not error_for(answer.error_code).retriable:
                _check(answer.error_code)
            self.refused()
            await asyncio.sleep(RETRY_S)

    async def offset(self, partition: int, timestamp: int) -> int:
        """The log's end (LATEST) or start (EARLIEST)."""
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=[asked])
        while True:
            answer = await self.until_done(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)
            found = answer.topics[0].partitions[0]
            if not found.error_code:
                return int(found.offset)
            if not error_for(found.error_code).retriable:
                _check(found.error_code)
            self.refused()
            await asyncio.sleep(RETRY_S)


def _check(code: int, text: str = "") -> None:
    if code:
        raise Refused(code, text)


def expect_retriable(name: str, code: int) -> None:
    """Nothing that befalls a broker makes it refuse a good request for good."""
    error = error_for(code)
    if not error.retriable:
        raise SimulationFailed(f"{name} was refused for good: {error.__name__}")
