"""`millstream perf`: what it says was done was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from millstream.cli.main import millstream
from millstream.cli.perf_meter import percentile
from millstream.testing import Broker
from tests.client.logs import values_in


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def call(broker: Broker, *words: str) -> str:
    done = CliRunner().invoke(millstream, ["perf", *words, "-b", broker.bootstrap], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def figures(broker: Broker, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(broker, *words, "--json").splitlines()[-1])
    return found


@pytest.mark.parametrize("way", [[], ["--rows"], ["-z", "zstd"], ["-a", "0"], ["-r", "20000"]])
def test_produce(broker: Broker, way: list[str]) -> None:
    topic = "produce" + "".join(way).replace("-", "_")
    broker.create_topic(topic)
    found = figures(broker, "produce", topic, "-n", "15000", "-s", "50", *way)
    assert (found["records"], found["bytes"]) == (15_000, 750_000)
    assert found["records_per_second"] > 1000
    if way == ["-r", "20000"]:
        assert found["records_per_second"] < 21_000
    if way != ["--rows"]:
        assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    (values,) = values_in(broker.bootstrap, topic)
    assert len(values) == 15_001, "one more than is counted, to be connected"
    assert {len(value or b"") for value in values} == {50}


@pytest.mark.parametrize("way", [[], ["--arrow"]])
def test_consume(broker: Broker, way: list[str]) -> None:
    topic = "consume" + "".join(way).replace("-", "_")
    broker.create_topic(topic, 3)
    call(broker, "produce", topic, "-n", "20000")
    found = figures(broker, "consume", topic, *way)
    assert found["records"] == 20_001
    assert found["bytes"] >= 2_000_100
    assert "records/s" in call(broker, "consume", topic, "-n", "5000", *way)


def test_latency(broker: Broker) -> None:
    broker.create_topic("latency")
    found = figures(broker, "latency", "latency", "-n", "300", "-r", "1000")
    for kind in ("acknowledged", "read"):
        assert 0 < found["latency_ms"][kind]["p50"] <= found["latency_ms"][kind]["max"] < 10_000
    printed = call(broker, "latency", "latency", "-n", "100")
    assert printed.startswith("acknowledged after, in ms: p50 ")
    assert "\nread after, in ms: p50 " in printed


def test_percentiles() -> None:
    samples = [float(number) for number in range(1, 101)]
    assert [percentile(samples, percent) for percent in (1, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert percentile([7.0], 50) == 7
