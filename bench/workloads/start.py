"""From process start to the first acknowledged record, and the memory a broker takes."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Mapping

from bench.batches import batch, sample_values
from bench.frames import ProduceAnswer, produce_frame
from bench.process import resident_mb
from bench.raw import many_in_flight
from bench.subjects import Broker, Subject, discard
from bench.wire import Connection, WireError
from bench.workload import Metric, Scale, Workload, topic_on
from bench.workloads.librdkafka import consume, fill, produce

TRY_AGAIN_SECONDS = 0.002
START_SECONDS = 60


def first_acknowledged(broker: Broker, process: subprocess.Popen[bytes]) -> None:
    """Try until a topic is made and one record in it is acknowledged."""
    deadline = time.monotonic() + START_SECONDS
    frame = produce_frame("first", {0: batch(sample_values(100)[:1]).data}, acks=1)
    answer = ProduceAnswer("first")
    while True:
        try:
            with Connection(broker.port, timeout_seconds=10) as connection:
                connection.create_topic("first", 1)
                while True:
                    connection.socket.sendall(frame)
                    try:
                        answer.check(connection.receive_exactly(answer.size), 0)
                        return
                    except WireError:
                        if time.monotonic() > deadline:
                            raise
        except (OSError, WireError, struct.error) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"no record was acknowledged; its log says: {broker.log_tail(800)}"
                ) from error
            time.sleep(TRY_AGAIN_SECONDS)


class StartToFirstAck(Workload):
    name = "start"
    title = "process start to first acknowledged record, empty folder (Kafka's formatted beforehand)"
    metrics = (Metric("seconds", "s", digits=2),)
    uses_fresh_broker = True
    max_rounds = 5

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.make()
        broker.format()
        try:
            started = time.perf_counter()
            first_acknowledged(broker, broker.launch())
            return {"seconds": time.perf_counter() - started}
        finally:
            discard(broker)


class Memory(Workload):
    name = "memory"
    title = "resident memory: idle after start, and after a mixed load"
    metrics = (Metric("idle MB", "MB", digits=0), Metric("loaded MB", "MB", digits=0))
    uses_fresh_broker = True
    is_warmed_up = False
    max_rounds = 3
    max_quick_rounds = 1

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        with subject.fresh() as broker:
            with topic_on(broker, 1):
                time.sleep(1)
            idle = resident_mb(broker.pid)
            total = scale.count(quick=300e6, full=1500e6)
            with topic_on(broker, 12) as topic:
                records = total // 1000 // 1024 * 1024
                produce(broker.bootstrap, topic, 1000, records, acks="all")
                consume(broker.bootstrap, topic, 12, records)
                fill(broker, topic, 100, 12, total)
            with topic_on(broker, 1) as topic:
                frame = produce_frame(topic, {0: batch(sample_values(100)[:1]).data}, acks=1)
                many_in_flight(
                    broker.port,
                    frame,
                    ProduceAnswer(topic),
                    scale.count(quick=20_000, full=100_000),
                    depth=16,
                    connections=64,
                )
                return {"idle MB": idle, "loaded MB": resident_mb(broker.pid)}
