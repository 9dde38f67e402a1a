"""Limits on connections: how many, how large a request, how long idle; and very many held at once."""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from millstream.protocol.messages import ApiVersionsRequest, MetadataRequest
from tests.processes import BrokerProcess, free_port, until
from tests.wire import Wire, append, batch, create_topic, end_offset, produce_request, produced

IDLE = int(os.environ.get("MILLSTREAM_IDLE_CONNECTIONS", "1000"))
BUSY = int(os.environ.get("MILLSTREAM_BUSY_CONNECTIONS", "100"))


def test_connections_beyond_the_limit_are_closed(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(max_connections="5").start()

    def admitted() -> Wire | None:
        wire = Wire(broker.bootstrap)
        try:
            wire.ask(ApiVersionsRequest(), 0)
        except ConnectionError:
            wire.close()
            return None
        return wire

    with ExitStack() as stack:
        wires = []
        for _ in range(5):
            wire = until(admitted, 30, "a connection within the limit")
            wires.append(stack.enter_context(wire))
        assert admitted() is None
        assert wires[0].ask(MetadataRequest(topics=[])).brokers  # those inside are not hurt
        wires[1].close()
        stack.enter_context(until(admitted, 30, "the place that became free"))


class FewFiles(BrokerProcess):
    """A broker that may not open many files."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *super().command()]


def test_connections_leave_a_broker_files_to_write_to(tmp_path: Path) -> None:
    with FewFiles(tmp_path / "data") as broker, Wire(broker.bootstrap) as good, ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=10))
        for number in range(60):  # each has files of its own
            create_topic(good, f"topic-{number}")
            append(good, f"topic-{number}", b"written")
        assert end_offset(good, "topic-0") == 1
        with Wire(broker.bootstrap) as late, pytest.raises(ConnectionError):
            late.ask(ApiVersionsRequest(), 0)
        assert broker.output.count("raise it with ulimit -n") == 1
        stack.close()

        def is_served() -> bool:
            with Wire(broker.bootstrap) as later, suppress(ConnectionError):
                return bool(later.ask(MetadataRequest(topics=[])).brokers)
            return False

        until(is_served, 30, "there is a place again")


def test_connections_for_metrics_leave_a_broker_files_to_write_to(tmp_path: Path) -> None:
    port = free_port()
    options = {"metrics.listener": f"127.0.0.1:{port}"}
    with FewFiles(tmp_path / "data", options=options) as broker, Wire(broker.bootstrap) as good:

        def connected() -> socket.socket | None:
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port), timeout=10)
            return None

        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(until(connected, 30, "the metrics are served"))
            create_topic(good, "topic")
            append(good, "topic", b"written")
            assert end_offset(good, "topic") == 1
            assert broker.output.count("refusing a connection to metrics.listener") == 1


def test_connections_of_one_address_are_limited_too(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(max_connections_per_ip="3").start()
    with ExitStack() as stack:
        refused = 0
        for _ in range(8):
            wire = stack.enter_context(Wire(broker.bootstrap))
            try:
                wire.ask(ApiVersionsRequest(), 0)
            except ConnectionError:
                refused += 1
        assert refused >= 5


@pytest.mark.parametrize("announced", [100_001, 2**31 - 1, 0, -1, -(2**31)])
def test_a_request_of_a_forbidden_size_ends_the_connection(
    broker_process: Callable[..., BrokerProcess], announced: int
) -> None:
    broker = broker_process(socket_request_max_bytes="100000").start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "limit")
        assert append(wire, "limit", bytes(90_000)) == 0
        with Wire(broker.bootstrap) as bad:
            bad.socket.sendall(struct.pack(">i", announced) + bytes(30))
            assert bad.is_closed_by_broker()
        assert append(wire, "limit", b"unharmed") == 1


def test_idle_connections_are_closed_and_busy_ones_are_not(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process(connections_max_idle_ms="2000").start()
    with Wire(broker.bootstrap) as idle, Wire(broker.bootstrap) as half, Wire(broker.bootstrap) as busy:
        idle.ask(ApiVersionsRequest(), 0)
        half.socket.sendall(struct.pack(">i", 100) + b"some bytes, then nothing")
        started = time.monotonic()
        with selectors.DefaultSelector() as selector:
            waiting = {idle.socket, half.socket}
            for each in waiting:
                selector.register(each, selectors.EVENT_READ)
            while waiting:
                assert time.monotonic() - started < 15, "idle connections stay"
                busy.ask(ApiVersionsRequest(), 0)
                for key, _ in selector.select(0.2):
                    assert isinstance(key.fileobj, socket.socket)
                    assert key.fileobj.recv(100) == b""
                    selector.unregister(key.fileobj)
                    waiting.discard(key.fileobj)
        assert time.monotonic() - started >= 1.9
        assert busy.ask(ApiVersionsRequest(), 0).error_code == 0


def test_thousands_of_idle_and_hundreds_of_busy_connections(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE + BUSY + 200
    assert hard == resource.RLIM_INFINITY or hard >= needed, (
        f"the limit of open files must be {needed} or more"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    broker = broker_process(socket_listen_backlog_size="1000").start()
    with ExitStack() as stack:
        first = stack.enter_context(Wire(broker.bootstrap))
        create_topic(first, "crowd", partitions=10)
        before_bytes = broker.rss_bytes()
        idle = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(IDLE)]
        for wire in idle:
            wire.send(ApiVersionsRequest(), 0)
        for wire in idle:
            assert wire.receive()[1].error_code == 0
        per_idle = (broker.rss_bytes() - before_bytes) / IDLE
        assert per_idle < 40_000, f"an idle connection takes {per_idle:.0f} bytes"
        busy = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(BUSY)]
        rounds = 10
        for number in range(rounds):
            for place, wire in enumerate(busy):
                request = produce_request("crowd", batch([b"%d" % number]), partition=place % 10)
                wire.send(request, 9)
            for wire in busy:
                assert produced(wire.receive()[1]).error_code == 0
        total = sum(end_offset(first, "crowd", partition=number) for number in range(10))
        assert total == rounds * BUSY
        for wire in (idle[0], idle[IDLE // 2], idle[-1]):
            assert wire.ask(MetadataRequest(topics=[])).brokers
        late = stack.enter_context(Wire(broker.bootstrap))
        assert late.ask(ApiVersionsRequest(), 0).error_code == 0
    assert broker.stop() == 0


def test_a_port_in_use_is_said_plainly(broker_process: Callable[..., BrokerProcess]) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = broker_process()
        broker.port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match="in use by another program"):
            broker.start()
