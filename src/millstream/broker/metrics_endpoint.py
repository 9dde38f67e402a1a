"""A small HTTP endpoint: /metrics for Prometheus, nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from millstream.clock import Clock
from millstream.config.keys import ConfigError
from millstream.net.listener import close_servers
from millstream.net.silence import Silence

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 8192
IDLE_SECONDS = 10.0

MAX_CONNECTIONS = 16
"""How many are served at a time: others would take the descriptors of files and of clients."""


class _Scrape(asyncio.Protocol):
    """One request, one answer, then the connection ends."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._timer: asyncio.TimerHandle | None = None
        self._received = b""
        self._is_read = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._endpoint.admit(self):
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._transport.abort)
        else:
            self._is_read = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint.forget(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_read:  # what follows the one request is nobody's
            return
        self._received += data
        self._is_read = b"\r\n\r\n" in self._received or len(self._received) > MAX_REQUEST_BYTES
        if b"\r\n\r\n" in self._received:
            self._answer(self._received.partition(b"\r\n")[0])
        elif len(self._received) > MAX_REQUEST_BYTES:
            self._send(b"431 Request Header Fields Too Large", b"too much\n")

    def _answer(self, request_line: bytes) -> None:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            self._send(b"405 Method Not Allowed", b"only GET is served\n")
        elif path != b"/metrics":
            self._send(b"404 Not Found", b"metrics are at /metrics\n")
        else:
            # In a thread: with thousands of topics it takes a tenth of a second.
            loop = asyncio.get_running_loop()
            self._scrape = loop.run_in_executor(None, self._endpoint.exposition)
            self._scrape.add_done_callback(lambda done: self._send_scrape(done, method == b"HEAD"))

    def _send_scrape(self, done: asyncio.Future[bytes], is_head: bool) -> None:
        if done.cancelled() or self._transport.is_closing():
            return
        if done.exception() is not None:
            log.error("reading the metrics failed", exc_info=done.exception())
            self._send(b"500 Internal Server Error", b"the broker's log says more\n")
        else:
            self._send(b"200 OK", done.result(), is_head=is_head)

    def _send(self, status: bytes, body: bytes, *, is_head: bool = False) -> None:
        self._transport.write(
            b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
        )
        if not is_head:
            self._transport.write(body)
        self._transport.close()


class MetricsEndpoint:
    """Serves what `exposition` gives."""

    def __init__(self, exposition: Callable[[], bytes], clock: Clock) -> None:
        self.exposition = exposition
        self._silence = Silence(clock)
        self._scrapes: set[_Scrape] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Scrape(self), host.strip("[]") or None, int(port)
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(f"metrics.listener={address}: cannot listen there: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            await close_servers([self._server])

    # The connections' calls

    def admit(self, scrape: _Scrape) -> bool:
        """Whether there is a place for one more; it has it if so."""
        if len(self._scrapes) < MAX_CONNECTIONS:
            self._scrapes.add(scrape)
            return True
        if self._silence.is_over("connections"):
            log.warning("refusing a connection to metrics.listener: %d are there", len(self._scrapes))
        return False

    def forget(self, scrape: _Scrape) -> None:
        """The connection is gone."""
        self._scrapes.discard(scrape)
