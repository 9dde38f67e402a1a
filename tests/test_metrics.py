"""Counting on the hot path, and what Prometheus reads of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.metrics import SECONDS, Counter, Histogram, Metrics


def exported(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a scrape reads: values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def test_counters_are_exported_by_their_labels() -> None:
    metrics = Metrics()
    orders = metrics.bytes_in.labels("orders")
    orders.value += 100
    orders.value += 1
    metrics.bytes_in.labels('odd "name"\n').value += 7
    assert metrics.bytes_in.labels("orders") is orders
    values = exported(metrics)
    assert values["millstream_topic_bytes_in_total", (("topic", "orders"),)] == 101
    assert values["millstream_topic_bytes_in_total", (("topic", 'odd "name"\n'),)] == 7
    assert values["millstream_background_failures_total", ()] == 0


def test_every_name_is_prefixed_and_explained() -> None:
    families = list(text_string_to_metric_families(Metrics().exposition().decode()))
    assert len(families) >= 9
    for family in families:
        assert family.name.startswith("millstream_")
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")


def test_a_histogram_counts_into_buckets() -> None:
    metrics = Metrics()
    produce = metrics.request_seconds.labels("Produce")
    for value in (0.00004, 0.00005, 0.00006, 0.3, 100.0):
        produce.observe(value)
    values = exported(metrics)

    def bucket(end: str) -> float:
        return values["millstream_request_seconds_bucket", (("api", "Produce"), ("le", end))]

    assert bucket("5e-05") == 2
    assert bucket("0.0001") == 3
    assert bucket("0.25") == 3
    assert bucket("0.5") == 4
    assert bucket("10.0") == 4
    assert bucket("+Inf") == 5
    assert values["millstream_request_seconds_count", (("api", "Produce"),)] == 5
    assert values["millstream_request_seconds_sum", (("api", "Produce"),)] == pytest.approx(100.30015)
    assert produce.count == 5
    assert list(SECONDS) == sorted(SECONDS)


def test_gauges_and_readings_tell_what_holds_now() -> None:
    metrics = Metrics()
    sizes: dict[tuple[str, ...], float] = {("orders",): 5.0}
    open_files = metrics.gauges("open_files", "Files that are open.").labels()
    metrics.reading("log_bytes", "Size of the logs.", lambda: sizes, "topic")
    metrics.reading("connections", "Open connections.", lambda: 3)
    metrics.reading("refused", "Refused connections.", lambda: 9, kind="counter")
    open_files.value += 2
    open_files.value -= 1
    values = exported(metrics)
    assert values["millstream_open_files", ()] == 1
    assert values["millstream_log_bytes", (("topic", "orders"),)] == 5
    assert values["millstream_connections", ()] == 3
    assert values["millstream_refused_total", ()] == 9
    sizes[("orders",)] = 6.0
    assert exported(metrics)["millstream_log_bytes", (("topic", "orders"),)] == 6


def test_a_removed_metric_is_no_longer_exported() -> None:
    metrics = Metrics()
    metrics.bytes_in.labels("gone").value += 1
    metrics.bytes_in.remove("gone")
    metrics.bytes_in.remove("never")
    assert b"gone" not in metrics.exposition()


def test_labels_must_be_as_many_as_declared() -> None:
    with pytest.raises(TypeError, match="topic"):
        Metrics().bytes_in.labels("a", "b")


def test_brokers_of_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.bytes_in.labels("t").value += 1
    assert b'topic="t"' not in second.exposition()


def test_a_scrape_may_run_in_a_thread_while_others_count() -> None:
    metrics = Metrics()
    stop = threading.Event()
    failures: list[BaseException] = []

    def scrape() -> None:
        try:
            while not stop.is_set():
                metrics.exposition()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=scrape)
    thread.start()
    deadline = time.monotonic() + 0.5
    number = 0
    while time.monotonic() < deadline:
        metrics.bytes_in.labels(f"t{number % 500}").value += 1
        metrics.bytes_in.remove(f"t{(number + 250) % 500}")
        number += 1
    stop.set()
    thread.join()
    assert failures == []
    assert number > 100


def test_prometheus_is_loaded_only_when_somebody_asks() -> None:
    program = """
import sys
from millstream.metrics import Metrics
metrics = Metrics()
metrics.bytes_in.labels("t").value += 1
assert "prometheus_client" not in sys.modules
metrics.exposition()
assert "prometheus_client" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_hot_path_takes_less_than_half_a_microsecond() -> None:
    histogram, counter = Histogram(), Counter()

    def per_call_us() -> float:
        begun = time.perf_counter()
        for _ in range(10_000):
            histogram.observe(0.0003)
            counter.value += 1
        return (time.perf_counter() - begun) / 10_000 * 1e6

    assert min(per_call_us() for _ in range(20)) < 0.5
