"""The simulated network keeps TCP's promises, and breaks what TCP may break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.host import Host
from tests.simulation.network import Network
from tests.simulation.world import SimulationFailed, World


class Talk(asyncio.Protocol):
    """Collects what arrives, and how."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.lost: list[Exception | None] = []
        self.is_paused = False
        self.pauses = self.resumes = 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)

    def pause_writing(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume_writing(self) -> None:
        self.is_paused = False
        self.resumes += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)


class Pair:
    """A server host and a client host, one connection between them."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.server = Host(self.world, self.network, "server")
        self.client = Host(self.world, self.network, "client")
        self.accepted: list[Talk] = []

    def accept(self) -> Talk:
        self.accepted.append(Talk())
        return self.accepted[-1]

    async def listen(self) -> Any:
        return await asyncio.get_running_loop().create_server(self.accept, "server", 7000)

    async def connect(self) -> Talk:
        _, protocol = await asyncio.get_running_loop().create_connection(Talk, "server", 7000)
        return protocol

    def run(self, use: Callable[[Talk], Coroutine[Any, Any, Any]], limit_s: float = 600.0) -> None:
        async def main() -> None:
            await self.server.start().call(self.listen())
            client = self.client.start()
            talk = await client.call(self.connect())
            await client.call(use(talk))

        self.world.run(main(), limit_s=limit_s)


def test_bytes_arrive_in_order_cut_and_joined_at_will() -> None:
    sent = [b"%05d" % n for n in range(2000)]
    cuts: set[int] = set()
    for seed in range(5):
        pair = Pair(seed)

        async def use(talk: Talk) -> None:
            for number, chunk in enumerate(sent):
                talk.transport.write(chunk)
                if number % 10 == 0:
                    await asyncio.sleep(0.0005)
            await asyncio.sleep(5.0)

        pair.run(use)
        assert pair.accepted[0].data == b"".join(sent)
        cuts.update(len(chunk) for chunk in pair.accepted[0].chunks)
    assert any(size % 5 for size in cuts), "no write was ever split"
    assert any(size > 5 for size in cuts), "no two writes were ever joined"


def test_addresses_are_known() -> None:
    pair = Pair(1)

    async def use(talk: Talk) -> None:
        assert talk.transport.get_extra_info("peername") == ("server", 7000)
        await asyncio.sleep(1.0)
        name = talk.transport.get_extra_info("sockname")
        assert pair.accepted[0].transport.get_extra_info("peername") == name

    pair.run(use)


def test_slow_reader_pauses_the_writer_and_bounds_its_buffer() -> None:
    pair = Pair(2)

    async def use(talk: Talk) -> None:
        await asyncio.sleep(0.1)
        reader = pair.accepted[0].transport
        reader.pause_reading()
        talk.transport.set_write_buffer_limits(high=10_000)
        written = 0
        while not talk.is_paused:
            talk.transport.write(bytes(1000))
            written += 1000
            await asyncio.sleep(0.001)
        assert 10_000 < talk.transport.get_write_buffer_size() <= 11_000
        assert pair.accepted[0].data == b""
        reader.resume_reading()
        await asyncio.sleep(5.0)
        assert talk.pauses == 1
        assert talk.resumes == 1
        assert talk.transport.get_write_buffer_size() == 0
        assert len(pair.accepted[0].data) == written

    pair.run(use)


def test_close_delivers_what_was_written_then_ends_both_sides() -> None:
    pair = Pair(3)

    async def use(talk: Talk) -> None:
        talk.transport.write(bytes(3_000_000))
        talk.transport.close()
        assert talk.transport.is_closing()
        await asyncio.sleep(30.0)
        assert talk.lost == [None]
        assert len(pair.accepted[0].data) == 3_000_000
        assert pair.accepted[0].lost == [None]

    pair.run(use)


def test_reset_reaches_both_sides() -> None:
    pair = Pair(4)

    async def use(talk: Talk) -> None:
        await asyncio.sleep(0.1)
        pair.network.reset(talk.transport)
        talk.transport.write(b"too late")
        await asyncio.sleep(1.0)
        for end in (talk, pair.accepted[0]):
            assert len(end.lost) == 1
            assert isinstance(end.lost[0], ConnectionResetError)

    pair.run(use)


def test_partition_is_one_way_and_holds_bytes_until_it_heals() -> None:
    pair = Pair(5)

    async def use(talk: Talk) -> None:
        await asyncio.sleep(0.1)
        other = pair.accepted[0]
        pair.network.block("client", "server")
        talk.transport.write(b"held")
        other.transport.write(b"passes")
        await asyncio.sleep(20.0)
        assert other.data == b""
        assert talk.data == b"passes"
        pair.network.heal()
        await asyncio.sleep(1.0)
        assert other.data == b"held"

    pair.run(use)


def test_nobody_listens_is_refused_and_a_partition_times_out() -> None:
    pair = Pair(6)

    async def use(talk: Talk) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Talk, "server", 7001)
        pair.network.block("server", "client")
        before = loop.time()
        with pytest.raises(TimeoutError):
            await loop.create_connection(Talk, "server", 7000)
        assert loop.time() - before >= 30.0

    pair.run(use)


def test_killed_server_ends_its_connections_and_frees_its_port() -> None:
    pair = Pair(7)

    async def use(talk: Talk) -> None:
        await asyncio.sleep(0.1)
        pair.server.crash()
        await asyncio.sleep(1.0)
        assert len(talk.lost) == 1
        assert pair.accepted[0].lost == [], "a dead process hears nothing"
        await pair.server.start().call(pair.listen())
        await pair.connect()

    pair.run(use)


def test_power_loss_is_silent_until_the_machine_is_back_and_written_to() -> None:
    pair = Pair(8)

    async def use(talk: Talk) -> None:
        await asyncio.sleep(0.1)
        pair.server.power_loss()
        talk.transport.write(b"hello?")
        await asyncio.sleep(10.0)
        assert talk.lost == []
        await pair.server.start().call(pair.listen())
        await asyncio.sleep(2.0)
        assert isinstance(talk.lost[0], ConnectionResetError)
        assert pair.accepted[0].data == b""

    pair.run(use)


def test_server_close_waits_for_its_connections() -> None:
    pair = Pair(9)

    async def stop() -> float:
        await asyncio.sleep(0.1)
        server = pair.server.process.loop.servers[0]  # type: ignore[union-attr]
        assert server.sockets[0].getsockname() == ("server", 7000)
        server.close()
        assert not server.is_serving()
        await server.wait_closed()
        return pair.world.now

    async def use(talk: Talk) -> None:
        asyncio.get_running_loop().call_later(3.0, talk.transport.close)
        stopped = await pair.server.process.call(stop())  # type: ignore[union-attr]
        assert stopped > 3.0

    pair.run(use)


def test_failing_protocol_fails_the_run() -> None:
    pair = Pair(10)

    async def use(talk: Talk) -> None:
        talk.chunks = None  # type: ignore[assignment]
        await asyncio.sleep(0.1)
        pair.accepted[0].transport.write(b"x")
        await asyncio.sleep(1.0)

    with pytest.raises(SimulationFailed, match="AttributeError"):
        pair.run(use)
