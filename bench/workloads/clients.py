"""Python clients side by side on one broker, each in its own process: 100 B records, every value touched.

    python -m bench.workloads.clients            all rows
    python -m bench.workloads.clients consume    only those whose names contain it

A row is one function that does all the work and gives the seconds it took; `ROWS` names them. Rounds are
interleaved, and the table shows medians, the CPU time of the client's process (import and set-up included),
its largest resident memory, and the ratios that the bars are about.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.subjects import MILLSTREAM, Broker, Subject
from bench.wire import Connection
from bench.workload import topic_on
from bench.workloads.client_sends import SEND_BARS, SEND_ROWS, SEND_SETTINGS
from bench.workloads.librdkafka import fill

VALUE_BYTES = 100
PATIENCE_S = 300.0

Row = Callable[[str, str, int], float]
"""Reads (or writes) so many records of a topic's only partition; the seconds it took."""


def consume_millstream_iterate(bootstrap: str, topic: str, records: int) -> float:
    from millstream import Consumer

    with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        seen = total = 0
        started = time.perf_counter()
        for record in consumer:
            total += len(record.value)
            seen += 1  # noqa: SIM113 - as a program would count
            if seen == records:
                break
        return _checked(started, total, records)


def consume_millstream_poll(bootstrap: str, topic: str, records: int) -> float:
    from millstream import Consumer

    with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        seen = total = 0
        started = time.perf_counter()
        while seen < records:
            batch = consumer.poll(500)
            for record in batch:
                total += len(record.value)
            seen += len(batch)
        return _checked(started, total, seen)


def consume_millstream_async(bootstrap: str, topic: str, records: int) -> float:
    from millstream import AsyncConsumer

    async def main() -> float:
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            seen = total = 0
            started = time.perf_counter()
            async for record in consumer:
                total += len(record.value)
                seen += 1
                if seen == records:
                    break
            return _checked(started, total, records)

    return _on_uvloop(main)


def consume_millstream_arrow(bootstrap: str, topic: str, records: int) -> float:
    return _consume_millstream_arrow(bootstrap, topic, records, 1 << 20)


def consume_millstream_arrow_tuned(bootstrap: str, topic: str, records: int) -> float:
    return _consume_millstream_arrow(bootstrap, topic, records, MILLSTREAM_TUNED_BYTES)


MILLSTREAM_TUNED_BYTES = 4 << 20
"""Of a Fetch, from a partition: tables of 4 MB instead of 1 MB, for a fifth less work."""


def _consume_millstream_arrow(bootstrap: str, topic: str, records: int, fetched_bytes: int) -> float:
    import pyarrow.compute as pc

    from millstream import Consumer

    with Consumer(bootstrap, offset_reset="earliest", partition_max_bytes=fetched_bytes) as consumer:
        consumer.assign([(topic, 0)])
        seen = total = 0
        started = time.perf_counter()
        while seen < records:
            batch = consumer.poll_arrow()
            total += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
            seen += batch.num_rows
        return _checked(started, total, seen)


CONFLUENT_TUNED = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 * 1024,
    "fetch.queue.backoff.ms": 0,
}
"""By default librdkafka stops fetching for a second once 100,000 records wait: a tenth of a second's work
where they are small, so that its caller waits for most of the time. These settings let it go on."""


def consume_confluent(bootstrap: str, topic: str, records: int) -> float:
    return _consume_confluent(bootstrap, topic, records, {})


def consume_confluent_tuned(bootstrap: str, topic: str, records: int) -> float:
    return _consume_confluent(bootstrap, topic, records, CONFLUENT_TUNED)


def _consume_confluent(bootstrap: str, topic: str, records: int, settings: Mapping[str, int]) -> float:
    from confluent_kafka import Consumer, TopicPartition

    options: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap, "group.id": "bench"}
    consumer = Consumer({**options, "enable.auto.commit": False, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = total = 0
        started = time.perf_counter()
        while seen < records:
            batch = consumer.consume(500, 1.0)
            for message in batch:
                total += len(message.value())
            seen += len(batch)
        return _checked(started, total, seen)
    finally:
        consumer.close()


def consume_aiokafka(bootstrap: str, topic: str, records: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> float:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, 0)])
            seen = total = 0
            started = time.perf_counter()
            while seen < records:
                for batch in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
                    for message in batch:
                        total += len(message.value)
                    seen += len(batch)
            return _checked(started, total, seen)
        finally:
            await consumer.stop()

    return _on_uvloop(main)


def consume_kafka_python(bootstrap: str, topic: str, records: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest", group_id=None
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        seen = total = 0
        started = time.perf_counter()
        while seen < records:
            for batch in consumer.poll(timeout_ms=1000, max_records=500).values():
                for message in batch:
                    total += len(message.value)
                seen += len(batch)
        return _checked(started, total, seen)
    finally:
        consumer.close()


def _on_uvloop(main: Callable[[], object]) -> float:
    import uvloop

    seconds: float = uvloop.run(main())
    return seconds


def _checked(started: float, total_bytes: int, records: int) -> float:
    seconds = time.perf_counter() - started
    if total_bytes != records * VALUE_BYTES:
        raise RuntimeError(f"{total_bytes} bytes in {records} records of {VALUE_BYTES}")
    return seconds


ROWS: dict[str, tuple[Row, float]] = {
    "consume/aiokafka": (consume_aiokafka, 0.5),
    "consume/kafka-python": (consume_kafka_python, 0.2),
    "consume/confluent-kafka, default queue": (consume_confluent, 1.0),
    "consume/confluent-kafka": (consume_confluent_tuned, 1.0),
    "consume/millstream, for record in consumer": (consume_millstream_iterate, 2.0),
    "consume/millstream, poll()": (consume_millstream_poll, 2.0),
    "consume/millstream, async for": (consume_millstream_async, 2.0),
    "consume/millstream, poll_arrow()": (consume_millstream_arrow, 5.0),
    "consume/millstream, poll_arrow(), tuned": (consume_millstream_arrow_tuned, 5.0),
    **SEND_ROWS,
}
"""By name, each with how much of the records it reads or sends: the slow ones are measured over fewer."""

SETTINGS = {
    "consume/aiokafka": "getmany(max_records=500)",
    "consume/kafka-python": "poll(max_records=500)",
    "consume/confluent-kafka, default queue": "consume(500)",
    "consume/confluent-kafka": "consume(500), "
    + ", ".join(f"{key}={value}" for key, value in CONFLUENT_TUNED.items()),
    "consume/millstream, poll()": "poll(500)",
    "consume/millstream, poll_arrow(), tuned": f"partition_max_bytes={MILLSTREAM_TUNED_BYTES}",
    **SEND_SETTINGS,
}
"""What differs from the defaults of each client, and how it is called."""

BARS = (
    ("consume/millstream, for record in consumer", "consume/aiokafka", 2.0),
    ("consume/millstream, for record in consumer", "consume/confluent-kafka", 1.1),
    ("consume/millstream, poll_arrow()", "consume/confluent-kafka", 5.0),
    ("consume/millstream, poll_arrow(), tuned", "consume/confluent-kafka", 5.0),
    *SEND_BARS,
)
"""A row, the one it is measured by, and how many times as many records a second it is to do."""


def measure(name: str, broker: Broker, topic: str, records: int) -> dict[str, float]:
    """One row in a process of its own."""
    command = [sys.executable, "-m", "bench.workloads.clients", "--measure", name]
    command += ["--bootstrap", broker.bootstrap, "--topic", topic, "--records", str(records)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(part: str, records: int, rounds: int, subject: Subject) -> dict[str, dict[str, float]]:
    """Medians of every row whose name contains `part`."""
    broker = subject.shared()
    names = [name for name in ROWS if part in name]
    most = max((ROWS[name][1] for name in names if name not in SEND_ROWS), default=0.0)
    topic = "bench-clients"
    written = 0
    if most:
        with Connection(broker.port, timeout_seconds=120) as connection:
            connection.create_topic(topic, 1, None)
        written = fill(broker, topic, VALUE_BYTES, 1, int(records * most * VALUE_BYTES))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names:
            wanted = int(records * ROWS[name][1])
            if name in SEND_ROWS:
                with topic_on(broker, 1) as new_topic:
                    found[name].append(measure(name, broker, new_topic, wanted))
            else:
                found[name].append(measure(name, broker, topic, min(written, wanted)))
            print(f"round {turn + 1}: {name}: {found[name][-1]['records/s'] / 1e3:,.0f} k/s", flush=True)
    return {
        name: {
            "records/s": statistics.median(each["records/s"] for each in results),
            "cpu_us": statistics.median(each["cpu_us"] for each in results),
            "memory_mb": max(each["memory_mb"] for each in results),
        }
        for name, results in found.items()
    }


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = ["| client | records/s | CPU per record | memory |", "|---|---:|---:|---:|"]
    for name, figures in found.items():
        rate, cpu = figures["records/s"] / 1e3, figures["cpu_us"]
        lines.append(f"| {name} | {rate:,.0f} k | {cpu:.2f} µs | {figures['memory_mb']:.0f} MB |")
    lines += ["", *(f"{name}: {SETTINGS[name]}" for name in found if name in SETTINGS), ""]
    for name, other, times in BARS:
        if name in found and other in found:
            ratio = found[name]["records/s"] / found[other]["records/s"]
            verdict = "met" if ratio >= times else "MISSED"
            lines.append(f"{verdict}: {name} is {ratio:.2f} x {other} (bar {times} x)")
    return "\n".join(lines)


def _largest_memory_mb() -> float:
    """Of this process alone: getrusage would count that of whoever forked it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", default=MILLSTREAM, help="millstream or apache-kafka")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure")
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--topic", default="")
    options = parser.parse_args()
    if options.measure:
        row, _ = ROWS[options.measure]
        before = time.process_time()
        seconds = row(options.bootstrap, options.topic, options.records)
        cpu_s = time.process_time() - before
        memory_mb = _largest_memory_mb()
        figures = {"records/s": options.records / seconds, "cpu_us": cpu_s / options.records * 1e6}
        print(json.dumps({**figures, "memory_mb": memory_mb}))
        return
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-clients-") as folder:
        subject = Subject(options.kind, options.kind, Path(folder))
        try:
            found = run(options.part, options.records, options.rounds, subject)
        finally:
            subject.stop_shared()
    print(f"\nload average {os.getloadavg()[0]:.1f}\n\n{table(found)}")


if __name__ == "__main__":
    main()
