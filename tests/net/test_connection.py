"""Frames in, answers out, in order and within bounds, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from millstream.clock import SystemClock
from millstream.errors import ProtocolError
from millstream.net.connection import IDLE_BUFFER_BYTES, Connection, Place
from millstream.net.listener import Limits, Listener
from millstream.net.occupancy import Occupancy

REFUSING = "refusing the connection of 127.0.0.1: "

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        return await reader.readexactly(size)


@asynccontextmanager
async def serving(
    service: Callable[[Connection, memoryview], None],
    limits: Limits | None = None,
    occupancy: Occupancy | None = None,
) -> AsyncIterator[Listener]:
    listener = Listener(service, SystemClock(), limits or Limits(), occupancy)
    await listener.start("127.0.0.1", 0)
    listener.open()
    try:
        yield listener
    finally:
        await listener.stop(grace_seconds=1)


@asynccontextmanager
async def connected(listener: Listener) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


def echo(connection: Connection, frame: memoryview) -> None:
    connection.answer([framed(bytes(frame))])


async def eventually(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not claim():
            await asyncio.sleep(0.005)


def test_answers_frames_of_any_size_however_they_are_cut() -> None:
    async def main() -> None:
        payloads = [
            bytes([i % 256]) * size for i, size in enumerate([8, 9, 500, 20_000, 8, 300_000, 16_380, 100])
        ]
        stream = b"".join(map(framed, payloads))
        async with serving(echo) as listener:
            for step in (1_000_000, 16_384, 4096, 777):
                async with connected(listener) as (reader, writer):
                    for start in range(0, len(stream), step):
                        writer.write(stream[start : start + step])
                        await writer.drain()
                    for payload in payloads:
                        assert await read_frame(reader) == payload

    asyncio.run(main())


def test_a_frame_may_come_byte_by_byte() -> None:
    async def main() -> None:
        async with serving(echo) as listener, connected(listener) as (reader, writer):
            for byte in framed(b"12345678") * 2:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert await read_frame(reader) == b"12345678"
            assert await read_frame(reader) == b"12345678"

    asyncio.run(main())


def test_answers_leave_in_the_order_of_their_requests() -> None:
    async def main() -> None:
        places: list[tuple[Place, bytes]] = []

        def later(connection: Connection, frame: memoryview) -> None:
            if frame[0] == ord("n"):
                connection.answer([framed(bytes(frame))])
            else:
                places.append((connection.reserve(is_alone=False), framed(bytes(frame))))

        async with serving(later) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"later--1") + framed(b"later--2") + framed(b"now----3"))
            await eventually(lambda: len(places) == 2)
            places[1][0].fill([places[1][1]])
            places[0][0].fill([places[0][1]])
            assert [await read_frame(reader) for _ in range(3)] == [b"later--1", b"later--2", b"now----3"]

    asyncio.run(main())


def test_a_request_that_runs_alone_holds_back_the_next() -> None:
    async def main() -> None:
        started: list[bytes] = []
        places: list[Place] = []

        def alone(connection: Connection, frame: memoryview) -> None:
            started.append(bytes(frame))
            places.append(connection.reserve(is_alone=True))

        async with serving(alone) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"request1") + framed(b"request2"))
            await eventually(lambda: bool(started))
            writer.write(framed(b"request3"))
            await asyncio.sleep(0.05)
            assert started == [b"request1"]
            for index in range(3):
                await eventually(lambda count=index + 1: len(places) == count)  # type: ignore[misc]
                places[index].fill([framed(started[index])])
                assert await read_frame(reader) == started[index]
            assert started == [b"request1", b"request2", b"request3"]

    asyncio.run(main())


def test_a_request_without_an_answer_takes_no_place() -> None:
    async def main() -> None:
        def silent_then_echo(connection: Connection, frame: memoryview) -> None:
            if frame[0] != ord("s"):
                connection.answer([framed(bytes(frame))])

        async with serving(silent_then_echo) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"silent--") + framed(b"answered"))
            assert await read_frame(reader) == b"answered"

    asyncio.run(main())


def test_a_reader_that_does_not_read_stops_being_served() -> None:
    async def main() -> None:
        answered = 0
        big = framed(bytes(4_000_000))

        def answer_much(connection: Connection, frame: memoryview) -> None:
            nonlocal answered
            answered += 1
            connection.answer([big])

        async with serving(answer_much) as listener, connected(listener) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(framed(b"12345678") * 500)
            await eventually(lambda: listener.unsent.bytes > 0)
            await asyncio.sleep(0.3)
            served_while_unread = answered
            assert served_while_unread < 20
            assert 0 < listener.unsent.bytes <= 8_000_100
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(30):
                await read_frame(reader)
            assert answered > served_while_unread

    asyncio.run(main())


def test_the_bytes_not_sent_are_forgotten_with_their_connection() -> None:
    async def main() -> None:
        def answer_much(connection: Connection, frame: memoryview) -> None:
            connection.answer([framed(bytes(16_000_000))])

        async with serving(answer_much) as listener:
            async with connected(listener) as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(framed(b"12345678"))
                await eventually(lambda: listener.unsent.bytes > 0)
                writer.transport.abort()
            await eventually(lambda: listener.unsent.bytes == 0 and not listener.connections)
            assert listener.buffered_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("size", [-1, 0, 7, 2_000_000, 2**31 - 1])
def test_a_frame_of_a_forbidden_size_ends_the_connection(size: int) -> None:
    async def main() -> None:
        async with serving(echo, Limits(max_request_bytes=1_000_000)) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(struct.pack(">i", size) + bytes(100))
                async with asyncio.timeout(10):
                    assert await reader.read() == b""
            assert listener.protocol_errors.value == 1
            async with connected(listener) as (reader, writer):
                writer.write(framed(b"still up"))
                assert await read_frame(reader) == b"still up"

    asyncio.run(main())


def test_a_service_that_fails_ends_its_connection_only() -> None:
    async def main() -> None:
        def fail(connection: Connection, frame: memoryview) -> None:
            if frame[0] == ord("p"):
                raise ProtocolError("made to fail")
            if frame[0] == ord("b"):
                raise RuntimeError("made to fail")
            echo(connection, frame)

        async with serving(fail) as listener, connected(listener) as (good_reader, good_writer):
            for kind in (b"protocol", b"bug-----"):
                async with connected(listener) as (reader, writer):
                    writer.write(framed(kind))
                    try:
                        async with asyncio.timeout(10):
                            assert await reader.read() == b""
                    except ConnectionResetError:
                        pass
            good_writer.write(framed(b"good one"))
            assert await read_frame(good_reader) == b"good one"

    asyncio.run(main())


def test_an_announced_size_takes_memory_only_as_its_bytes_come() -> None:
    async def main() -> None:
        async with serving(echo) as listener, connected(listener) as (_, writer):
            writer.write(struct.pack(">i", 100_000_000) + bytes(100_000))
            await eventually(lambda: listener.buffered_bytes > 0)
            await asyncio.sleep(0.1)
            assert listener.buffered_bytes < 1_000_000

    asyncio.run(main())


def test_buffers_of_all_connections_together_are_bounded() -> None:
    async def main() -> None:
        limits = Limits(max_buffered_bytes=200_000)
        async with serving(echo, limits) as listener, connected(listener) as (_, first):
            first.write(struct.pack(">i", 1_000_000) + bytes(300_000))
            await eventually(lambda: listener.buffered_bytes > 200_000)
            async with connected(listener) as (reader, second):
                payload = bytes(100_000)
                second.write(framed(payload))
                await asyncio.sleep(0.2)
                assert listener.buffered_bytes < 1_100_000
                first.transport.abort()
                assert await read_frame(reader) == payload

    asyncio.run(main())


def test_an_idle_connection_gives_its_large_buffer_back() -> None:
    async def main() -> None:
        async with serving(echo) as listener, connected(listener) as (reader, writer):
            payload = bytes(10 * IDLE_BUFFER_BYTES)
            writer.write(framed(payload))
            assert await read_frame(reader) == payload
            assert listener.buffered_bytes > 0
            await eventually(lambda: listener.buffered_bytes == 0)
            writer.write(framed(payload))
            assert await read_frame(reader) == payload

    asyncio.run(main())


def test_connections_beyond_the_limits_are_refused() -> None:
    async def main() -> None:
        for limits, occupancy in (
            (Limits(max_connections=lambda: 1), Occupancy()),
            (Limits(), Occupancy(max_connections=lambda: 1)),
            (Limits(), Occupancy(max_connections_of_ip=lambda ip: int(ip == "127.0.0.1"))),
        ):
            async with serving(echo, limits, occupancy) as listener, connected(listener) as (reader, writer):
                writer.write(framed(b"admitted"))
                assert await read_frame(reader) == b"admitted"
                async with connected(listener) as (refused, _):
                    try:
                        async with asyncio.timeout(10):
                            assert await refused.read() == b""
                    except ConnectionResetError:
                        pass
                assert listener.refused.value == 1

    asyncio.run(main())


class Minutes(SystemClock):
    """Stands still until it is moved."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_limit_that_keeps_some_out_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        by_listener, by_broker, by_ip = 9, 9, 9
        limits = Limits(max_connections=lambda: by_listener, max_connections_key="the.key")
        shared, clock = Occupancy(lambda: by_broker, lambda _: by_ip, descriptors=3), Minutes()
        listener = Listener(echo, clock, limits, shared)
        await listener.start("127.0.0.1", 0)
        listener.open()

        async def said() -> list[str]:
            """What is logged while two connections are refused."""
            caplog.clear()
            assert [await is_admitted(listener) for _ in range(2)] == [False, False]
            return [record.message.removeprefix(REFUSING) for record in caplog.records]

        async with connected(listener), connected(listener), connected(listener):
            await eventually(lambda: len(listener.connections) == 3)
            assert await said() == [
                "what the process may open (raise it with ulimit -n) allows 3 connections, and 3 are there"
            ]
            by_broker = 2
            assert await said() == ["max.connections allows 2 connections, and 3 are there"]
            by_listener = 1
            assert await said() == ["the.key allows 1 connections, and 3 are there"]
            clock.now = 59.0
            assert await said() == []
            clock.now = 60.0
            assert await said() == ["the.key allows 1 connections, and 3 are there"]
        await eventually(lambda: not listener.connections)
        by_listener, by_broker, by_ip = 9, 9, 0
        of_ip = "max.connections.per.ip, or an override of it, allows 0 connections, and 0 are there"
        assert await said() == [of_ip]
        await listener.stop(grace_seconds=1)

    asyncio.run(main())


async def is_admitted(listener: Listener) -> bool:
    before = len(listener.connections)
    async with connected(listener) as (reader, writer):
        try:
            writer.write(framed(b"admitted"))
            found = await read_frame(reader) == b"admitted"
        except (ConnectionError, asyncio.IncompleteReadError):
            found = False
    while len(listener.connections) > before:
        await asyncio.sleep(0.001)
    return found


def test_listeners_share_their_places_and_some_are_reserved() -> None:
    async def main() -> None:
        limit, of_ip = 2, 3
        shared = Occupancy(lambda: limit, lambda _: of_ip)
        async with (
            serving(echo, Limits(), shared) as first,
            serving(echo, Limits(), shared) as second,
            serving(echo, Limits(is_reserved=True), shared) as reserved,
            connected(first) as (reader, writer),
        ):
            writer.write(framed(b"admitted"))
            assert await read_frame(reader) == b"admitted"
            async with connected(second) as (reader, writer):
                writer.write(framed(b"admitted"))
                assert await read_frame(reader) == b"admitted"
                assert not await is_admitted(first)
                assert not await is_admitted(second)
                assert await is_admitted(reserved)
                limit = 3  # as it is set while they listen
                assert await is_admitted(first)
                of_ip = 2
                assert not await is_admitted(reserved)
            while second.connections:
                await asyncio.sleep(0.001)
            assert await is_admitted(first)
            assert (first.refused.value, second.refused.value, reserved.refused.value) == (1, 1, 1)

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", b"\0\0\1\0half a frame"])
def test_idle_connections_end(sent: bytes) -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(max_idle_seconds=0.5)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(sent)
            try:
                async with asyncio.timeout(10):
                    assert await reader.read() == b""
            except ConnectionResetError:
                pass

    asyncio.run(main())


def test_stopping_lets_requests_under_way_be_answered() -> None:
    async def main() -> None:
        places: list[Place] = []

        def later(connection: Connection, frame: memoryview) -> None:
            places.append(connection.reserve(is_alone=True))

        listener = Listener(later, SystemClock(), Limits())
        await listener.start("127.0.0.1", 0)
        listener.open()
        async with connected(listener) as (reader, writer):
            writer.write(framed(b"under way"))
            await eventually(lambda: bool(places))
            stopping = asyncio.create_task(listener.stop())
            await asyncio.sleep(0.05)
            places[0].fill([framed(b"answered")])
            assert await read_frame(reader) == b"answered"
            async with asyncio.timeout(10):
                assert await reader.read() == b""
                await stopping

    asyncio.run(main())


def test_who_is_accepted_while_the_listener_stops_is_sent_away() -> None:
    """asyncio has taken the socket then, but not made a connection of it yet: it must not be left open."""

    async def main() -> None:
        listener = Listener(echo, SystemClock(), Limits())
        await listener.start("127.0.0.1", 0)
        listener.open()
        with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as client:
            await asyncio.sleep(0)  # the loop sees that somebody is there
            await asyncio.sleep(0)  # it has accepted, and begun a task
            await listener.stop()
            await eventually(lambda: listener.refused.value == 1)
            assert client.recv(1) == b""

    asyncio.run(main())


@pytest.mark.parametrize(("address", "is_local"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_connection_knows_whether_both_ends_have_one_address(address: str, is_local: bool) -> None:
    async def main() -> None:
        async with serving(echo) as listener:
            with socket.create_connection(("127.0.0.1", listener.port), 10, source_address=(address, 0)):
                await eventually(lambda: len(listener.connections) == 1)
                (connection,) = listener.connections
                assert connection.is_local == is_local

    asyncio.run(main())


def test_localhost_is_served_on_both_families() -> None:
    async def main() -> None:
        listener = Listener(echo, SystemClock(), Limits())
        await listener.start("localhost", 0)
        listener.open()
        try:
            for host in ("127.0.0.1", "::1"):
                reader, writer = await asyncio.open_connection(host, listener.port)
                writer.write(framed(b"12345678"))
                assert await read_frame(reader) == b"12345678"
                writer.close()
                await writer.wait_closed()
        finally:
            await listener.stop(grace_seconds=1)

    asyncio.run(main())


def test_requests_wait_until_the_listener_opens() -> None:
    async def main() -> None:
        listener = Listener(echo, SystemClock(), Limits())
        await listener.start("127.0.0.1", 0)
        try:
            async with connected(listener) as (reader, writer):
                writer.write(framed(b"12345678"))
                await eventually(lambda: bool(listener.connections))
                await asyncio.sleep(0.05)
                listener.open()
                assert await read_frame(reader) == b"12345678"
        finally:
            await listener.stop(grace_seconds=1)

    asyncio.run(main())
