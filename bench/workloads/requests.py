"""One-record requests: what each request costs, and how long the slowest take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from bench.batches import batch, sample_values
from bench.frames import ProduceAnswer, produce_frame
from bench.raw import Answered, many_in_flight, one_at_a_time
from bench.subjects import APACHE_KAFKA, MILLSTREAM, Subject
from bench.workload import (
    CPU_PER_MILLION,
    P50,
    P99,
    P999,
    REQUESTS_PER_SECOND,
    CpuClock,
    Scale,
    Workload,
    topic_on,
)


class OneRecordRequests(Workload):
    """Produce requests of one 100 B record each, acks=1, one partition, `depth` in flight."""

    metrics = (REQUESTS_PER_SECOND, P50, P99, P999, CPU_PER_MILLION)
    configs: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    acks = 1

    def __init__(self, depth: int, connections: int = 1) -> None:
        self.depth, self.connections = depth, connections
        many = f"-{connections}c" if connections > 1 else ""
        self.name = f"requests-depth_{depth}{many}"
        self.title = f"one-record requests, {depth} in flight on {connections} connection(s)"

    def requests(self, scale: Scale) -> int:
        return (
            scale.count(quick=10_000, full=30_000)
            if self.depth == 1
            else scale.count(quick=40_000, full=150_000)
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        with topic_on(broker, 1, self.configs.get(subject.kind)) as topic:
            frame = produce_frame(topic, {0: batch(sample_values(100)[:1]).data}, self.acks)
            answer = ProduceAnswer(topic)
            requests = self.requests(scale)
            seconds = self.longest_seconds(scale)
            first = max(requests // 10, self.depth * self.connections)
            self._run(broker.port, frame, answer, first, seconds / 10)
            cpu = CpuClock(broker)
            answered = self._run(broker.port, frame, answer, requests, seconds)
            return {
                "requests/s": answered.requests / answered.seconds / 1e3,
                **answered.latencies.summary_us(),
                "cpu/Mreq": cpu.per_million(answered.requests),
            }

    def longest_seconds(self, scale: Scale) -> float:
        return scale.count(quick=10, full=30)

    def _run(
        self, port: int, frame: bytearray, answer: ProduceAnswer, requests: int, seconds: float
    ) -> Answered:
        if self.depth == self.connections == 1:
            return one_at_a_time(port, frame, answer, requests, longest_seconds=seconds)
        return many_in_flight(
            port,
            frame,
            answer,
            requests,
            depth=self.depth,
            connections=self.connections,
            longest_seconds=seconds,
        )


class GroupCommit(OneRecordRequests):
    """The same, but an answer means fsynced: our group commit beside Kafka's flush after every append."""

    configs: ClassVar[Mapping[str, Mapping[str, str]]] = {
        APACHE_KAFKA: {"flush.messages": "1"},
        MILLSTREAM: {"flush.before.ack": "true"},
    }
    acks = -1

    def __init__(self, depth: int, connections: int) -> None:
        super().__init__(depth, connections)
        self.name = f"group_commit-{connections}c_x_{depth}"
        self.title = f"fsync before every answer, {connections} connection(s) with {depth} in flight"

    def requests(self, scale: Scale) -> int:
        """Bounded by time alone: the rates differ by an order of magnitude."""
        return scale.count(quick=50_000, full=200_000)

    def longest_seconds(self, scale: Scale) -> float:
        return 1.0 if scale.is_quick else 4.0
