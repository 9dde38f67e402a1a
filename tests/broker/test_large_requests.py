"""Large requests that list things are served one after another; small ones do not wait for them."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from millstream.broker import router
from millstream.broker.handlers import fetch as fetch_handlers
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.protocol.batch import encode_batch
from millstream.protocol.frame import frame_request
from millstream.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse, FetchRequest
from millstream.protocol.record import Record
from millstream.storage.log import Log
from millstream.storage.reading import Slice

LARGE = ["group"] * 20_000
SMALL = ["group"]


class Served:
    """Takes the place of a handler: answers when it is told to, and counts."""

    def __init__(self) -> None:
        self.now: list[asyncio.Future[None]] = []
        self.large = 0

    async def handle(self, ctx: Context, req: DescribeGroupsRequest) -> DescribeGroupsResponse:
        if len(req.groups) > 1:
            self.large += 1
            future = asyncio.get_running_loop().create_future()
            self.now.append(future)
            try:
                await future
            finally:
                self.now.remove(future)
        return DescribeGroupsResponse(groups=[])


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, groups: list[str], cut: int = 0) -> None:
        frame = b"".join(frame_request(1, None, DescribeGroupsRequest(groups=groups), 0))[4:]
        frame = frame[: len(frame) - cut]
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    def fetch(self, partitions: int) -> None:
        """Ask for records, and have all the time in the world."""
        wanted = [
            FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
            for index in range(partitions)
        ]
        topic = FetchRequest.FetchTopic(topic="t", partitions=wanted)
        request = FetchRequest(max_wait_ms=1 << 30, min_bytes=1, topics=[topic])
        self.writer.write(b"".join(frame_request(1, None, request, 11)))

    def leave(self) -> None:
        """End the connection at once, as the system does for a process that is killed."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def answer(self) -> bytes:
        """Empty if the connection has ended."""
        try:
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""


async def connected(broker: Broker) -> Client:
    listener = broker.listeners["PLAINTEXT"]
    return Client(*await asyncio.open_connection("127.0.0.1", listener.port))


async def until(served: Served, large: int) -> None:
    while served.large < large:
        await asyncio.sleep(0.001)


def broker_in(folder: Path) -> Broker:
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "registry": "memory"}
    return Broker(BrokerConfig(config))


def test_one_after_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), broker_in(tmp_path) as broker:
            served = Served()
            broker.router.routes[DescribeGroupsRequest.key].handler = served.handle
            clients = [await connected(broker) for _ in range(5)]
            listener = broker.listeners["PLAINTEXT"]
            for client in clients[:4]:
                client.send(LARGE)
            await until(served, 1)
            clients[4].send(SMALL)
            assert await clients[4].answer()  # it did not wait
            assert served.large == 1
            assert listener.buffered_bytes > 3 * 7 * len(LARGE)
            clients[1].leave()  # it does not wait any more
            while len(listener.connections) == len(clients):
                await asyncio.sleep(0.001)
            clients[4].send(LARGE, cut=1)  # it will be found to be wrong
            served.now[0].set_result(None)
            assert await clients[0].answer()
            for count, client in ((2, clients[2]), (3, clients[3])):
                await until(served, count)
                await asyncio.sleep(0.01)
                assert len(served.now) == 1
                served.now[0].set_result(None)
                assert await client.answer()
            assert not await clients[4].answer()
            assert served.large == 3
            assert listener.protocol_errors.value == 1
            clients[0].send(LARGE)
            await until(served, 4)
            clients[0].leave()
            clients[2].send(LARGE)
            await until(served, 5)
            served.now[-1].set_result(None)
            assert await clients[2].answer()
            for client in clients:
                client.writer.close()

    asyncio.run(main())


def test_one_that_takes_long_lets_the_next_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "TURN_SECONDS", 0.05)

    async def main() -> None:
        async with asyncio.timeout(30), broker_in(tmp_path) as broker:
            served = Served()
            broker.router.routes[DescribeGroupsRequest.key].handler = served.handle
            clients = [await connected(broker) for _ in range(3)]
            for client in clients:
                client.send(LARGE)
            await until(served, 3)
            for future in list(served.now):
                future.set_result(None)
            for client in clients:
                assert await client.answer()
                client.writer.close()

    asyncio.run(main())


class Cold:
    """Has every log that is read from now on need its disk, and counts how often one is read there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        read = Log.read

        def slow(log: Log, offset: int, max_bytes: int, *, nowait: bool = False, **options: Any) -> Slice:
            if nowait:
                raise BlockingIOError
            self.reads += 1
            return read(log, offset, max_bytes, **options)

        monkeypatch.setattr(Log, "read", slow)


async def parked(broker: Broker, count: int) -> list[Client]:
    """Clients of which each waits for records with a large request."""
    await broker.controller.create_topic(NewTopic("t", 1, 1))
    broker.router.routes[FetchRequest.key].large_bytes = 1
    clients = [await connected(broker) for _ in range(count)]
    for number, client in enumerate(clients):
        client.fetch(1)
        while broker.large_fetches <= number:
            await asyncio.sleep(0.001)
    return clients


def test_fetches_that_waited_take_their_turns_to_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), broker_in(tmp_path) as broker:
            clients = await parked(broker, 2)
            cold = Cold(monkeypatch)
            answers = [asyncio.ensure_future(client.answer()) for client in clients]
            async with broker.router._large:
                broker.replicas.leader("t", 0).append(encode_batch([Record(b"new", None, (), 0)]), 1, 9)
                done, _ = await asyncio.wait(answers, timeout=0.1)
                assert not done
                assert cold.reads == 0
            for answer in answers:
                assert b"new" in await answer
            assert cold.reads == 2
            for client in clients:
                client.writer.close()

    asyncio.run(main())


def test_nothing_is_read_for_clients_that_leave_before_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), broker_in(tmp_path) as broker:
            clients = await parked(broker, 3)
            cold = Cold(monkeypatch)
            async with broker.router._large:
                broker.replicas.leader("t", 0).append(encode_batch([Record(b"new", None, (), 0)]), 1, 9)
                await asyncio.sleep(0.01)  # they wait for their turns
                for client in (clients[0], clients[2]):
                    client.leave()
                while broker.large_fetches > 1:
                    await asyncio.sleep(0.001)
            assert b"new" in await clients[1].answer()
            async with broker.router._large:  # after all who waited for it
                assert cold.reads == 1
            clients[1].writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("many", [1, 5000])
def test_fetches_that_wait_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """They have no turn while they wait, and all that may wait are answered when something comes."""
    monkeypatch.setattr(fetch_handlers, "MANY_PARTITIONS", many)
    monkeypatch.setattr(fetch_handlers, "MAX_LARGE_WAITING", 3)

    async def main() -> None:
        async with asyncio.timeout(router.TURN_SECONDS / 2), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", 2, 1))
            broker.router.routes[FetchRequest.key].large_bytes = 1
            clients = [await connected(broker) for _ in range(5)]
            for number, client in enumerate(clients[:3]):
                client.fetch(2)
                while broker.large_fetches <= number:
                    await asyncio.sleep(0.001)
            clients[3].send(LARGE)
            assert await clients[3].answer()
            clients[4].fetch(2)
            assert b"something new" not in await clients[4].answer()  # too many wait already
            batch = encode_batch([Record(b"something new", None, (), 0)])
            broker.replicas.leader("t", 1).append(batch, 1, 9)
            for client in clients[:3]:
                assert b"something new" in await client.answer()
            assert broker.large_fetches == 0
            clients[0].fetch(1)
            while not broker.large_fetches:
                await asyncio.sleep(0.001)
            clients[0].leave()
            while broker.large_fetches:
                await asyncio.sleep(0.001)
            for client in clients[1:]:
                client.writer.close()

    asyncio.run(main())
