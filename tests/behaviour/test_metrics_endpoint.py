"""/metrics for Prometheus: bytes and records in and out, requests by API, sizes, connections."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.broker.metrics_endpoint import MAX_CONNECTIONS, MetricsEndpoint
from millstream.clock import SystemClock
from millstream.protocol.messages import ApiVersionsRequest
from tests.processes import BrokerProcess, free_port, until
from tests.wire import Wire, append, batch, create_topic, fetch, produce


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def scrape(port: int, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_what_happened_is_counted(broker_process: Callable[..., BrokerProcess]) -> None:
    port = free_port()
    broker = broker_process(metrics_listener=f"127.0.0.1:{port}").start()
    until(lambda: listens(port), 30, "the metrics are served")

    def sample(name: str, **labels: str) -> float:
        status, text = scrape(port)
        assert status == 200
        found = [
            entry.value
            for family in text_string_to_metric_families(text)
            for entry in family.samples
            if entry.name == name and labels.items() <= entry.labels.items()
        ]
        assert found, f"{name} {labels} is not among:\n{text}"
        return sum(found)

    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "measured")
        data = batch([b"x" * 1000] * 10)
        assert produce(wire, "measured", data).error_code == 0
        append(wire, "measured", b"one more")
        got = len(fetch(wire, "measured", 0).records or b"")
        wire.ask(ApiVersionsRequest(), 0)
        assert sample("millstream_topic_records_in_total", topic="measured") == 11
        assert sample("millstream_topic_bytes_in_total", topic="measured") == got
        assert sample("millstream_topic_bytes_out_total", topic="measured") == got
        assert sample("millstream_topic_records_out_total", topic="measured") == 11
        assert sample("millstream_request_seconds_count", api="Produce") == 2
        assert sample("millstream_request_seconds_count", api="Fetch") == 1
        assert sample("millstream_log_size_bytes", topic="measured") == got
        assert sample("millstream_connections") >= 1
    status, _ = scrape(port, "/elsewhere")
    assert status == 404


def test_hostile_scrapers_do_not_hurt(broker_process: Callable[..., BrokerProcess]) -> None:
    port = free_port()
    broker = broker_process(metrics_listener=f"127.0.0.1:{port}").start()
    until(lambda: listens(port), 30, "the metrics are served")
    for noise in (
        b"\x00" * 100_000,
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"GET /metrics",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(noise)
    status, text = scrape(port)
    assert status == 200
    assert "millstream_" in text
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "fine")
        assert append(wire, "fine", b"x") == 0


def test_one_connection_is_one_scrape_whatever_it_sends() -> None:
    scrapes, go_on = [], threading.Event()

    def exposition() -> bytes:
        scrapes.append(1)
        assert go_on.wait(20)
        return b"all"

    async def scenario() -> None:
        endpoint = MetricsEndpoint(exposition, SystemClock())
        await endpoint.start("127.0.0.1:0")
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        for _ in range(20):
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            await writer.drain()
            other, asking = await asyncio.open_connection("127.0.0.1", endpoint.port)
            asking.write(b"GET /else HTTP/1.1\r\n\r\n")
            assert b"404" in await other.read()  # by then what came before it was read
            asking.close()
        go_on.set()
        assert (await reader.read()).endswith(b"\r\n\r\nall")
        writer.close()
        await endpoint.stop()

    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(main())
    assert len(scrapes) == 1


def test_few_are_served_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    """Those who just hold a connection leave the broker its descriptors; a place that is free is given."""

    async def scenario() -> None:
        endpoint = MetricsEndpoint(lambda: b"all", SystemClock())
        await endpoint.start("127.0.0.1:0")

        async def scraped() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

        idle = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(MAX_CONNECTIONS)]
        assert [await scraped() for _ in range(3)] == [b""] * 3
        idle.pop()[1].close()
        while not (await scraped()).endswith(b"all"):
            await asyncio.sleep(0.001)
        for _, writer in idle:
            writer.close()
        await endpoint.stop()

    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(main())
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"refusing a connection to metrics.listener: {MAX_CONNECTIONS} are there"]
