"""A listening address: admits connections within limits, watches over them, stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.clock import Clock
from millstream.errors import ProtocolError
from millstream.metrics import Counter as CounterMetric
from millstream.net.buffer_queue import STALLED_SECONDS, BufferQueue
from millstream.net.connection import Connection
from millstream.net.occupancy import Full, Occupancy, no_limit
from millstream.net.silence import Silence
from millstream.net.unsent import Unsent

log = logging.getLogger(__name__)

Service = Callable[[Connection, memoryview], None]
"""Takes a request's frame (without its size) and answers or reserves a place on the connection."""

SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the connections of one listener may take."""

    max_request_bytes: int = 104_857_600
    max_connections: Callable[[], int] = no_limit
    """How many this listener alone may hold, as it is set now."""
    max_connections_key: str = "max.connections of the listener"
    """The key that sets it, for who reads the log."""
    is_reserved: bool = False
    """Whether max.connections, over all the broker's listeners, does not hold for this one."""
    max_idle_seconds: float = 600.0
    max_buffered_bytes: int = 1 << 30
    backlog: int = 511
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    """The system's buffers of a connection; -1 leaves them to the system."""


async def close_servers(servers: Sequence[asyncio.Server]) -> None:
    """Close servers, after who has been accepted by now was given a connection.

    asyncio makes it in a task, which would fail once its server is closed, and lose the socket.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for each in server.sockets:
            try:
                loop.remove_reader(each.fileno())
            except NotImplementedError:  # a loop that accepts in another way
                break
    await asyncio.sleep(0)
    for server in servers:
        server.close()


class Listener:
    """Accepts connections on one address and hands their frames to a service."""

    def __init__(
        self,
        service: Service,
        clock: Clock,
        limits: Limits,
        occupancy: Occupancy | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        """`occupancy` and `unsent` are what it shares with the broker's other listeners."""
        self.service = service
        self.limits = limits
        self.max_request_bytes = limits.max_request_bytes
        self.connections: dict[Connection, None] = {}
        """As a set that keeps its order, so that a simulation repeats itself."""
        self.buffered_bytes = 0
        self.unsent = Unsent(clock) if unsent is None else unsent
        self.unsent.listeners.append(self)
        self.protocol_errors = CounterMetric()
        self.refused = CounterMetric()
        self._clock = clock
        self._occupancy = Occupancy() if occupancy is None else occupancy
        self._idle_since: dict[Connection, float] = {}
        self._silence_on_peers = Silence(clock)
        self._silence_on_limits = Silence(clock)
        self.buffer_queue = BufferQueue(self.has_buffer_room)
        self._awaited_since = 0.0
        """Since when some have waited for room; the last sweep, if none do."""
        self._servers: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self.port = 0
        self.is_open = False

    async def start(self, host: str, port: int) -> None:
        """Listen on every address of `host`; port 0 takes a free one, the same on all of them.

        Connections are taken from now on, their requests once the listener is opened.
        """
        loop = asyncio.get_running_loop()
        # Clients resolve localhost to either family: be there on both, where the machine has both.
        hosts: list[str | None] = ["127.0.0.1", "::1"] if host == "localhost" else [host or None]
        self.port = port
        for index, address in enumerate(hosts):
            try:
                server = await loop.create_server(
                    lambda: Connection(self), address, self.port, backlog=self.limits.backlog
                )
            except OSError:
                if index == 0:
                    raise
                continue
            self._servers.append(server)
            self.port = server.sockets[0].getsockname()[1]
        self._sweep_timer = loop.call_later(SWEEP_SECONDS, self._sweep)

    def open(self) -> None:
        """Take requests."""
        self.is_open = True
        for connection in list(self.connections):
            connection.read_on()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Take no more connections, let requests under way be answered, then close."""
        self._is_stopping = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        await close_servers(self._servers)
        deadline = self._clock.monotonic() + grace_seconds
        while self._clock.monotonic() < deadline:
            for connection in [each for each in self.connections if each.is_quiet]:
                connection.close()
            if not self.connections:
                return
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    # The connections' calls

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection is within the limits; it is counted from now on if so.

        Of each limit that keeps some out is said once a minute that it does.
        """
        if self._is_stopping:
            self.refused.value += 1
            return False
        full = self._enter(connection)
        if full is not None:
            self.refused.value += 1
            if self._silence_on_limits.is_over(full.limit):
                log.warning("refusing the connection of %s: %s", connection.peer, full)
            return False
        self.connections[connection] = None
        self._size_buffers(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._idle_since.pop(connection, None)
        self.buffer_queue.leave(connection)
        self._occupancy.leave(connection.peer)

    def refuse(self, connection: Connection, error: ProtocolError) -> None:
        """Count bytes that are no request; said of an address once a minute, or a flood fills the log."""
        self.protocol_errors.value += 1
        if self._silence_on_peers.is_over(connection.peer):
            log.warning("closing the connection of %s: %s", connection.peer, error)

    def has_buffer_room(self, growth: int) -> bool:
        """Whether a connection may grow its buffer by so many bytes."""
        return self.buffered_bytes + growth <= self.limits.max_buffered_bytes

    # Inside

    def _enter(self, connection: Connection) -> Full | None:
        limits, held = self.limits, len(self.connections)
        if held >= (allowed := limits.max_connections()):
            return Full(limits.max_connections_key, allowed, held)
        return self._occupancy.enter(connection.peer, is_reserved=limits.is_reserved)

    def _size_buffers(self, connection: Connection) -> None:
        for option, size in (
            (socket.SO_SNDBUF, self.limits.send_buffer_bytes),
            (socket.SO_RCVBUF, self.limits.receive_buffer_bytes),
        ):
            if size >= 0:
                connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, size)

    def _sweep(self) -> None:
        """Close what has been idle for too long, and take large buffers back from what is idle now.

        While others wait for room: also what is empty in the buffers of those that are not idle, and what
        those hold who leave off in the midst of a request.
        """
        self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        self.unsent.relieve(self)
        now = self._clock.monotonic()
        idle_since = self._idle_since
        is_awaited = self.buffer_queue.is_awaited
        if not is_awaited:
            self._awaited_since = now
        for connection in list(self.connections):
            if connection.has_moved():
                idle_since[connection] = now
                if is_awaited:
                    connection.shrink()
                continue
            connection.shrink()
            since = idle_since.setdefault(connection, now)
            if now - since >= self.limits.max_idle_seconds:
                connection.transport.abort()
            elif connection.leaves_off and now - max(since, self._awaited_since) >= STALLED_SECONDS:
                connection.stalled()
        self.buffer_queue.proceed(now, idle_since)
