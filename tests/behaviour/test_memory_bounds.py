"""Back-pressure: clients that do not read, or announce more than they send, cost the broker little."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from urllib.request import urlopen

from millstream.errors import error_for
from millstream.protocol.messages import ApiVersionsRequest, DescribeConfigsRequest, MetadataRequest
from millstream.protocol.record import Record
from millstream.protocol.schema import Request
from tests.behaviour.test_metrics_endpoint import listens
from tests.processes import BrokerProcess, free_port, until
from tests.wire import (
    Closed,
    Wire,
    append,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetch_partition,
    fetch_request,
    produce,
    produce_request,
)

MB = 1 << 20


def scraped(port: int, name: str) -> float:
    """A number among the broker's metrics."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")))


def send_until_held(wire: Wire, frame: bytes, most: int) -> int:
    """Send the same frame over and over until the broker takes no more for a while; how many went out."""
    wire.socket.settimeout(1.0)
    for number in range(most):
        try:
            wire.socket.sendall(frame)
        except TimeoutError:
            return number
    return most


def test_a_reader_that_does_not_read(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as good, Wire(broker.bootstrap) as deaf:
        create_topic(good, "big", max_message_bytes=str(4 * MB))
        for _ in range(8):
            append(good, "big", bytes(MB))
        fetch(good, "big", 0)
        before_bytes = broker.rss_bytes()
        frame = deaf.frame(fetch_request({"big": [fetch_partition(0, max_bytes=8 * MB)]}), 12)
        sent = send_until_held(deaf, frame, 100_000)
        assert sent < 100_000, "the broker took requests without end"
        assert broker.rss_bytes() - before_bytes < 64 * MB  # one answer, not one for each request
        assert append(good, "big", b"others are served") == 8
        # the client may still read all it asked for
        deaf.socket.settimeout(20)
        for _ in range(3):
            deaf._expected[1] = deaf._expected.get(1, (fetch_request({}).response, 12))
            assert len(deaf.receive_frame()) > 7 * MB


def test_many_deaf_readers(broker_process: Callable[..., BrokerProcess]) -> None:
    port = free_port()
    broker = broker_process(metrics_listener=f"127.0.0.1:{port}").start()
    until(lambda: listens(port), 30, "the metrics are served")
    with Wire(broker.bootstrap) as good:
        create_topic(good, "big", max_message_bytes=str(4 * MB))
        for _ in range(2):
            append(good, "big", bytes(MB))
        fetch(good, "big", 0)
        before_bytes = broker.rss_bytes()
        with ExitStack() as deaf:
            for _ in range(30):
                wire = deaf.enter_context(Wire(broker.bootstrap))
                for _ in range(50):
                    wire.send(fetch_request({"big": [fetch_partition(0, max_bytes=2 * MB)]}), 12)
            assert append(good, "big", b"others are served") == 2
            until(lambda: scraped(port, "millstream_slow_readers") == 30, 20, "all are held back")
            # Each is owed the rest of one answer of 2 MB, and not the other 49.
            assert 0 < scraped(port, "millstream_unsent_bytes") <= 30 * (2 * MB + 64 * 1024)
            assert append(good, "big", b"and go on") == 3
        until(lambda: scraped(port, "millstream_unsent_bytes") == 0, 20, "nobody is owed anything")
        until(lambda: broker.rss_bytes() - before_bytes < 40 * MB, 20, "the memory is given back")


def test_large_answers_that_nobody_reads(broker_process: Callable[..., BrokerProcess]) -> None:
    """Those that are no fetches have no smaller form: beyond the limit there are none."""
    broker = broker_process(max_unsent_bytes=str(5 * MB), socket_send_buffer_bytes="65536").start()
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=32, resource_name=f"group-{number}")
        for number in range(20_000)
    ]
    for resource in resources:
        resource.configuration_keys = None
    large = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    small = DescribeConfigsRequest(resources=resources[:100])
    with Wire(broker.bootstrap) as good:
        with deaf_wire(broker) as deaf:
            deaf.send(large)  # of 8 MB
            until(lambda: is_refused(broker, large), 20, "a second one is refused")
            assert len(good.ask(small).results) == 100
        until(lambda: not is_refused(broker, large), 20, "there is room again")
    assert "Traceback" not in broker.output, broker.output[:3000]


def test_errors_that_nobody_reads(broker_process: Callable[..., BrokerProcess]) -> None:
    """A fetch that is all errors holds no records, and counts as well."""
    port = free_port()
    broker = broker_process(
        metrics_listener=f"127.0.0.1:{port}", max_unsent_bytes=str(MB), socket_send_buffer_bytes="65536"
    ).start()
    until(lambda: listens(port), 30, "the metrics are served")
    partitions = [fetch_partition(0, partition=number) for number in range(40_000)]
    many = fetch_request({"none-such": partitions}, max_wait_ms=0)
    with Wire(broker.bootstrap) as good, ExitStack() as stack:
        create_topic(good, "others")
        wires = [stack.enter_context(deaf_wire(broker)) for _ in range(8)]
        for wire in wires:
            wire.send(many, 4)  # the answer has 1.2 MB
        until(lambda: scraped(port, REFUSED) >= 6, 60, "all but the first have been refused or sent away")
        assert scraped(port, "millstream_unsent_bytes") < 3 * MB
        assert append(good, "others", b"others are served") == 0
        assert fetch(good, "others", 0).records
    assert "Traceback" not in broker.output, broker.output[:3000]


def test_small_answers_that_nobody_reads(broker_process: Callable[..., BrokerProcess]) -> None:
    """Each holds little enough to be served on: together they do not."""
    port = free_port()
    broker = broker_process(
        metrics_listener=f"127.0.0.1:{port}", max_unsent_bytes=str(MB), socket_send_buffer_bytes="65536"
    ).start()
    until(lambda: listens(port), 30, "the metrics are served")
    with Wire(broker.bootstrap) as good, ExitStack() as stack:
        create_topic(good, "others")
        for _ in range(40):
            wire = stack.enter_context(deaf_wire(broker))
            frame = wire.frame(ApiVersionsRequest(), 0)
            wire.socket.settimeout(1.0)
            with suppress(TimeoutError):
                wire.socket.sendall(frame * 1500)
        until(lambda: scraped(port, REFUSED) >= 20, 30, "who does not read is sent away")
        until(lambda: scraped(port, "millstream_unsent_bytes") <= 2 * MB, 20, "the rest may wait")
        assert append(good, "others", b"others are served") == 0
        assert fetch(good, "others", 0).records
    assert broker.output.count("does not read its answers") == 1  # said once
    assert "Traceback" not in broker.output, broker.output[:3000]


REFUSED = 'millstream_protocol_errors_total{listener="PLAINTEXT"}'


def deaf_wire(broker: BrokerProcess) -> Wire:
    """A connection for which the system keeps little of what the broker sends."""
    wire = Wire(broker.bootstrap)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    return wire


def is_refused(broker: BrokerProcess, request: Request) -> bool:
    with Wire(broker.bootstrap) as wire:
        try:
            wire.ask(request)
        except Closed:
            return True
        return False


def test_a_producer_that_does_not_read_its_acknowledgements(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as good, Wire(broker.bootstrap) as deaf:
        create_topic(good, "one-way")
        append(good, "one-way", b"x")
        before_bytes = broker.rss_bytes()
        frame = deaf.frame(produce_request("one-way", batch([b"y" * 100])), 9) * 100
        sent = send_until_held(deaf, frame, 1000)
        assert broker.rss_bytes() - before_bytes < 64 * MB
        assert end_offset(good, "one-way") > 1
        assert append(good, "one-way", b"others are served") > 1
        assert sent > 10


def test_frames_that_are_announced_but_never_come(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as good:
        assert good.ask(MetadataRequest(topics=[])).brokers
        before_bytes = broker.rss_bytes()
        liars = [socket.create_connection(("127.0.0.1", broker.port), timeout=20) for _ in range(200)]
        try:
            for liar in liars:
                liar.sendall(struct.pack(">ihhi", 90 * MB, 0, 9, 1) + bytes(20_000))
            assert good.ask(MetadataRequest(topics=[])).brokers
            assert broker.rss_bytes() - before_bytes < 100 * MB  # not 200 times 90 MB
        finally:
            for liar in liars:
                liar.close()


def test_memory_after_much_work_is_what_it_was(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(log_segment_bytes=str(16 * MB)).start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "work", max_message_bytes=str(4 * MB))
        data = batch([bytes(10_000)] * 100)

        def work(rounds: int) -> None:
            for _ in range(rounds):
                wire.send(produce_request("work", data), 9)
            for _ in range(rounds):
                assert wire.receive()[1].responses[0].partition_responses[0].error_code == 0
            fetch(wire, "work", 0, partition_max_bytes=8 * MB)

        work(20)
        before_bytes = broker.rss_bytes()
        for _ in range(5):
            work(30)
        assert end_offset(wire, "work") == 170 * 100
        assert broker.rss_bytes() - before_bytes < 64 * MB


def test_batches_that_are_refused_leave_nothing_behind(broker_process: Callable[..., BrokerProcess]) -> None:
    """Kilobytes that unfold to many megabytes, and are refused for that or for something else."""
    broker = broker_process().start()
    refused = [
        ("t", batch([bytes(80 * MB)], codec=4), "InvalidRecord"),
        ("compacted", batch([bytes(40 * MB)], codec=4), "InvalidRecord"),
        ("t", batch([Record(bytes(40 * MB), None, (), 1 << 50)], codec=4), "InvalidTimestamp"),
    ]
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t")
        create_topic(wire, "compacted", cleanup_policy="compact")
        before_bytes = broker.rss_bytes()
        for name, data, expected in refused:
            for _ in range(15):
                assert error_for(produce(wire, name, data).error_code).__name__ == expected
        assert broker.rss_bytes() - before_bytes < 200 * MB  # some of the last ones, not all 45
        assert append(wire, "t", b"others are served") == 0
