"""Who waits for room for the rest of a frame has its turn, over real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from millstream.clock import SystemClock
from millstream.net.connection import IDLE_BUFFER_BYTES, Connection, Place
from millstream.net.listener import Limits, Listener
from tests.net.test_connection import Streams, connected, echo, eventually, framed, read_frame, serving

LIMIT = 100_000
LARGE = bytes(90_000)
HALF = framed(LARGE)[:50_000]
REST = framed(LARGE)[50_000:]


@asynccontextmanager
async def entered(listener: Listener) -> AsyncIterator[tuple[Streams, Connection]]:
    """Both ends of a new connection."""
    before = set(listener.connections)
    async with connected(listener) as streams:
        await eventually(lambda: len(listener.connections) > len(before))
        (connection,) = listener.connections.keys() - before
        yield streams, connection


async def waits(connection: Connection) -> None:
    await eventually(lambda: not connection.transport.is_reading())


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue proceeds when the test says so."""
    monkeypatch.setattr("millstream.net.listener.SWEEP_SECONDS", 3600.0)


class Level:
    """An attribute that remembers the most it was."""

    now = most = 0

    def __get__(self, owner: object, kind: type) -> int:
        return self.now

    def __set__(self, owner: object, value: int) -> None:
        self.now = value
        self.most = max(self.most, value)


class Seconds(SystemClock):
    """Stands still until it is moved."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_frames_that_do_not_end_take_the_limit_and_one_frame_and_others_get_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty clients send the most of a frame each and stop; who means it waits, and is served."""
    monkeypatch.setattr("millstream.net.listener.SWEEP_SECONDS", 0.02)
    monkeypatch.setattr("millstream.net.buffer_queue.STALLED_SECONDS", 0.1)
    level = Level()
    monkeypatch.setattr(Listener, "buffered_bytes", level, raising=False)
    limit, frame = 1_000_000, 900_000

    async def hang(listener: Listener) -> None:
        async with connected(listener) as (reader, writer):
            writer.write(struct.pack(">i", frame) + bytes(frame - 1))
            try:
                await reader.read()
            except ConnectionResetError:
                pass

    async def main() -> None:
        async with serving(echo, Limits(max_buffered_bytes=limit)) as listener:
            hanging = [asyncio.create_task(hang(listener)) for _ in range(30)]
            await eventually(lambda: listener.buffered_bytes >= limit)
            payloads = [bytes([number]) * frame for number in range(3)]
            async with AsyncExitStack() as stack:
                good = [await stack.enter_async_context(connected(listener)) for _ in payloads]
                for (_, writer), payload in zip(good, payloads, strict=True):
                    writer.write(framed(payload))
                async with asyncio.timeout(60):
                    for (reader, _), payload in zip(good, payloads, strict=True):
                        assert await read_frame(reader) == payload
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(main())
    assert limit <= level.most <= limit + frame


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("small", [1, 3])
def test_half_a_frame_that_came_behind_others_gets_through_by_its_turn(
    monkeypatch: pytest.MonkeyPatch, small: int, is_held: bool
) -> None:
    monkeypatch.setattr("millstream.net.listener.SWEEP_SECONDS", 0.02)

    async def main() -> None:
        places: list[Place] = []

        def first_alone(connection: Connection, frame: memoryview) -> None:
            if is_held and not places:
                places.append(connection.reserve(is_alone=True))
            else:
                echo(connection, frame)

        payloads = [bytes([number]) * 1000 for number in range(small)]
        async with (
            serving(first_alone, Limits(max_buffered_bytes=LIMIT)) as listener,
            entered(listener) as ((reader, writer), connection),
        ):
            listener.buffered_bytes += LIMIT
            writer.write(b"".join(map(framed, payloads)) + framed(LARGE) + framed(b"next one"))
            if is_held:
                await waits(connection)
                places[0].fill([framed(payloads[0])])
            for payload in (*payloads, LARGE, b"next one"):
                assert await read_frame(reader) == payload
            assert listener.buffered_bytes == LIMIT

    asyncio.run(main())


def test_whose_turn_it_is_goes_on_while_there_is_room_for_who_waits(by_hand: None) -> None:
    """Its time counts from when it keeps others waiting."""

    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=LIMIT)) as listener,
            entered(listener) as ((slow_reader, slow_writer), slow),
            entered(listener) as ((reader, writer), other),
            entered(listener) as ((late_reader, late_writer), late),
        ):
            proceed = listener.buffer_queue.proceed
            listener.buffered_bytes += LIMIT
            slow_writer.write(HALF)
            await waits(slow)
            proceed(0.0, {slow: 0.0})
            await eventually(lambda: listener.buffered_bytes > LIMIT + len(HALF))

            writer.write(framed(LARGE))
            await waits(other)
            listener.buffered_bytes -= 2 * LIMIT
            proceed(100.0, {slow: 0.0})
            assert await read_frame(reader) == LARGE

            listener.buffered_bytes += 2 * LIMIT
            late_writer.write(framed(LARGE))
            await waits(late)
            proceed(104.0, {slow: 0.0})
            slow_writer.write(REST)
            assert await read_frame(slow_reader) == LARGE
            proceed(105.0, {})
            assert await read_frame(late_reader) == LARGE
            assert listener.protocol_errors.value == 0

    asyncio.run(main())


@pytest.mark.parametrize("is_moving", [False, True])
def test_whose_turn_it_is_ends_when_it_keeps_others_waiting(by_hand: None, is_moving: bool) -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=LIMIT)) as listener,
            entered(listener) as ((slow_reader, slow_writer), slow),
            entered(listener) as ((reader, writer), other),
        ):
            listener.buffered_bytes += LIMIT
            slow_writer.write(HALF)
            await waits(slow)
            listener.buffer_queue.proceed(0.0, {slow: 0.0})
            writer.write(framed(LARGE))
            await waits(other)
            last = 59 if is_moving else 4
            for second in range(last + 1):
                listener.buffer_queue.proceed(second, {slow: second if is_moving else 0.0})
            assert listener.protocol_errors.value == 0
            listener.buffer_queue.proceed(last + 1, {slow: last if is_moving else 0.0})
            async with asyncio.timeout(10):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await slow_reader.readexactly(1)
            listener.buffer_queue.proceed(last + 2, {})
            assert await read_frame(reader) == LARGE

    asyncio.run(main())


def test_the_next_has_its_turn_as_soon_as_a_frame_is_whole(by_hand: None) -> None:
    """Else a listener whose room is taken serves one large request each second."""

    async def main() -> None:
        async with serving(echo, Limits(max_buffered_bytes=LIMIT)) as listener, AsyncExitStack() as stack:
            listener.buffered_bytes += LIMIT
            clients = [await stack.enter_async_context(entered(listener)) for _ in range(20)]
            for (_, writer), connection in clients:
                writer.write(framed(LARGE))
                await waits(connection)
            listener.buffer_queue.proceed(0.0, {})
            for (reader, _), _ in clients:
                assert await read_frame(reader) == LARGE
            assert listener.buffered_bytes == LIMIT

    asyncio.run(main())


def test_who_cannot_take_its_turn_holds_up_nobody(by_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=LIMIT)) as listener,
            entered(listener) as ((poor_reader, poor_writer), poor),
            entered(listener) as ((reader, writer), other),
        ):
            listener.buffered_bytes += LIMIT
            for each, connection in (poor_writer, poor), (writer, other):
                each.write(framed(LARGE))
                await waits(connection)
            real = Connection._replace_buffer

            def short_of_memory(connection: Connection, size: int) -> None:
                if connection is poor:
                    raise MemoryError
                real(connection, size)

            monkeypatch.setattr(Connection, "_replace_buffer", short_of_memory)
            listener.buffer_queue.proceed(0.0, {})
            assert await read_frame(reader) == LARGE
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await read_frame(poor_reader)

    asyncio.run(main())


def test_a_busy_client_gives_the_room_back_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others wait for it: its small requests never leave it idle, and its last large one is done."""
    monkeypatch.setattr("millstream.net.listener.SWEEP_SECONDS", 0.02)
    for module in "listener", "buffer_queue":
        monkeypatch.setattr(f"millstream.net.{module}.STALLED_SECONDS", 3600.0)
    limit = 130_000

    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=limit)) as listener,
            entered(listener) as ((busy_reader, busy_writer), _),
            entered(listener) as ((_, hanging_writer), hanging),
            entered(listener) as ((reader, writer), _),
        ):

            async def be_busy() -> None:
                while True:
                    busy_writer.write(framed(b"small one"))
                    assert await read_frame(busy_reader) == b"small one"

            busy_writer.write(framed(bytes(limit)))
            assert await read_frame(busy_reader) == bytes(limit)
            task = asyncio.create_task(be_busy())
            assert listener.buffered_bytes >= limit - IDLE_BUFFER_BYTES
            hanging_writer.write(HALF)  # has the turn
            await waits(hanging)
            writer.write(framed(LARGE))
            assert await read_frame(reader) == LARGE
            assert not task.done()
            task.cancel()

    asyncio.run(main())


def test_who_leaves_off_in_the_midst_of_a_request_is_closed_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if it was let in by the limit, and so never had a turn; but not while nobody wants its room."""
    monkeypatch.setattr("millstream.net.listener.SWEEP_SECONDS", 0.02)
    monkeypatch.setattr("millstream.net.listener.STALLED_SECONDS", 0.2)
    limit = len(LARGE) + IDLE_BUFFER_BYTES

    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=limit)) as listener,
            entered(listener) as ((_, holding_writer), holding),
            entered(listener) as ((_, writer), _),
            entered(listener) as ((_, late_writer), _),
        ):
            holding_writer.write(framed(LARGE)[:-1])
            await eventually(lambda: listener.buffered_bytes >= len(LARGE) - IDLE_BUFFER_BYTES)
            await asyncio.sleep(0.5)
            assert holding in listener.connections
            for each in writer, late_writer:
                each.write(framed(LARGE)[:-1])
            await eventually(lambda: holding not in listener.connections)
            assert listener.protocol_errors.value >= 1

    asyncio.run(main())


def test_who_waited_for_its_turn_has_time_for_the_rest_of_its_request(
    by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker did not read, its silence was not its own: nor is it idle then."""

    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=LIMIT, max_idle_seconds=8)) as listener,
            entered(listener) as ((_, first_writer), first),
            entered(listener) as ((reader, writer), connection),
            entered(listener) as ((_, last_writer), last),
        ):
            clock = Seconds()
            monkeypatch.setattr(listener, "_clock", clock)
            listener.buffered_bytes += LIMIT
            first_writer.write(HALF)
            await waits(first)
            listener._sweep()
            writer.write(framed(LARGE)[:IDLE_BUFFER_BYTES])
            await waits(connection)
            last_writer.write(HALF)
            await waits(last)
            for clock.now in range(1, 11):
                first_writer.write(b"s")
                await eventually(lambda: first._is_active)
                listener._sweep()
            first_writer.write(REST[10:])
            await eventually(lambda: connection.transport.is_reading())
            for clock.now in (10.5, 14.5):
                listener._sweep()
            writer.write(framed(LARGE)[IDLE_BUFFER_BYTES:])
            assert await read_frame(reader) == LARGE

    asyncio.run(main())


def test_a_frame_larger_than_the_limit_gets_through() -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(max_buffered_bytes=LIMIT)) as listener,
            connected(listener) as (reader, writer),
        ):
            payload = bytes(5 * LIMIT)
            writer.write(framed(payload))
            assert await read_frame(reader) == payload

    asyncio.run(main())


def test_who_closes_while_it_waits_does_not_take_its_turn(by_hand: None) -> None:
    """It is there until its client has read what it was answered."""

    async def main() -> None:
        places: list[Place] = []

        def first_later(connection: Connection, frame: memoryview) -> None:
            if places:
                echo(connection, frame)
            else:
                places.append(connection.reserve(is_alone=False))

        async with (
            serving(first_later, Limits(max_buffered_bytes=LIMIT)) as listener,
            entered(listener) as ((_, closing_writer), closing),
            entered(listener) as ((reader, writer), other),
        ):
            listener.buffered_bytes += LIMIT
            closing_writer.transport.pause_reading()  # type: ignore[attr-defined]
            closing_writer.write(framed(b"small one") + HALF)
            await waits(closing)
            writer.write(framed(LARGE))
            await waits(other)
            places[0].fill([framed(bytes(16_000_000))])
            closing.close()
            listener.buffer_queue.proceed(0.0, {})
            listener.buffer_queue.proceed(1.0, {})
            assert await read_frame(reader) == LARGE
            assert closing in listener.connections
            closing_writer.transport.abort()

    asyncio.run(main())


def test_who_finds_room_when_an_answer_goes_out_waits_no_more(by_hand: None) -> None:
    async def main() -> None:
        places: list[Place] = []

        def first_later(connection: Connection, frame: memoryview) -> None:
            if places:
                echo(connection, frame)
            else:
                places.append(connection.reserve(is_alone=False))

        async with (
            serving(first_later, Limits(max_buffered_bytes=LIMIT)) as listener,
            entered(listener) as ((reader, writer), connection),
        ):
            listener.buffered_bytes += LIMIT
            writer.write(framed(b"small one") + HALF)
            await waits(connection)
            listener.buffered_bytes -= LIMIT
            places[0].fill([framed(b"small one")])
            writer.write(REST)
            for payload in (b"small one", LARGE):
                assert await read_frame(reader) == payload

    asyncio.run(main())
