"""A flood of mutated and random frames: broker and memory stay, honest clients notice nothing."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Self

import pytest

from millstream.protocol.messages import CreatePartitionsRequest, CreateTopicsRequest, MetadataRequest
from tests.behaviour.groups.steps import find
from tests.behaviour.hostile import HostileFrames, swollen_frames
from tests.conftest import Name
from tests.processes import BrokerProcess, until
from tests.wire import (
    Closed,
    Wire,
    append,
    batch,
    create_topic,
    end_offset,
    fetch,
    produce,
    values,
)

FRAMES = int(os.environ.get("MILLSTREAM_FUZZ_FRAMES", "5000"))
GROWTH_BYTES = 100 << 20
SWOLLEN_GROWTH_BYTES = 200 << 20
SWOLLEN_WAIT_S = 1.5
"""What a swollen frame may cost: before there were limits, up to 866 MB and 4.9 s."""
CONNECTIONS = 64
PATIENCE_S = 0.2
"""How long a frame is waited for that later ones have overtaken; five times as long for any."""
MAGIC_ID = 0x5EED1E55
QUESTION = struct.pack(">ihhih", 10, 18, 0, MAGIC_ID, -1)
ANSWER_START = struct.pack(">ih", MAGIC_ID, 0)
SEEDS = (1, 2)


class Flood:
    """Sends hostile frames over many connections at once, each followed by an honest question.

    A frame is dealt with when the question is answered or the connection has ended. The few that make the
    broker wait (for the rest of a frame, or in a long fetch) are left behind by the client.
    """

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._free: list[socket.socket] = []
        self._sent_at: dict[socket.socket, float] = {}
        """The connections whose frame is not dealt with yet, and since when; the oldest first."""
        self._last_dealt_with = 0.0
        """When the latest frame was sent that was dealt with."""
        self.ended = self.answered = self.left = 0

    def send(self, frames: Iterator[bytes], count: int) -> None:
        with selectors.DefaultSelector() as selector:
            while count or self._sent_at:
                while count and len(self._sent_at) < CONNECTIONS:
                    self._begin(selector, next(frames))
                    count -= 1
                for key, _ in selector.select(PATIENCE_S / 4):
                    assert isinstance(key.fileobj, socket.socket)
                    self._look(selector, key.fileobj)
                self._leave_behind(selector)
        for connection in self._free:
            connection.close()
        self._free.clear()

    def _begin(self, selector: selectors.DefaultSelector, frame: bytes) -> None:
        connection = self._free.pop() if self._free else socket.create_connection(self._address, timeout=20)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        self._sent_at[connection] = time.monotonic()
        with suppress(OSError):
            connection.send(frame + QUESTION)

    def _look(self, selector: selectors.DefaultSelector, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if data and ANSWER_START not in data:
            return
        selector.unregister(connection)
        self._last_dealt_with = max(self._last_dealt_with, self._sent_at.pop(connection))
        if data:
            self.answered += 1
            self._free.append(connection)
        else:
            self.ended += 1
            connection.close()

    def _leave_behind(self, selector: selectors.DefaultSelector) -> None:
        now = time.monotonic()
        long_ago = max(min(now - PATIENCE_S, self._last_dealt_with), now - 5 * PATIENCE_S)
        for connection in [one for one, sent_at in self._sent_at.items() if sent_at < long_ago]:
            selector.unregister(connection)
            del self._sent_at[connection]
            connection.close()
            self.left += 1


class Watched(threading.Thread):
    """By how much a broker's memory grows at most while this goes on."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._before_bytes = broker.rss_bytes()
        self._is_over = threading.Event()
        self.growth_bytes = 0

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self.growth_bytes = max(self.growth_bytes, self._broker.rss_bytes() - self._before_bytes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


class HonestClient(threading.Thread):
    """Produces numbered records and reads each back, all the while."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.topic = topic
        self.is_over = threading.Event()
        self.written = 0
        self.slowest_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Wire(self.address) as wire:
                while not self.is_over.is_set():
                    started = time.monotonic()
                    assert append(wire, self.topic, b"%d" % self.written) == self.written
                    assert values(fetch(wire, self.topic, self.written).records) == [b"%d" % self.written]
                    self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                    self.written += 1
        except BaseException as failure:  # looked at by the test
            self.failure = failure


def test_mutated_and_random_frames(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(socket_listen_backlog_size="1000").start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "honest")
        target = create_topic(wire, "target")
        append(wire, "target", b"something to fetch")
    honest = HonestClient(broker.bootstrap, "honest")
    honest.start()
    Flood(broker.port).send(iter(HostileFrames(0, "target", target)), 500)  # everything is loaded once
    before_bytes = broker.rss_bytes()
    flood = Flood(broker.port)
    for seed in SEEDS:
        flood.send(iter(HostileFrames(seed, "target", target)), FRAMES // len(SEEDS))
    honest.is_over.set()
    honest.join(30)
    assert honest.failure is None, honest.failure
    assert honest.written > 20
    assert honest.slowest_s < 5
    assert flood.ended > FRAMES // 4  # most frames are wrong enough to end their connection
    assert flood.answered > FRAMES // 20
    assert flood.left < FRAMES // 4
    assert broker.is_running
    growth_bytes = broker.rss_bytes() - before_bytes
    assert growth_bytes < GROWTH_BYTES, f"memory grew by {growth_bytes >> 20} MB"
    with Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "honest") == honest.written
        found: list[bytes | None] = []
        while len(found) < honest.written:
            found += values(fetch(wire, "honest", len(found)).records)
        assert found == [b"%d" % number for number in range(honest.written)]
    assert "Traceback" not in broker.output, broker.output[:3000]
    assert broker.stop() == 0


def test_frames_that_ask_for_far_more_than_they_say(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "honest")
        wide = create_topic(wire, "wide", 2000)
        for key_type in (0, 1):
            find(wire, "somebody", key_type=key_type)
    honest = HonestClient(broker.bootstrap, "honest")
    honest.start()
    waited_s: dict[str, float] = {}
    grown_bytes: dict[str, int] = {}
    try:
        for name, frame in swollen_frames("wide", wide):
            honest.slowest_s = 0.0
            with Wire(broker.bootstrap, timeout_s=60) as hostile, Watched(broker) as memory:
                with suppress(Closed):
                    hostile.send_frame(frame)
                    hostile.receive_frame()
                written = honest.written
                until(lambda written=written: honest.written > written + 1 or honest.failure, 30, name)  # type: ignore[misc]
            waited_s[name], grown_bytes[name] = honest.slowest_s, memory.growth_bytes
    finally:
        honest.is_over.set()
        honest.join(30)
    assert honest.failure is None, honest.failure
    assert max(waited_s.values()) < SWOLLEN_WAIT_S, waited_s
    assert max(grown_bytes.values()) < SWOLLEN_GROWTH_BYTES, grown_bytes
    assert "Traceback" not in broker.output, broker.output[:3000]


def test_connections_that_hostile_clients_leave_behind_are_closed(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    """Half a frame, then the client goes: nothing of it stays."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        assert wire.ask(MetadataRequest(topics=[])).brokers
        sockets = sum("socket:" in name for name in broker.descriptors())
        for number in range(200):
            with closing(socket.create_connection(("127.0.0.1", broker.port), timeout=20)) as half:
                half.sendall(struct.pack(">i", 1_000_000) + bytes(number))
        until(
            lambda: sum("socket:" in name for name in broker.descriptors()) <= sockets,
            20,
            "the broker holds only the honest connection",
        )


@pytest.mark.parametrize("count", [100_001, 2**31 - 1])
def test_absurd_numbers_of_partitions_are_refused(bootstrap: str, new_name: Name, count: int) -> None:
    with Wire(bootstrap) as wire:
        absurd, topic = new_name("absurd"), new_name("modest")
        entry = CreateTopicsRequest.CreatableTopic(name=absurd, num_partitions=count, replication_factor=1)
        (refused,) = wire.ask(CreateTopicsRequest(topics=[entry], timeout_ms=5000)).topics
        assert refused.error_code != 0
        create_topic(wire, topic)
        grow = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count)
        request = CreatePartitionsRequest(topics=[grow], timeout_ms=5000, validate_only=False)
        (result,) = wire.ask(request).results
        assert result.error_code != 0
        assert append(wire, topic, b"still here") == 0


def test_a_batch_that_unfolds_without_end(broker_process: Callable[..., BrokerProcess]) -> None:
    """A few KB of zstd that become 256 MB are refused without being unfolded."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "bomb")
        append(wire, "bomb", b"x" * 70_000, codec=4)  # the path is warm
        before_bytes = broker.rss_bytes()
        bomb = batch([bytes(256 << 20)], codec=4)
        assert len(bomb) < 100_000
        answer = produce(wire, "bomb", bomb)
        assert answer.error_code == 87  # INVALID_RECORD
        assert broker.rss_bytes() - before_bytes < GROWTH_BYTES
        assert append(wire, "bomb", b"fine") == 1
