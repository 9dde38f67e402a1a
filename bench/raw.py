"""The measuring clients: plain blocking sockets, prebuilt frames, no work per record.

They must cost less than the broker they measure. `bench/machine.py` runs the loader against a process that
only reads and answers, so that the table shows how far the client itself could go.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.frames import Answer, FetchFrame, next_offset
from bench.stats import Latencies
from bench.wire import CORRELATION_POSITION, Connection, WireError

RECEIVE_BYTES = 1 << 20


@dataclass(slots=True)
class Transfer:
    requests: int
    sent_bytes: int
    seconds: float


class Loader:
    """Sends prebuilt Produce frames over one connection, `depth` at most in flight.

    The frames go out in blobs of several, each blob one `send`, with correlation ids patched in; the
    answers must come in that order.
    """

    def __init__(self, port: int, frames: Sequence[bytearray], answer: Answer, *, depth: int) -> None:
        self.connection = Connection(port, timeout_seconds=60)
        self.answer = answer
        self.depth = depth
        self.group = max(1, min(depth // 2, len(frames)))
        self._blobs = [
            (bytearray(b"".join(frames[start : start + self.group])), self._id_positions(frames, start))
            for start in range(0, len(frames), self.group)
        ]
        self._received = bytearray(1 << 16)
        self._pending = 0
        self._next_id = 0
        self._next_answer = 0

    def _id_positions(self, frames: Sequence[bytearray], start: int) -> list[int]:
        positions, at = [], 0
        for frame in frames[start : start + self.group]:
            positions.append(at + CORRELATION_POSITION)
            at += len(frame)
        return positions

    def run(self, requests: int) -> Transfer:
        """Send at least `requests` frames and wait for all answers."""
        send = self.connection.socket.sendall
        sent = sent_bytes = 0
        started = time.perf_counter()
        while sent < requests:
            for blob, positions in self._blobs:
                while self._next_id - self._next_answer + len(positions) > self.depth:
                    self._receive()
                for position in positions:
                    struct.pack_into(">i", blob, position, self._next_id)
                    self._next_id += 1
                send(blob)
                sent += len(positions)
                sent_bytes += len(blob)
                if sent >= requests:
                    break
        while self._next_answer < self._next_id:
            self._receive()
        return Transfer(sent, sent_bytes, time.perf_counter() - started)

    def _receive(self) -> None:
        received = self.connection.socket.recv_into(memoryview(self._received)[self._pending :])
        if not received:
            raise WireError("the broker closed the connection")
        end, position, size = self._pending + received, 0, self.answer.size
        while end - position >= size:
            self.answer.check(self._received, position)
            (correlation_id,) = struct.unpack_from(">i", self._received, position + 4)
            if correlation_id != self._next_answer:
                raise WireError(f"answer {correlation_id} where {self._next_answer} was due")
            self._next_answer += 1
            position += size
        self._received[: end - position] = self._received[position:end]
        self._pending = end - position

    def close(self) -> None:
        self.connection.close()


@dataclass(slots=True)
class Read:
    """What a run of fetches brought."""

    fetches: int
    bytes: int
    next_offset: int
    seconds: float


class Fetcher:
    """Reads a partition with one Fetch in flight, as a consumer does, into one reused buffer."""

    def __init__(
        self, port: int, topic: str, partition: int, *, max_bytes: int, max_wait_ms: int = 1000
    ) -> None:
        self.connection = Connection(port, timeout_seconds=120)
        self._make_frame = partial(FetchFrame, topic, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        self.turn_to(partition)
        self._buffer = bytearray(max_bytes + RECEIVE_BYTES)
        self._view = memoryview(self._buffer)

    def turn_to(self, partition: int) -> None:
        self.frame = self._make_frame(partition)

    def fetch(self, offset: int) -> tuple[int, int]:
        """One Fetch from `offset`: the offset to go on from and the bytes of records received."""
        self.frame.seek(offset)
        sock, view = self.connection.socket, self._view
        sock.sendall(self.frame.data)
        received = sock.recv_into(view)
        while received < 4:
            received += self._more(received, len(view))
        (size,) = struct.unpack_from(">i", view)
        while received < size + 4:
            received += self._more(received, size + 4)
        end = self.frame.records_end(view)
        following, _ = next_offset(view, self.frame.records_position, end)
        return max(offset, following), end - self.frame.records_position

    def _more(self, received: int, limit: int) -> int:
        if limit > len(self._buffer):
            raise WireError(f"an answer of {limit} bytes does not fit the buffer of {len(self._buffer)}")
        more = self.connection.socket.recv_into(self._view[received:limit])
        if not more:
            raise WireError("the broker closed the connection")
        return more

    def read(self, start: int, end: int, *, at_least_bytes: int = 0) -> Read:
        """Read from `start` up to `end`, again and again until `at_least_bytes` were read."""
        offset, total, fetches = start, 0, 0
        started = time.perf_counter()
        while True:
            offset, got = self.fetch(offset)
            total += got
            fetches += 1
            if offset >= end:
                if total >= at_least_bytes:
                    return Read(fetches, total, offset, time.perf_counter() - started)
                offset = start

    def close(self) -> None:
        self.connection.close()


@dataclass(slots=True)
class Answered:
    requests: int
    seconds: float
    latencies: Latencies


def one_at_a_time(
    port: int, frame: bytearray, answer: Answer, requests: int, *, longest_seconds: float = 60
) -> Answered:
    """Depth 1: the next request goes out when the answer is in; fewer requests if the time runs out."""
    latencies = Latencies()
    clock = time.perf_counter_ns
    with Connection(port) as connection:
        send, receive, size = connection.socket.send, connection.socket.recv, answer.size
        started = time.perf_counter()
        end = clock() + int(longest_seconds * 1e9)
        for correlation_id in range(requests):
            struct.pack_into(">i", frame, CORRELATION_POSITION, correlation_id)
            before = clock()
            send(frame)
            data = receive(4096)
            while len(data) < size:
                data += connection.receive_exactly(size - len(data))
            after = clock()
            latencies.add(after - before)
            answer.check(data, 0)
            if after > end:
                break
        return Answered(latencies.count, time.perf_counter() - started, latencies)


def many_in_flight(
    port: int,
    frame: bytearray,
    answer: Answer,
    requests: int,
    *,
    depth: int,
    connections: int = 1,
    longest_seconds: float = 60,
) -> Answered:
    """`depth` in flight on each connection: as many new requests go out as answers came in.

    A request's clock starts when its frame is handed to the kernel and stops when its answer was read.
    No new ones go out when the time has run out.
    """
    latencies = Latencies()
    clock = time.perf_counter_ns
    size = answer.size
    blob = bytes(frame) * depth
    frame_size = len(frame)
    links = [Connection(port) for _ in range(connections)]
    by_descriptor = {link.socket.fileno(): link.socket for link in links}
    in_flight: dict[int, deque[tuple[int, int]]] = {fd: deque() for fd in by_descriptor}
    partial = dict.fromkeys(by_descriptor, b"")
    poll = select.epoll()
    try:
        for fd in by_descriptor:
            poll.register(fd, select.EPOLLIN)
        to_send = requests
        started = time.perf_counter()
        end = clock() + int(longest_seconds * 1e9)
        for fd, sock in by_descriptor.items():
            in_flight[fd].append((clock(), depth))
            sock.sendall(blob)
            to_send -= depth
        waiting = depth * connections
        while waiting:
            ready = poll.poll(30) if connections > 1 else [(next(iter(by_descriptor)), 0)]
            if not ready:
                raise WireError("no answer within 30 s")
            for fd, _ in ready:
                sock = by_descriptor[fd]
                data = sock.recv(1 << 16)
                if not data:
                    raise WireError("the broker closed the connection")
                now = clock()
                data = partial[fd] + data
                answers = len(data) // size
                for index in range(answers):
                    answer.check(data, index * size)
                partial[fd] = data[answers * size :]
                waiting -= answers
                left, queue = answers, in_flight[fd]
                while left:
                    sent_at, count = queue[0]
                    taken = min(left, count)
                    latencies.add(now - sent_at, taken)
                    left -= taken
                    if taken == count:
                        queue.popleft()
                    else:
                        queue[0] = (sent_at, count - taken)
                more = min(answers, to_send)
                if more > 0 and now < end:
                    queue.append((clock(), more))
                    sock.sendall(blob[: more * frame_size])
                    to_send -= more
                    waiting += more
        return Answered(latencies.count, time.perf_counter() - started, latencies)
    finally:
        poll.close()
        for link in links:
            link.close()


def open_loop(
    port: int,
    frame: bytearray,
    answer: Answer,
    *,
    rate: float,
    seconds: float,
    is_over: Callable[[], bool] | None = None,
) -> Answered:
    """Requests at a fixed rate whatever the broker does; a request's clock starts when it was due.

    Ends after `seconds`, or earlier when `is_over()` says so (asked ten times a second).
    """
    latencies = Latencies()
    clock = time.perf_counter_ns
    size = answer.size
    gap = int(1e9 / rate)
    with Connection(port) as connection:
        sock = connection.socket
        sock.setblocking(False)
        due: deque[int] = deque()
        unsent = bytearray()
        data = b""
        started = now = clock()
        next_due, end = started + gap, started + int(seconds * 1e9)
        check_at = started
        while next_due < end or due:
            if is_over is not None and now > check_at:
                check_at = now + 100_000_000
                if is_over():
                    end = min(end, now)
                    continue
            while next_due <= now and next_due < end:
                due.append(next_due)
                unsent += frame
                next_due += gap
            if unsent:
                try:
                    del unsent[: sock.send(unsent)]
                except BlockingIOError:
                    pass
            wait_seconds = max(0, next_due - clock()) / 1e9 if next_due < end else 30.0
            readable, _, _ = select.select(
                [sock], [], [], min(wait_seconds, 0.001) if unsent else wait_seconds
            )
            now = clock()
            if not readable:
                if now > end + 30_000_000_000:
                    raise WireError("answers are missing 30 s after the last request")
                continue
            part = sock.recv(1 << 16)
            if not part:
                raise WireError("the broker closed the connection")
            data += part
            answers = len(data) // size
            for index in range(answers):
                answer.check(data, index * size)
                latencies.add(now - due.popleft())
            data = data[answers * size :]
        return Answered(latencies.count, (clock() - started) / 1e9, latencies)
