"""Identical prepared batches into every broker: the cost of the broker alone, without a real client."""

from __future__ import annotations

from collections.abc import Mapping

from bench.batches import batch_of_size
from bench.frames import ProduceAnswer, produce_frame
from bench.raw import Loader
from bench.subjects import Subject
from bench.workload import (
    CPU_PER_GB,
    CPU_PER_MILLION,
    MB_PER_SECOND,
    RECORDS_PER_SECOND,
    CpuClock,
    Scale,
    Workload,
    topic_on,
)

PARTITIONS = 12
DEPTH = 24


class Replay(Workload):
    metrics = (MB_PER_SECOND, RECORDS_PER_SECOND, CPU_PER_GB, CPU_PER_MILLION)

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self.name = f"replay-{batch_bytes // 1000}KB"
        self.title = (
            f"raw replay of {batch_bytes // 1000} KB batches of 100 B, {PARTITIONS} partitions, acks=1"
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        made = batch_of_size(100, self.batch_bytes)
        requests = scale.count(quick=400e6, full=1500e6) // len(made.data)
        with topic_on(broker, PARTITIONS) as topic:
            frames = [produce_frame(topic, {index: made.data}, acks=1) for index in range(PARTITIONS)]
            loader = Loader(broker.port, frames, ProduceAnswer(topic), depth=DEPTH)
            try:
                loader.run(PARTITIONS)
                cpu = CpuClock(broker)
                sent = loader.run(requests)
                return {
                    "MB/s": sent.sent_bytes / sent.seconds / 1e6,
                    "records/s": sent.requests * made.count / sent.seconds / 1e3,
                    "cpu/GB": cpu.per_gb(sent.sent_bytes),
                    "cpu/Mreq": cpu.per_million(sent.requests),
                }
            finally:
                loader.close()
