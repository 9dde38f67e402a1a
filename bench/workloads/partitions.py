"""A broker with 5,000 partitions: how soon it is back after a clean stop, and producing to 1,000 of them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.batches import batch, sample_values
from bench.frames import ProduceAnswer, produce_frame
from bench.raw import Loader
from bench.subjects import Subject, discard
from bench.wire import Connection, WireError
from bench.workload import Metric, Scale, Workload
from bench.workloads.librdkafka import FLUSH_SECONDS, make_producer

ALL, USED = 5_000, 1_000
TOPIC = "many"
PARTITIONS_PER_REQUEST, RECORDS_PER_BATCH = 50, 10
READY_SECONDS = 120


class ManyPartitions(Workload):
    name = "partitions-5000"
    title = f"{ALL} partitions: clean start; produce of 100 B spread over {USED} of them"
    metrics = (
        Metric("create s", "s", digits=2),
        Metric("start s", "s", digits=2),
        Metric("librdkafka k/s", "k/s", is_higher_better=True),
        Metric("raw k/s", "k/s", is_higher_better=True),
    )
    uses_fresh_broker = True
    is_warmed_up = False
    max_rounds = 3
    max_quick_rounds = 1

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.make()
        try:
            broker.start()
            started = time.perf_counter()
            with Connection(broker.port, timeout_seconds=READY_SECONDS) as connection:
                connection.create_topic(TOPIC, ALL, timeout_seconds=READY_SECONDS)
            create_seconds = time.perf_counter() - started
            self._librdkafka(broker.bootstrap, scale.count(quick=100_000, full=200_000))
            broker.stop(READY_SECONDS)
            started = time.perf_counter()
            broker.launch()
            _wait_for_all(broker.port)
            start_seconds = time.perf_counter() - started
            self._librdkafka(broker.bootstrap, scale.count(quick=100_000, full=500_000))
            rate = self._librdkafka(broker.bootstrap, scale.count(quick=300_000, full=1_500_000))
            raw = self._raw(broker.port, scale.count(quick=400_000, full=2_000_000))
            return {
                "create s": create_seconds,
                "start s": start_seconds,
                "librdkafka k/s": rate / 1e3,
                "raw k/s": raw / 1e3,
            }
        finally:
            discard(broker)

    def _librdkafka(self, bootstrap: str, records: int) -> float:
        values = sample_values(100)
        producer = make_producer(bootstrap, acks="1", **{"linger.ms": 50})
        producer.produce(TOPIC, values[0], partition=0)
        producer.flush(FLUSH_SECONDS)
        started = time.perf_counter()
        for number in range(records):
            while True:
                try:
                    producer.produce(TOPIC, values[number & 1023], partition=number % USED)
                    break
                except BufferError:
                    producer.poll(0.005)
        if producer.flush(FLUSH_SECONDS):
            raise RuntimeError("records were not acknowledged")
        return records / (time.perf_counter() - started)

    def _raw(self, port: int, records: int) -> float:
        data = batch(sample_values(100)[:RECORDS_PER_BATCH]).data
        frames = [
            produce_frame(TOPIC, dict.fromkeys(range(first, first + PARTITIONS_PER_REQUEST), data), acks=1)
            for first in range(0, USED, PARTITIONS_PER_REQUEST)
        ]
        loader = Loader(port, frames, ProduceAnswer(TOPIC, PARTITIONS_PER_REQUEST), depth=10)
        try:
            loader.run(len(frames))
            per_request = RECORDS_PER_BATCH * PARTITIONS_PER_REQUEST
            sent = loader.run(records // per_request)
            return sent.requests * per_request / sent.seconds
        finally:
            loader.close()


def _wait_for_all(port: int) -> None:
    """Until every partition answers for itself (its end offset), over one connection if possible."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with Connection(port, timeout_seconds=READY_SECONDS) as connection:
                while min(connection.end_offsets(TOPIC, ALL)) < 0:
                    time.sleep(0.02)
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"not all of {ALL} partitions are led after {READY_SECONDS} s")
                return
        except (OSError, WireError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
