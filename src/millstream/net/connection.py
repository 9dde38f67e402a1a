"""One client's connection as the broker sees it: frames in, answers out, in order.

Bytes arrive in one buffer that is used again for every frame. A frame is handed to the service as a
view of that buffer, valid only until the service returns: what must live longer is copied. Requests
start in the order they came. A request that cannot answer at once reserves its place; answers leave
in the order of their requests whatever finishes first. Two things hold back the next request: one
that asked to run alone (all but Produce, as in Kafka, and what brokers ask for many transactions), and
answers that the client does not read. So what a connection holds is bounded: its buffer, its reserved
places, and one large answer. What all of them hold together is counted (see Unsent).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from millstream.errors import ProtocolError

if TYPE_CHECKING:
    from millstream.net.listener import Listener

Buffer = bytes | bytearray | memoryview

IDLE_BUFFER_BYTES = 16 * 1024
BUSY_BUFFER_BYTES = 256 * 1024
SMALL_WRITE_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
MAX_RESERVED = 1000
MAX_RESERVED_BYTES = 16 * 1024 * 1024
"""Requests, and their bytes, that may wait for their answers before the next one is started."""

_size_of = Struct(">i").unpack_from

log = logging.getLogger(__name__)


class Place:
    """The place of one request's answer among those of its connection."""

    __slots__ = ("_connection", "awaited", "chunks", "is_alone", "is_filled", "request_bytes")

    def __init__(self, connection: Connection, is_alone: bool) -> None:
        self._connection = connection
        self.is_alone = is_alone
        self.is_filled = False
        self.request_bytes = 0
        self.chunks: list[Buffer] | None = None
        self.awaited: asyncio.Future[Any] | None = None

    def fill(self, chunks: list[Buffer] | None) -> None:
        """Give the answer, None where the request wants none. The rest happens by itself."""
        self.is_filled = True
        self.chunks = chunks
        self.awaited = None
        self._connection._place_filled(self)


class Connection(asyncio.BufferedProtocol):
    """The server's end of a connection. Made by a Listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._service = listener.service
        self._unsent = listener.unsent
        self._max_frame_bytes = listener.max_request_bytes
        self._buffer = bytearray(IDLE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._read_to = IDLE_BUFFER_BYTES
        self._places: deque[Place] = deque()
        self._frame_bytes = 0
        self._reserved_bytes = 0
        self._placed_bytes = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._is_busy = False
        self._is_dispatching = False
        self._is_alone = False
        self._is_write_paused = False
        self._is_read_paused = False
        self._lacks_room = False
        self._may_exceed = False
        self._is_closing = False
        self.counted_bytes = 0
        """What of `held_bytes` is counted among the broker's."""
        self.transport: asyncio.Transport
        self.peer = ""
        self.is_local = False
        """Whether the other end is on this machine."""
        self.fetch_turns: object = None
        """Which partitions the fetches of this connection were served, once an answer was cut short."""
        self._is_active = True
        self._unsent_seen = 0

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=0)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        own = transport.get_extra_info("sockname")
        self.is_local = bool(own) and self.peer == str(own[0])
        if not self._listener.admit(self):
            self._is_closing = True
            self.transport.abort()
        else:
            self._is_alone = not self._listener.is_open

    def read_on(self) -> None:
        """The listener has opened: take requests."""
        self._is_alone = False
        self._proceed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end : self._read_to]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._is_active = True
        self._is_busy = self._end == len(self._buffer)
        if self._is_held():
            self._pause_reading()
            return
        self._dispatch()

    def eof_received(self) -> bool:
        """A client that shuts its sending half still gets the answers it is owed."""
        if self._places:
            self._is_closing = True
            return True
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.count_unsent()
        self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._unsent.bytes -= self.counted_bytes
        self.counted_bytes = 0
        self._listener.forget(self)
        for place in self._places:
            if place.awaited is not None:
                place.awaited.cancel()
        self._places.clear()
        self._outgoing.clear()
        self._listener.buffered_bytes -= len(self._buffer) - IDLE_BUFFER_BYTES
        self._view = memoryview(b"")
        self._buffer = bytearray()

    # The service's calls

    def answer(self, chunks: list[Buffer]) -> None:
        """Answer the request being dispatched, at once."""
        if self._places:
            place = Place(self, is_alone=False)
            place.is_filled = True
            place.chunks = chunks
            self._placed_bytes += sum(map(len, chunks))
            self._places.append(place)
            self.count_unsent()
            return
        self._outgoing += chunks
        self._outgoing_bytes += sum(map(len, chunks))
        if self._outgoing_bytes > SMALL_WRITE_BYTES:
            self._flush()

    def reserve(self, is_alone: bool) -> Place:
        """Keep the place of the request being dispatched, to be filled later."""
        place = Place(self, is_alone)
        place.request_bytes = self._frame_bytes
        self._reserved_bytes += self._frame_bytes
        self._places.append(place)
        if is_alone:
            self._is_alone = True
        return place

    def close(self) -> None:
        """Close once what was answered has left."""
        self._is_closing = True
        if self.transport is not None and not self.transport.is_closing():
            self._flush()
            self.transport.close()

    def keep_bytes(self, count: int) -> None:
        """Count bytes of a frame that the service keeps, or no longer keeps, among those in buffers."""
        self._listener.buffered_bytes += count

    def refuse(self, error: ProtocolError) -> None:
        """Close because of a request that cannot be answered."""
        self._listener.refuse(self, error)
        self.close()

    @property
    def is_quiet(self) -> bool:
        """No request is under way and no answer waits to be read; half a request does not count."""
        return not self._places and not self._is_write_paused

    @property
    def is_read_slowly(self) -> bool:
        """Whether answers wait for the client to read those before them."""
        return self._is_write_paused

    @property
    def held_bytes(self) -> int:
        """Bytes of answers that are ready and that the system has not taken yet. In any thread."""
        return self.transport.get_write_buffer_size() + self._outgoing_bytes + self._placed_bytes

    @property
    def unsent_room_bytes(self) -> int:
        """How much more may wait for clients, over all connections that share the limit."""
        return self._unsent.room_bytes

    @property
    def taken_bytes(self) -> int | None:
        """How much of what waited at the listener's last look has been taken; None if nothing did, or does.

        Other answers may have come since, so it may be less than nothing.
        """
        unsent = self.transport.get_write_buffer_size()
        return self._unsent_seen - unsent if unsent and self._unsent_seen else None

    def count_unsent(self) -> None:
        """Have what is held now counted among the broker's unsent bytes. After every answer: it is quick."""
        held = self.transport.get_write_buffer_size() + self._outgoing_bytes + self._placed_bytes
        if held != self.counted_bytes:
            self._unsent.bytes += held - self.counted_bytes
            self.counted_bytes = held

    def give_up(self) -> None:
        """End the connection at once, with what its client has not read."""
        self._listener.refuse(self, ProtocolError("it does not read its answers, and all the room is taken"))
        self._is_closing = True
        self._unsent.bytes -= self.counted_bytes
        self.counted_bytes = 0
        self.transport.abort()

    def has_moved(self) -> bool:
        """Whether, since the last call, bytes came, bytes left, or the broker kept the client waiting: for an
        answer, or for room.

        Half a frame, or an answer that nobody reads, is not movement.
        """
        unsent = self.transport.get_write_buffer_size()
        waits = self._lacks_room or any(not place.is_filled for place in self._places)
        moved = self._is_active or waits or unsent != self._unsent_seen
        self._unsent_seen = unsent
        self._is_active = False
        return moved

    def shrink(self) -> None:
        """Give a large buffer back, if nothing is in it."""
        if self._start == self._end and len(self._buffer) > IDLE_BUFFER_BYTES:
            self._replace_buffer(IDLE_BUFFER_BYTES)

    @property
    def leaves_off(self) -> bool:
        """Whether a large buffer holds half a request, whose rest only the client holds back."""
        return self._start != self._end and len(self._buffer) > IDLE_BUFFER_BYTES and not self._is_read_paused

    def stalled(self) -> None:
        """Close, since the client keeps others waiting for the room of a request that it does not finish."""
        self.refuse(ProtocolError("the rest of its request does not come, and others wait for room"))
        self.transport.abort()

    def buffer_room_came(self, *, may_exceed: bool) -> None:
        """Read on after waiting for other connections to give their buffers back.

        Whose turn it is may finish its frame whatever it takes.
        """
        if self._is_closing:
            self._listener.buffer_queue.leave(self)
            return
        self._lacks_room = False
        self._may_exceed = may_exceed
        self._is_active = True  # while it waited, its silence was not its client's
        self._make_room()
        self._proceed()

    # Inside

    def _is_held(self) -> bool:
        return (
            self._is_alone
            or self._is_write_paused
            or len(self._places) >= MAX_RESERVED
            or self._placed_bytes > HIGH_WATER_BYTES
            or self._reserved_bytes > MAX_RESERVED_BYTES
        )

    def _dispatch(self) -> None:
        """Hand on every whole frame that is here, then send what has been answered meanwhile."""
        self._is_dispatching = True
        try:
            while not self._is_held() and not self._is_closing:
                start = self._start
                available = self._end - start
                if available < 4:
                    break
                size = _size_of(self._buffer, start)[0]
                if size < 8 or size > self._max_frame_bytes:
                    raise ProtocolError(f"a request of {size} bytes (limit {self._max_frame_bytes})")
                if available < size + 4:
                    break
                self._start = start + size + 4
                self._frame_bytes = size
                self._service(self, self._view[start + 4 : start + 4 + size])
        except ProtocolError as error:
            self.refuse(error)
            return
        except Exception:
            log.exception("closing the connection of %s", self.peer)
            self._is_closing = True
            self.transport.abort()
            return
        finally:
            self._is_dispatching = False
        if self._outgoing:
            self._flush()
        self._make_room()

    def _place_filled(self, place: Place) -> None:
        if self._is_closing and self.transport.is_closing():
            return
        self._reserved_bytes -= place.request_bytes
        if place.chunks is not None:
            self._placed_bytes += sum(map(len, place.chunks))
        places = self._places
        while places and places[0].is_filled:
            chunks = places.popleft().chunks
            if chunks is not None:
                size = sum(map(len, chunks))
                self._placed_bytes -= size
                self._outgoing_bytes += size
                self._outgoing += chunks
        if place.is_alone:
            self._is_alone = False
        if self._placed_bytes:
            self.count_unsent()
        if not self._is_dispatching:
            self._flush()
            self._proceed()

    def _proceed(self) -> None:
        """Go on with the frames that were held back, if nothing holds them any more."""
        if self._is_closing:
            if not self._places and not self.transport.is_closing():
                self.transport.close()
            return
        if self._is_dispatching or self._is_held():
            return
        if self._start != self._end:
            self._dispatch()
        if self._is_read_paused and not self._lacks_room and not self._is_held():
            self._is_read_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def _flush(self) -> None:
        outgoing = self._outgoing
        if not outgoing:
            return
        size = self._outgoing_bytes
        self._outgoing = []
        self._outgoing_bytes = 0
        if len(outgoing) == 1:
            self.transport.write(outgoing[0])
        elif size <= SMALL_WRITE_BYTES:
            self.transport.write(b"".join(outgoing))
        else:
            self.transport.writelines(outgoing)
        self.count_unsent()

    def _make_room(self) -> None:
        """Leave room to read on: what is left moves to the front, the buffer grows with its frame."""
        if self._may_exceed and self._start:
            self._frame_finished()
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            self._read_to = len(self._buffer)
            if self._is_busy and self._read_to < BUSY_BUFFER_BYTES:
                # More came than there was room for: fewer, larger reads cost less.
                size = min(4 * self._read_to, BUSY_BUFFER_BYTES)
                if self._listener.has_buffer_room(size - self._read_to):
                    self._replace_buffer(size)
            return
        left = end - start
        if self._is_held():
            self._read_to = len(self._buffer)
            if end == self._read_to:
                self._pause_reading()
            return
        needed = 4 + cast("int", _size_of(self._buffer, start)[0]) if left >= 4 else 4
        if start + needed > len(self._buffer):
            if needed > len(self._buffer):
                # Grow with what has really arrived, so that a lie about the size costs little.
                size = min(needed, max(2 * len(self._buffer), 4 * left))
                if left * 2 >= len(self._buffer) or start:
                    growth = size - len(self._buffer)
                    if not (self._may_exceed or self._listener.has_buffer_room(growth)):
                        self._wait_for_room(growth)
                        return
                    self._replace_buffer(size)
                    if self._lacks_room:  # an answer went out meanwhile, and there is room again
                        self._lacks_room = False
                        self._listener.buffer_queue.leave(self)
            else:
                self._move_to_front()
        # A frame larger than the busy buffer is read to its end and not beyond, so that the next
        # one starts at the front and nothing has to be moved.
        in_buffer = min(len(self._buffer), self._start + needed)
        self._read_to = in_buffer if needed > BUSY_BUFFER_BYTES else len(self._buffer)

    def _wait_for_room(self, growth: int) -> None:
        """What waits is at the front: so `_start` says, once it may exceed, that the frame is finished."""
        if self._start:
            self._move_to_front()
        self._pause_reading()
        self._lacks_room = True
        self._listener.buffer_queue.add(self, growth)

    def _move_to_front(self) -> None:
        left = self._end - self._start
        self._view[:left] = self._buffer[self._start : self._end]
        self._start, self._end = 0, left

    def _frame_finished(self) -> None:
        """The frame is whole that went beyond the limit: what it took is given back, and others go on."""
        self._may_exceed = False
        if self._end - self._start < IDLE_BUFFER_BYTES < len(self._buffer):
            self._replace_buffer(IDLE_BUFFER_BYTES)
        self._listener.buffer_queue.leave(self)

    def _replace_buffer(self, size: int) -> None:
        left = self._end - self._start
        buffer = bytearray(size)
        buffer[:left] = self._view[self._start : self._end]
        self._listener.buffered_bytes += size - len(self._buffer)
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start, self._end = 0, left
        self._read_to = size
