"""What is counted of the answers that wait, over real sockets."""

from __future__ import annotations

import asyncio
import socket

from millstream.clock import SystemClock
from millstream.net.connection import Connection
from millstream.net.event_loop import loop_factory
from millstream.net.listener import Limits, Listener
from millstream.net.unsent import Unsent
from tests.net.test_connection import framed

MB = 1 << 20


def service(connection: Connection, frame: memoryview) -> None:
    connection.answer([framed(bytes(200_000))])


def asked_and_read(port: int) -> socket.socket:
    """A client that has read its answer, and asks no more."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(framed(bytes(8)))
    left = 200_004
    while left:
        left -= len(client.recv(left))
    return client


def test_answers_that_were_read_leave_all_the_room_also_where_nobody_asks_again() -> None:
    """Not all of them were counted again when the rest of them left: their connections are idle."""
    clients: list[socket.socket] = []

    async def main() -> None:
        unsent = Unsent(SystemClock(), lambda: MB)
        listener = Listener(service, SystemClock(), Limits(send_buffer_bytes=16_384), unsent=unsent)
        await listener.start("127.0.0.1", 0)
        listener.open()
        try:
            async with asyncio.timeout(20):
                while unsent.bytes <= MB // 2:
                    clients.append(await asyncio.to_thread(asked_and_read, listener.port))
                while unsent.room_bytes < MB:
                    await asyncio.sleep(0.005)
        finally:
            for client in clients:
                client.close()
            await listener.stop(grace_seconds=1)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
