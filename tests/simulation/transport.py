"""One end of a simulated TCP connection, as asyncio's own transports behave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import SimLoop
from tests.simulation.world import Event, World

if TYPE_CHECKING:
    from tests.simulation.network import Network, SimServer

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview

DELAY_S, DELAY_RANGE_S = 50e-6, 550e-6
"""How long bytes take at least, mostly, and how much longer at most."""
RETRANSMIT_S = 0.3
MAX_READ_BYTES = 262_144
HIGH_WATER_BYTES = 65_536
FIN, RST = b"fin", b"rst"
"""In a stream of segments, by identity: the end of the bytes, and the loss of the connection."""


class Link:
    """One direction between two hosts: how long bytes take, and whether any pass."""

    def __init__(self, world: World, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.is_blocked = False
        self.slowness = 1.0
        self.distance_s = 0.0
        """What everything takes besides."""
        self._world = world
        self._waiting: list[Stream] = []

    def delay(self) -> float:
        """Mostly a fraction of a millisecond, now and then far longer."""
        random = self._world.random.random
        seconds = DELAY_S + DELAY_RANGE_S * random()
        if random() < 0.01:
            seconds += 0.05 * random()
        return seconds * self.slowness + self.distance_s

    def block(self) -> None:
        self.is_blocked = True

    def unblock(self) -> None:
        self.is_blocked = False
        waiting, self._waiting = self._waiting, []
        for stream in waiting:
            stream.resume(RETRANSMIT_S * self._world.random.random())

    def hold(self, stream: Stream) -> None:
        self._waiting.append(stream)


class Stream:
    """One direction of a connection: segments in flight, then bytes the reader has not taken yet."""

    def __init__(self, world: World, link: Link, sender: SimTransport, reader: SimTransport) -> None:
        self.sender = sender
        self.reader = reader
        self.inbox = bytearray()
        self.has_ended = False
        self._world = world
        self._link = link
        self._flight: deque[bytes] = deque()
        self._flight_bytes = 0
        self._next: Event | None = None
        self._arrives_at = 0.0
        self._window = world.random.choice((4_096, 65_536, 262_144, 1_048_576))

    def room(self) -> int:
        return self._window - self._flight_bytes - len(self.inbox)

    def send(self, segment: bytes) -> None:
        self._flight.append(segment)
        self._flight_bytes += len(segment)
        if self._next is None:
            self.resume(self._link.delay())

    def resume(self, delay: float) -> None:
        self._next = self._world.after(delay, self._arrive)

    def discard(self) -> None:
        """Lose what is in flight."""
        self._flight.clear()
        self._flight_bytes = 0
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def taken(self) -> None:
        """The reader has made room; the sender hears of it a moment later."""
        if self.sender.has_backlog():
            self._world.after(self._link.delay(), self.sender.pump)

    def _arrive(self) -> None:
        self._next = None
        if not self._flight:
            return
        if self._link.is_blocked:
            self._link.hold(self)
            return
        reader = self.reader
        if reader.is_gone:
            if not reader.network.is_up(reader.address[0]):
                self.resume(RETRANSMIT_S)
                return
            is_last = self._flight[0] is FIN or self._flight[0] is RST
            self.discard()
            if not is_last:
                self._world.after(self._link.delay(), self.sender.reset)
            return
        segment = self._flight.popleft()
        self._flight_bytes -= len(segment)
        if segment is RST:
            reader.reset()
            return
        if segment is FIN:
            self.has_ended = True
        else:
            self.inbox += segment
        if self._flight:
            self.resume(self._link.delay() if self._world.random.random() < 0.5 else 0.0)
        reader.readable()


class SimTransport(asyncio.Transport):
    """One end of a connection. `is_gone`: closed, reset or dead, so that no more bytes reach it."""

    def __init__(
        self,
        network: Network,
        loop: SimLoop,
        address: Address,
        peer_address: Address,
        *,
        server: SimServer | None = None,
    ) -> None:
        super().__init__({"peername": peer_address, "sockname": address})
        self.network = network
        self.loop = loop
        self.address = address
        self.peer_address = peer_address
        self.is_gone = False
        self.peer: SimTransport
        self._out: Stream
        self._in: Stream
        self._server = server
        self._protocol: Any = None
        self._buffer = bytearray()
        self._is_closing = False
        self._is_lost = False
        self._has_ended_writing = False
        self._has_sent_fin = False
        self._has_seen_end = False
        self._is_reading = True
        self._is_read_scheduled = False
        self._is_writing_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        loop.transports[self] = None
        if server is not None:
            server.connections[self] = None

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}>{self.peer_address[0]}:{self.peer_address[1]}"

    def attach(self, peer: SimTransport, outgoing: Stream, incoming: Stream) -> None:
        self.peer, self._out, self._in = peer, outgoing, incoming

    def start(self, factory: Callable[[], Any], waiter: asyncio.Future[Any] | None = None) -> None:
        self.loop.call_soon(self._start, factory, waiter)

    def _start(self, factory: Callable[[], Any], waiter: asyncio.Future[Any] | None) -> None:
        if waiter is not None and waiter.done():
            self.vanish(is_silent=False)
            return
        self._protocol = factory()
        self._protocol.connection_made(self)
        if waiter is not None:
            waiter.set_result((self, self._protocol))
        if self._is_lost:
            self._protocol.connection_lost(ConnectionResetError(104, "connection reset by peer"))
        else:
            self.readable()

    # The end of a connection

    def vanish(self, *, is_silent: bool) -> None:
        """The process is dead: its kernel ends the connection, unless it has lost its power too."""
        self.is_gone = self._is_lost = True
        self._buffer.clear()
        if self._server is not None:
            self._server.connections.pop(self, None)
        if is_silent:
            self._out.discard()
        else:
            self._send_last(RST if self._in.inbox else FIN)

    def reset(self) -> None:
        """The connection is lost: the protocol hears of it, and nothing else arrives."""
        if not self.is_gone:
            self.is_gone = True
            self._out.discard()
            self._in.discard()
            self._lose(ConnectionResetError(104, "connection reset by peer"))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._buffer:
                self._finish()

    def abort(self) -> None:
        if not self.is_gone:
            self.is_gone = self._is_closing = True
            self._buffer.clear()
            self._send_last(RST)
            self._lose(None)

    def _finish(self) -> None:
        """Closed, and all that was written is on its way."""
        self.is_gone = True
        self._send_last(RST if self._in.inbox else FIN)
        self._lose(None)

    def _send_last(self, segment: bytes) -> None:
        """End what is sent. A reset may follow an end, and overtakes nothing on its way."""
        if not self._has_sent_fin or segment is RST:
            self._has_sent_fin = True
            self._out.send(segment)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._buffer.clear()
            self.loop.transports.pop(self, None)
            self.loop.world.log(f"{self} ends: {error!r}")
            self.loop.call_soon(self._call_connection_lost, error)

    def _call_connection_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        if self._server is not None:
            self._server.forget(self)

    # Writing

    def write(self, data: Buffer) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._has_ended_writing:
            raise RuntimeError("cannot write after write_eof()")
        if self._is_lost or self.loop.is_dead or not len(data):
            return
        self._buffer += memoryview(data).cast("B")
        self.pump()
        if len(self._buffer) > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def has_backlog(self) -> bool:
        return bool(self._buffer)

    def pump(self) -> None:
        """Move what fits from the transport's buffer into the kernel's window."""
        if self.is_gone or self.loop.is_dead:
            return
        random = self.loop.world.random
        size = min(len(self._buffer), self._out.room())
        while size > 0:
            cut = size if size < 2 or random.random() < 0.9 else random.randrange(1, size)
            self._out.send(bytes(self._buffer[:cut]))
            del self._buffer[:cut]
            size -= cut
        if self._is_writing_paused and len(self._buffer) <= self._low:
            self._is_writing_paused = False
            self.loop.call_soon(self._resume_writing)
        if not self._buffer:
            if self._is_closing:
                self._finish()
            elif self._has_ended_writing:
                self._send_last(FIN)

    def _resume_writing(self) -> None:
        if not self._is_lost:
            self._protocol.resume_writing()

    def write_eof(self) -> None:
        self._has_ended_writing = True
        if not self._buffer and not self._is_closing:
            self._send_last(FIN)

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else (4 * low if low is not None else HIGH_WATER_BYTES)
        self._low = low if low is not None else self._high // 4
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({self._high!r}) must be >= low ({self._low!r}) must be >= 0")

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    # Reading

    def readable(self) -> None:
        has_news = self._in.inbox or (self._in.has_ended and not self._has_seen_end)
        if has_news and self.is_reading() and self._protocol and not self._is_read_scheduled:
            self._is_read_scheduled = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_read_scheduled = False
        if not self._is_reading or self._is_closing:
            return
        inbox, protocol = self._in.inbox, self._protocol
        try:
            if inbox:
                size = self._read_size(len(inbox))
                if isinstance(protocol, asyncio.BufferedProtocol):
                    size = self._read_into(protocol, inbox, size)
                else:
                    data = bytes(inbox[:size])
                    del inbox[:size]
                    protocol.data_received(data)
                self._in.taken()
            elif not self._has_seen_end:
                self._has_seen_end = True
                if not protocol.eof_received():
                    self.close()
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": f"Fatal error: protocol of {self} failed", "exception": error}
            )
            self.abort()
            return
        self.readable()

    def _read_size(self, available: int) -> int:
        random = self.loop.world.random
        if available > 1 and random.random() < 0.1:
            return random.randrange(1, available)
        return min(available, MAX_READ_BYTES)

    def _read_into(self, protocol: asyncio.BufferedProtocol, inbox: bytearray, size: int) -> int:
        buffer = memoryview(protocol.get_buffer(-1))
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        size = min(size, len(buffer))
        buffer[:size] = inbox[:size]
        del inbox[:size]
        del buffer
        protocol.buffer_updated(size)
        return size

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing and not self._is_reading:
            self._is_reading = True
            self.readable()

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    # State

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self.readable()

    def get_protocol(self) -> Any:
        return self._protocol


def join(client: SimTransport, accepted: SimTransport, there: Link, back: Link) -> None:
    """Make two ends one connection."""
    world = client.loop.world
    outgoing = Stream(world, there, client, accepted)
    incoming = Stream(world, back, accepted, client)
    client.attach(accepted, outgoing, incoming)
    accepted.attach(client, incoming, outgoing)
