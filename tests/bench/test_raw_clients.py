"""The measuring clients against a process that answers everything, and against a listener that misbehaves."""

from __future__ import annotations

import gc
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bench.batches import batch, sample_values
from bench.frames import ProduceAnswer, produce_frame
from bench.machine import checksum, fsync_rate, loader_limit, loopback, sequential_write
from bench.raw import Loader, many_in_flight, one_at_a_time, open_loop
from bench.wire import WireError

TOPIC = "t"
FRAME = produce_frame(TOPIC, {0: batch(sample_values(100)[:1]).data}, acks=1)
ANSWER = ProduceAnswer(TOPIC)


class Answering(threading.Thread):
    """Answers Produce frames on any number of connections; `stall_seconds` once, `error` on every answer."""

    def __init__(self, *, stall_seconds: float = 0, error: int = 0, is_reordering: bool = False) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.stall_seconds, self.error, self.is_reordering = stall_seconds, error, is_reordering
        self.handlers: list[threading.Thread] = []

    def run(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            handler = threading.Thread(target=self.serve, args=(link,), daemon=True)
            self.handlers.append(handler)
            handler.start()

    def serve(self, link: socket.socket) -> None:
        with suppress(ConnectionResetError):  # a client that saw an error leaves without reading the rest
            self.answer(link)

    def answer(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as stream:
            while head := stream.read(4):
                (size,) = struct.unpack(">i", head)
                (correlation_id,) = struct.unpack_from(">i", stream.read(size), 4)
                if self.stall_seconds and correlation_id == 0:
                    stall, self.stall_seconds = self.stall_seconds, 0
                    time.sleep(stall)
                answer = bytearray(ANSWER.size)
                struct.pack_into(">ii", answer, 0, ANSWER.size - 4, correlation_id + self.is_reordering)
                struct.pack_into(">h", answer, ANSWER.first_partition + 4, self.error)
                try:
                    link.sendall(answer)
                except OSError:
                    return

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join(5)
        for handler in self.handlers:
            handler.join(5)


@pytest.fixture
def answering() -> Iterator[type[Answering]]:
    gc.collect()  # descriptors that tests before left to it: select() takes those below 1,024 only
    made: list[Answering] = []

    class Started(Answering):
        def __init__(self, **options: float) -> None:
            super().__init__(**options)  # type: ignore[arg-type]
            made.append(self)
            self.start()

    yield Started
    for one in made:
        one.stop()


def test_loader_waits_for_every_answer(answering: type[Answering]) -> None:
    loader = Loader(answering().port, [FRAME] * 5, ANSWER, depth=4)
    try:
        sent = loader.run(103)
        assert sent.requests >= 103
        assert sent.sent_bytes == sent.requests * len(FRAME)
        assert loader.run(7).requests >= 7
    finally:
        loader.close()


def test_loader_notices_errors_and_wrong_order(answering: type[Answering]) -> None:
    for broken, message in ((answering(error=6), "error code 6"), (answering(is_reordering=True), "was due")):
        loader = Loader(broken.port, [FRAME] * 4, ANSWER, depth=4)
        with pytest.raises(WireError, match=message):
            loader.run(50)
        loader.close()


def test_one_at_a_time_times_every_request(answering: type[Answering]) -> None:
    answered = one_at_a_time(answering().port, bytearray(FRAME), ANSWER, 50)
    assert answered.latencies.count == answered.requests == 50
    low, high = answered.latencies.percentiles_us(0, 100)
    assert 0 < low <= high < answered.seconds * 1e6


@pytest.mark.parametrize(("depth", "connections"), [(64, 1), (1, 16), (4, 8)])
def test_many_in_flight_answers_exactly_as_many_as_asked(
    answering: type[Answering], depth: int, connections: int
) -> None:
    answered = many_in_flight(answering().port, FRAME, ANSWER, 1000, depth=depth, connections=connections)
    assert answered.requests == answered.latencies.count == 1000


def test_open_loop_charges_a_stall_to_every_request_it_delays(answering: type[Answering]) -> None:
    calm = open_loop(answering().port, FRAME, ANSWER, rate=200, seconds=0.5)
    stalled = open_loop(answering(stall_seconds=0.25).port, FRAME, ANSWER, rate=200, seconds=0.5)
    assert calm.requests == stalled.requests == 99
    late = stalled.latencies.percentiles_us(60, 100)
    assert late[1] > 240_000
    assert late[0] > 20_000 > calm.latencies.percentiles_us(50)[0]


def test_open_loop_ends_early_when_told(answering: type[Answering]) -> None:
    until = time.monotonic() + 0.3
    answered = open_loop(
        answering().port, FRAME, ANSWER, rate=100, seconds=30, is_over=lambda: time.monotonic() > until
    )
    assert answered.seconds < 5
    assert answered.requests == answered.latencies.count > 10


def test_a_closed_connection_is_an_error(answering: type[Answering]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def close_at_once() -> None:
        link, _ = listener.accept()
        link.recv(10)
        link.close()

    thread = threading.Thread(target=close_at_once)
    thread.start()
    with pytest.raises((WireError, ConnectionError)):
        one_at_a_time(port, bytearray(FRAME), ANSWER, 1)
    thread.join()
    listener.close()


def test_machine_limits_are_measured(tmp_path: Path) -> None:
    assert loopback(8 << 20) > 0
    assert loader_limit(16_000, 4_000_000) > 0
    assert sequential_write(tmp_path, 4 << 20, is_flushed=True) > 0
    assert fsync_rate(tmp_path, 5) > 0
    assert checksum(1 << 20) > 0
    assert list(tmp_path.iterdir()) == []
