"""Transactions: how many a second, each with a few records in one partition."""

from __future__ import annotations

import itertools
import select
import struct
import time
from collections.abc import Mapping

from confluent_kafka import Producer
from crc32c import crc32c

from bench.batches import batch, sample_values
from bench.stats import Latencies
from bench.subjects import Subject
from bench.wire import (
    CLIENT_ID,
    FIND_COORDINATOR,
    PRODUCE,
    Connection,
    Reader,
    WireError,
    check,
    text,
)
from bench.workload import P50, P99, P999, CpuClock, Metric, Scale, Workload, topic_on

INIT_PRODUCER_ID, END_TXN = 22, 26
PRODUCE_VERSION, END_TXN_VERSION = 12, 5
TRANSACTION = 1
RETRIABLE = {14, 15, 16, 51}
"""The coordinator is coming, or the markers of the transaction before are still being written."""
TIMEOUT_MS = 60_000
PATIENCE_S = 60

TRANSACTIONS_PER_SECOND = Metric("txn/s", "/s", is_higher_better=True, digits=0)
CPU_PER_THOUSAND = Metric("cpu/ktxn", "s/k", digits=3)

_id_numbers = itertools.count(1)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact(value: bytes) -> bytes:
    """Bytes or a string with its length before it, as flexible versions write it."""
    return uvarint(len(value) + 1) + value


def flexible_frame(key: int, version: int, body: bytes) -> bytes:
    """Size, request header v2 and body."""
    header = struct.pack(">hhih", key, version, 0, len(CLIENT_ID)) + CLIENT_ID + b"\x00"
    return struct.pack(">i", len(header) + len(body)) + header + body


class Writer:
    """One transactional producer in transaction version 2: Produce 12, EndTxn 5, one at a time.

    The broker adds the partition to the transaction, and each end gives the producer another epoch, in
    which sequences begin at 0.
    """

    def __init__(self, port: int, topic: str, partition: int, records: int) -> None:
        self.transactional_id = f"bench-txn-{next(_id_numbers)}"
        self.connection = Connection(port, timeout_seconds=PATIENCE_S)
        self._batch = bytearray(batch(sample_values(100)[:1] * records).data)
        struct.pack_into(">h", self._batch, 21, 16)  # transactional
        self._topic = topic
        self._partition = partition
        self._error_position = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
        self.retries = 0
        self.is_ending = False
        self.started = 0
        self.producer_id, self.epoch = self._init()

    def _init(self) -> tuple[int, int]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.connection.request(FIND_COORDINATOR, 1, text(self.transactional_id) + b"\x01")
            answer.take("i")
            error = answer.take("h")
            if not error:
                body = text(self.transactional_id) + struct.pack(">i", TIMEOUT_MS)
                answer = self.connection.request(INIT_PRODUCER_ID, 1, body)
                answer.take("i")
                error = answer.take("h")
                if not error:
                    return answer.take("q"), answer.take("h")
            if error not in RETRIABLE or time.monotonic() > deadline:
                check(error, "InitProducerId")
            time.sleep(0.05)

    def begin(self) -> None:
        """Send a transaction's records."""
        self.started = time.perf_counter_ns()
        self.send_records()

    def send_records(self) -> None:
        data = self._batch
        struct.pack_into(">qhi", data, 43, self.producer_id, self.epoch, 0)
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
        place = struct.pack(">i", self._partition) + compact(bytes(data)) + b"\x00"
        topic = compact(self._topic.encode()) + b"\x02" + place + b"\x00"
        head = compact(self.transactional_id.encode()) + struct.pack(">hi", -1, TIMEOUT_MS)
        self._send(PRODUCE, PRODUCE_VERSION, head + b"\x02" + topic + b"\x00")
        self.is_ending = False

    def send_end(self) -> None:
        body = compact(self.transactional_id.encode()) + struct.pack(
            ">qh?", self.producer_id, self.epoch, True
        )
        self._send(END_TXN, END_TXN_VERSION, body + b"\x00")
        self.is_ending = True

    def _send(self, key: int, version: int, body: bytes) -> None:
        self.connection.socket.sendall(flexible_frame(key, version, body))

    def take_answer(self) -> bool:
        """Take the answer that has come and send what follows it; whether the transaction is done."""
        (size,) = struct.unpack(">i", self.connection.receive_exactly(4))
        answer = Reader(self.connection.receive_exactly(size))
        answer.position = 4 + 1 + 4 if self.is_ending else self._error_position
        error = answer.take("h")
        if error in RETRIABLE:
            self.retries += 1
            if self.is_ending:
                self.send_end()
            else:
                self.send_records()
            return False
        check(error, "EndTxn" if self.is_ending else "Produce")
        if self.is_ending:
            self.producer_id, self.epoch = answer.take("q"), answer.take("h")
            return True
        self.send_end()
        return False

    def close(self) -> None:
        self.connection.close()


class Transactions(Workload):
    """Transactions of raw producers, one transaction at a time on each connection."""

    metrics = (TRANSACTIONS_PER_SECOND, P50, P99, P999, CPU_PER_THOUSAND)

    def __init__(self, records: int, producers: int = 1) -> None:
        self.records, self.producers = records, producers
        self.name = f"txn-{records}" + (f"-{producers}c" if producers > 1 else "")
        self.title = f"transactions of {records} record(s), {producers} producer(s)"

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        with topic_on(broker, self.producers) as topic:
            writers = [Writer(broker.port, topic, n, self.records) for n in range(self.producers)]
            try:
                seconds = scale.count(quick=4, full=10)
                self._run(writers, seconds / 4)
                cpu = CpuClock(broker)
                latencies, taken = self._run(writers, seconds)
                return {
                    "txn/s": latencies.count / taken,
                    **latencies.summary_us(),
                    "cpu/ktxn": cpu.seconds() / (latencies.count / 1e3),
                }
            finally:
                for writer in writers:
                    writer.close()

    def _run(self, writers: list[Writer], seconds: float) -> tuple[Latencies, float]:
        latencies = Latencies()
        by_socket = {writer.connection.socket: writer for writer in writers}
        busy = set(by_socket)
        started = time.perf_counter()
        for writer in writers:
            writer.begin()
        while busy:
            ready, _, _ = select.select(list(busy), [], [], PATIENCE_S)
            if not ready:
                raise WireError(f"no answer for {PATIENCE_S} s")
            is_over = time.perf_counter() - started > seconds
            for socket in ready:
                writer = by_socket[socket]
                if writer.take_answer():
                    latencies.add(time.perf_counter_ns() - writer.started)
                    if is_over:
                        busy.discard(socket)
                    else:
                        writer.begin()
        return latencies, time.perf_counter() - started


class LibrdkafkaTransactions(Workload):
    """Transactions of one librdkafka producer, which names its partitions first (the old protocol)."""

    metrics = (TRANSACTIONS_PER_SECOND, CPU_PER_THOUSAND)

    def __init__(self, records: int) -> None:
        self.records = records
        self.name = f"txn-librdkafka-{records}"
        self.title = f"librdkafka transactions of {records} record(s)"

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        with topic_on(broker, 1) as topic:
            producer = Producer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "transactional.id": f"bench-txn-{next(_id_numbers)}",
                    "linger.ms": 0,
                }
            )
            producer.init_transactions(PATIENCE_S)
            seconds = scale.count(quick=4, full=10)
            self._run(producer, topic, seconds / 4)
            cpu = CpuClock(broker)
            count, taken = self._run(producer, topic, seconds)
            return {"txn/s": count / taken, "cpu/ktxn": cpu.seconds() / (count / 1e3)}

    def _run(self, producer: Producer, topic: str, seconds: float) -> tuple[int, float]:
        value = sample_values(100)[0]
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            producer.begin_transaction()
            for _ in range(self.records):
                producer.produce(topic, value, partition=0)
            producer.commit_transaction(PATIENCE_S)
            count += 1
        return count, time.perf_counter() - started
