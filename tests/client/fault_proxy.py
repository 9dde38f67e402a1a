"""A TCP proxy before a broker that does to requests and answers what networks do.

It knows frames: the broker's address in Metadata and FindCoordinator answers becomes its own, so that clients
stay behind it, and a fault can be meant for requests of one kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from itertools import cycle
from random import Random
from types import TracebackType
from typing import Any, Self

from millstream.client.face import LoopThread
from millstream.net.listener import close_servers
from millstream.protocol.frame import frame_response, read_request_header, read_response
from millstream.protocol.messages import (
    REQUESTS,
    FetchResponse,
    FindCoordinatorResponse,
    MetadataResponse,
    ProduceResponse,
)

PRODUCE = 0
REWRITTEN = {PRODUCE: 1 << 20, 1: 4096, 3: 1 << 24, 10: 1 << 20}
"""Answers that name brokers, by key, and up to which size they are looked into. Produce and Fetch do so with
errors (KIP-951), and a client that followed them would pass the proxy by."""


class Fault(Enum):
    """What happens to one request."""

    NONE = "nothing"
    CUT_BEFORE = "the connection is cut before the broker sees it"
    CUT_WITHIN = "the connection is cut in the middle of it"
    LOSE_ANSWER = "the broker answers and the connection is cut"
    DELAY = "the answer comes late"


Decide = Callable[[int], Fault]
"""What to do with a request, by its API key."""


class FaultProxy:
    """Listens on a port of its own, in a thread of its own. `decide` is asked about every request."""

    def __init__(self, host: str, port: int, decide: Decide | None = None) -> None:
        self.host, self.port = host, port
        self.decide: Decide = decide or (lambda _: Fault.NONE)
        self.seen: list[tuple[int, Fault]] = []
        self.delay_s = 0.05
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._thread = LoopThread("fault-proxy")
        self.own_port = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.own_port}"

    def count(self, fault: Fault) -> int:
        return sum(1 for _, seen in self.seen if seen is fault)

    def __enter__(self) -> Self:
        self._thread.run(self._listen(), 10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._stop(), 10)
        self._thread.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.own_port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        await close_servers([self._server])
        for link in list(self._links):
            link.cut()
        while self._links:
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), (far_reader, far_writer))
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def cut(self) -> None:
        """Cut every connection now."""
        self._thread.run(self._cut(), 5)

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cut()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, client: Streams, broker: Streams) -> None:
        self.proxy = proxy
        self.client_reader, self.client_writer = client
        self.broker_reader, self.broker_writer = broker
        self.asked: dict[int, tuple[int, int, Fault]] = {}

    def cut(self) -> None:
        self.client_writer.transport.abort()
        self.broker_writer.transport.abort()

    async def run(self) -> None:
        ways = [self._quietly(self._requests()), self._quietly(self._answers())]
        await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.ALL_COMPLETED)

    async def _quietly(self, way: Coroutine[Any, Any, None]) -> None:
        try:
            await way
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            pass  # uvloop says RuntimeError of a connection that is cut
        finally:
            self.cut()

    async def _requests(self) -> None:
        while True:
            head = await self.client_reader.readexactly(4)
            frame = await self.client_reader.readexactly(int.from_bytes(head, "big"))
            header, _ = read_request_header(frame)
            fault = self.proxy.decide(header.api_key)
            self.proxy.seen.append((header.api_key, fault))
            if fault is Fault.CUT_BEFORE:
                return
            if fault is Fault.CUT_WITHIN:
                self.broker_writer.write(head + frame[: len(frame) // 2])
                await self.broker_writer.drain()
                return
            self.asked[header.correlation_id] = (header.api_key, header.api_version, fault)
            self.broker_writer.write(head + frame)
            await self.broker_writer.drain()

    async def _answers(self) -> None:
        while True:
            size = int.from_bytes(await self.broker_reader.readexactly(4), "big")
            frame = await self.broker_reader.readexactly(size)
            correlation_id = int.from_bytes(frame[:4], "big")
            key, version, fault = self.asked.pop(correlation_id)
            if fault is Fault.LOSE_ANSWER:
                return
            if fault is Fault.DELAY:
                await asyncio.sleep(self.proxy.delay_s)
            self.client_writer.write(self._rewritten(key, version, correlation_id, frame))
            await self.client_writer.drain()

    def _rewritten(self, key: int, version: int, correlation_id: int, frame: bytes) -> bytes:
        whole = len(frame).to_bytes(4, "big") + frame
        if key not in REWRITTEN or len(frame) > REWRITTEN[key]:
            return whole
        answer = read_response(frame, REQUESTS[key].response, version)
        if isinstance(answer, MetadataResponse):
            for broker in answer.brokers:
                broker.host, broker.port = "127.0.0.1", self.proxy.own_port
        elif isinstance(answer, FindCoordinatorResponse):
            answer.host, answer.port = "127.0.0.1", self.proxy.own_port
        elif isinstance(answer, ProduceResponse | FetchResponse):
            if not answer.node_endpoints:
                return whole
            for endpoint in answer.node_endpoints:
                endpoint.host, endpoint.port = "127.0.0.1", self.proxy.own_port
        return b"".join(bytes(chunk) for chunk in frame_response(correlation_id, answer, version))


def now_and_then(seed: int, chance: float, faults: tuple[Fault, ...] = tuple(Fault)[1:]) -> Decide:
    """Faults for Produce requests now and then, each kind in its turn.

    At least one in every 1 / chance requests, so that few requests meet all kinds too.
    """
    random = Random(seed)
    in_turn = cycle(random.sample(faults, len(faults)))
    spared = 0

    def decide(key: int) -> Fault:
        nonlocal spared
        if key != PRODUCE:
            return Fault.NONE
        if random.random() >= chance and spared < 1 / chance:
            spared += 1
            return Fault.NONE
        spared = 0
        return next(in_turn)

    return decide
