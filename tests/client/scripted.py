"""A broker that misbehaves as a test tells it to: what no real broker does on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.net.listener import close_servers
from millstream.protocol.frame import RequestHeader, frame_response, read_request_header
from millstream.protocol.messages import REQUESTS, ApiVersionsResponse
from millstream.protocol.schema import Request, Response

Answer: TypeAlias = Response | bytes | None
"""A response, raw bytes to write instead, or nothing at all."""
Script: TypeAlias = Callable[[RequestHeader, Request], Awaitable[Answer]]


def all_versions() -> ApiVersionsResponse:
    """Everything that the protocol package declares."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, request in REQUESTS.items()
            for low, high in [request.versions]
        ]
    )


@dataclass
class ScriptedBroker:
    """Listens on a port; `seen` holds the requests that came."""

    port: int
    seen: list[tuple[RequestHeader, Request]] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def scripted_broker(script: Script) -> AsyncIterator[ScriptedBroker]:
    """A server that answers each request with what `script` gives; ApiVersions too."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        broker.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header, offset = read_request_header(frame)
                request = REQUESTS[header.api_key].decode(frame, header.api_version, offset)
                broker.seen.append((header, request))
                answer = await script(header, request)
                if isinstance(answer, bytes):
                    writer.write(answer)
                elif answer is not None:
                    writer.writelines(frame_response(header.correlation_id, answer, header.api_version))
                if isinstance(answer, bytes) and len(answer) < 4 + int.from_bytes(answer[:4], "big"):
                    return  # less than a frame: the rest will not come
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    broker = ScriptedBroker(server.sockets[0].getsockname()[1])
    try:
        yield broker
    finally:
        await close_servers([server])
        for _ in range(5):  # who was accepted by now comes to its task, which closes its connection
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
