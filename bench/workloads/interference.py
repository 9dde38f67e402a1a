"""Produce latency while other work goes on: a cold backlog is read, a compaction runs.

Open loop: requests are due at a fixed rate and a request's clock starts when it was due, so a stall counts
for every request that it delays.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import SpawnProcess
from pathlib import Path

from bench.batches import batch, sample_values
from bench.frames import ProduceAnswer, produce_frame
from bench.machine import settle
from bench.process import device_bytes_read
from bench.raw import Answered, Fetcher, Loader, open_loop
from bench.subjects import Broker, Subject
from bench.wire import Connection
from bench.workload import Metric, Scale, Workload, topic_on
from bench.workloads.librdkafka import fill

RATE = 500
CALM_SECONDS = (3, 15)
LONGEST_SECONDS = (45, 300)
"""Of a quick run and of a full one."""

LATENCY_METRICS = (
    Metric("calm p50_us", "µs", digits=0),
    Metric("calm p99_us", "µs", digits=0),
    Metric("busy p50_us", "µs", digits=0),
    Metric("busy p99_us", "µs", digits=0),
    Metric("busy/calm p99", "x", digits=2),
)


class _Interference(Workload):
    uses_fresh_broker = True
    is_warmed_up = False
    max_rounds = 3
    max_quick_rounds = 1

    def _produce(
        self, broker: Broker, topic: str, seconds: float, is_over: Callable[[], bool] | None = None
    ) -> Answered:
        frame = produce_frame(topic, {0: batch(sample_values(1000)[:1]).data}, acks=1)
        return open_loop(
            broker.port, frame, ProduceAnswer(topic), rate=RATE, seconds=seconds, is_over=is_over
        )

    def _calm(self, broker: Broker, topic: str, scale: Scale) -> Answered:
        settle()
        self._produce(broker, topic, 2)
        return self._produce(broker, topic, scale.of(CALM_SECONDS))


def _report(calm: Answered, busy: Answered) -> dict[str, float]:
    calm_us, busy_us = calm.latencies.summary_us(), busy.latencies.summary_us()
    return {
        "calm p50_us": calm_us["p50_us"],
        "calm p99_us": calm_us["p99_us"],
        "busy p50_us": busy_us["p50_us"],
        "busy p99_us": busy_us["p99_us"],
        "busy/calm p99": busy_us["p99_us"] / calm_us["p99_us"],
    }


def forget_pages(folder: Path) -> None:
    """Write the segments out and drop them from the page cache: the next read goes to the device."""
    for path in folder.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_backlog(port: int, topic: str, ends: list[int], results: multiprocessing.Queue[float]) -> None:
    """In a process of its own: read every partition once to its end, report MB/s."""
    total, started = 0, time.perf_counter()
    for partition, end in enumerate(ends):
        fetcher = Fetcher(port, topic, partition, max_bytes=1 << 20)
        total += fetcher.read(0, end).bytes
        fetcher.close()
    results.put(total / (time.perf_counter() - started) / 1e6)


def read_files(folder: Path, mb_a_second: float) -> None:
    """In a process of its own: read the segments from the device at a rate, without a broker."""
    started, total = time.perf_counter(), 0
    buffer = bytearray(1 << 20)
    for path in sorted(folder.rglob("*.log")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
                time.sleep(max(0.0, total / 1e6 / mb_a_second - (time.perf_counter() - started)))


class ColdBacklog(_Interference):
    """The floor is the same load while a program that is no broker reads the same files as fast: what of the
    wait is the machine's."""

    name = "cold-backlog"
    title = f"open-loop produce at {RATE}/s while a cold backlog is read by another process"
    metrics = (
        *LATENCY_METRICS,
        Metric("floor p99_us", "µs", digits=0),
        Metric("backlog MB/s", "MB/s", is_higher_better=True),
        Metric("from device", "x", digits=2),
    )
    max_rounds = 1

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        partitions = 4
        settings = {"log.segment.bytes": str(512 << 20)}
        with (
            subject.fresh(settings) as broker,
            topic_on(broker, 1) as topic,
            topic_on(broker, partitions) as backlog,
        ):
            fill(broker, backlog, 1000, partitions, int(scale.backlog_gb * 1e9))
            forget_pages(broker.data)
            calm = self._calm(broker, topic, scale)
            with Connection(broker.port) as connection:
                ends = connection.end_offsets(backlog, partitions)
            context = multiprocessing.get_context("spawn")
            results: multiprocessing.Queue[float] = context.Queue()
            read_before = device_bytes_read(broker.pid)
            reader = context.Process(target=read_backlog, args=(broker.port, backlog, ends, results))
            busy = self._produce_beside(reader, broker, topic, scale)
            rate = results.get(timeout=5)
            from_device = (device_bytes_read(broker.pid) - read_before) / (scale.backlog_gb * 1e9)
            forget_pages(broker.data)
            no_broker = context.Process(target=read_files, args=(broker.data, rate))
            floor = self._produce_beside(no_broker, broker, topic, scale).latencies.summary_us()
            return {
                **_report(calm, busy),
                "floor p99_us": floor["p99_us"],
                "backlog MB/s": rate,
                "from device": from_device,
            }

    def _produce_beside(self, reader: SpawnProcess, broker: Broker, topic: str, scale: Scale) -> Answered:
        """The load for as long as the reader reads."""
        reader.start()
        try:
            return self._produce(broker, topic, scale.of(LONGEST_SECONDS), lambda: not reader.is_alive())
        finally:
            if reader.is_alive():
                reader.kill()
            reader.join()


class Compaction(_Interference):
    """Keyed records with ten versions of each key; the topic becomes compacted when the clock starts."""

    name = "compaction"
    title = f"open-loop produce at {RATE}/s while a compaction runs"
    metrics = (*LATENCY_METRICS, Metric("compaction s", "s"))

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        total = scale.count(quick=150e6, full=1500e6)
        settings = {"log.cleaner.backoff.ms": "500"}
        configs = {"segment.bytes": str(max(1 << 20, total // 20)), "min.cleanable.dirty.ratio": "0.01"}
        with (
            subject.fresh(settings) as broker,
            topic_on(broker, 1) as topic,
            topic_on(broker, 1, configs) as keyed,
        ):
            _fill_keyed(broker, keyed, total)
            folder = broker.data / f"{keyed}-0"
            before = _log_bytes(folder)
            calm = self._calm(broker, topic, scale)
            with Connection(broker.port) as connection:
                connection.set_topic_config(keyed, "cleanup.policy", "compact")
            started = time.perf_counter()
            ended = 0.0

            def is_done() -> bool:
                nonlocal ended
                if not ended and _log_bytes(folder) < before * 0.3:
                    ended = time.perf_counter()
                return bool(ended)

            busy = self._produce(broker, topic, scale.of(LONGEST_SECONDS), is_done)
            if not ended:
                raise RuntimeError(f"no compaction within {scale.of(LONGEST_SECONDS)} s")
            return {**_report(calm, busy), "compaction s": ended - started}


def _fill_keyed(broker: Broker, topic: str, total_bytes: int) -> None:
    values = sample_values(1000)
    per_batch, versions = 60, 10
    batches = max(1, total_bytes // versions // (per_batch * 1000))
    frames = [
        produce_frame(
            topic,
            {0: batch([values[(number + index) & 1023] for index in range(per_batch)], keys).data},
            acks=1,
        )
        for number in range(batches)
        for keys in [[b"key-%09d" % (number * per_batch + index) for index in range(per_batch)]]
    ]
    loader = Loader(broker.port, frames, ProduceAnswer(topic), depth=16)
    try:
        loader.run(len(frames) * versions)
    finally:
        loader.close()


def _log_bytes(folder: Path) -> int:
    """Bytes in live segments; files that come and go meanwhile are not counted."""
    total = 0
    for entry in os.scandir(folder):
        if entry.name.endswith(".log"):
            try:
                total += entry.stat().st_size
            except FileNotFoundError:
                continue
    return total
