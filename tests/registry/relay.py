"""A way to a server that a test can block: bytes stop, connections stay."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from millstream.net.listener import close_servers


class Relay:
    """Passes bytes between whoever connects to `port` and a server; in `blocked` none, and none are lost."""

    def __init__(self, host: str, port: int, own_port: int = 0) -> None:
        self._target = (host, port)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = own_port

    def block(self) -> None:
        self._open.clear()

    def unblock(self) -> None:
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_servers([self._server])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there, back = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, back))
                    both.create_task(self._pass(there, writer))
            finally:
                back.close()
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await reader.read(65536)
            await self._open.wait()
            if not data:
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
