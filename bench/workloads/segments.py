"""A log of 10,000 segments, 1 TB if its files had no holes: a clean start, and finding a record in it."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from crc32c import crc32c

from bench.batches import batch, sample_values
from bench.raw import Fetcher
from bench.subjects import Subject, discard
from bench.wire import Connection, WireError
from bench.workload import Metric, Scale, Workload

FEW, MANY = 10, 10_000
SEGMENT_BYTES = 100_000_000
READY_SECONDS = 120
LOOKUP_BYTES = 4096
PLACES, PASSES = 100, 20
"""How many segments are looked into, and how often, once they have been opened."""


class ManySegments(Workload):
    name = "segments-10000"
    title = f"one log of {MANY} sparse segments, {MANY * SEGMENT_BYTES / 1e12:g} TB: clean start; lookups"
    metrics = (
        Metric("start s", "s", digits=2),
        Metric("first lookup µs", "µs", digits=0),
        Metric("lookup µs", "µs", digits=0),
        Metric("many/few", "x", digits=2),
    )
    uses_fresh_broker = True
    is_warmed_up = False
    max_rounds = 3
    max_quick_rounds = 1

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.make()
        try:
            broker.start()
            with Connection(broker.port) as connection:
                connection.create_topic("few", 1)
                connection.create_topic("many", 1)
            broker.stop()
            make_sparse(broker.data, "few", FEW)
            make_sparse(broker.data, "many", MANY)
            started = time.perf_counter()
            broker.launch()
            _wait_for(broker.port, "many", 2 * MANY)
            start_seconds = time.perf_counter() - started
            few, many = _Lookups(broker.port, "few", FEW), _Lookups(broker.port, "many", MANY)
            first_us = median(many.run())
            few.run()
            again_few, again_many = [], []
            for _ in range(PASSES):  # in turns, so that client and broker run on the same cores for both
                again_few += few.run()
                again_many += many.run()
            few.close()
            many.close()
            return {
                "start s": start_seconds,
                "first lookup µs": first_us,
                "lookup µs": median(again_many),
                "many/few": median(again_many) / median(again_few),
            }
        finally:
            discard(broker)


def make_sparse(data: Path, topic: str, segments: int) -> None:
    """Fill the log of a topic's only partition, after a clean stop, as if it had been written and flushed.

    Each segment holds one batch that is a hole but for its header, and a small one behind it that the
    offset index points to.
    """
    folder = data / f"{topic}-0"
    for pattern in ("*.log", "*.index", "*.timeindex", "*.snapshot"):
        for path in folder.glob(pattern):
            path.unlink()
    small_at = SEGMENT_BYTES - 1000
    hole = _hole(small_at)
    small = bytearray(batch(sample_values(100)[:1], timestamp_ms=_now_ms()).data)
    for number in range(segments):
        base = 2 * number
        name = folder / f"{base:020d}"
        with name.with_suffix(".log").open("wb") as file:
            struct.pack_into(">q", hole, 0, base)
            file.write(hole)
            file.seek(small_at)
            struct.pack_into(">q", small, 0, base + 1)
            struct.pack_into(">i", small, 12, 0)
            file.write(small)
        name.with_suffix(".index").write_bytes(struct.pack(">ii", 1, small_at))
        name.with_suffix(".timeindex").write_bytes(struct.pack(">qi", _now_ms(), 1))
    end = 2 * segments
    producers = struct.pack(">i", 0)
    (folder / f"{end:020d}.snapshot").write_bytes(struct.pack(">hI", 1, crc32c(producers)) + producers)
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        _set_checkpoint(data / checkpoint, topic, end)


def _hole(size: int) -> bytearray:
    """The header of a batch of one record that is all zeros."""
    now_ms = _now_ms()
    checked = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1)
    crc = crc32c(bytes(size - 61), crc32c(checked))
    return bytearray(struct.pack(">qiibI", 0, size - 12, 0, 2, crc) + checked)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _set_checkpoint(path: Path, topic: str, offset: int) -> None:
    """Kafka's file of offsets: a version, the number of rows, and `topic partition offset` in each."""
    rows = path.read_text().splitlines()[2:] if path.exists() else []
    rows = [row for row in rows if not row.startswith(f"{topic} 0 ")] + [f"{topic} 0 {offset}"]
    path.write_text("\n".join(["0", str(len(rows)), *rows, ""]))


def _wait_for(port: int, topic: str, end: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with Connection(port, timeout_seconds=READY_SECONDS) as connection:
                found = connection.end_offsets(topic, 1)[0]
            if found == end:
                return
            if found > 0:
                raise RuntimeError(f"{topic} ends at {found}, not at {end}")
        except (OSError, WireError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class _Lookups:
    """Fetches of one small record each, in some of a log's segments."""

    def __init__(self, port: int, topic: str, segments: int) -> None:
        self._chosen = random.Random(7).sample(range(segments), min(segments, PLACES))
        self._fetcher = Fetcher(port, topic, 0, max_bytes=LOOKUP_BYTES)

    def run(self) -> list[float]:
        """Look once into each of them: microseconds."""
        return [_lookup_us(self._fetcher, place) for place in self._chosen]

    def close(self) -> None:
        self._fetcher.close()


def _lookup_us(fetcher: Fetcher, segment: int) -> float:
    started = time.perf_counter()
    following, received = fetcher.fetch(2 * segment + 1)
    took = time.perf_counter() - started
    if following != 2 * segment + 2 or not received:
        raise RuntimeError(f"a fetch at {2 * segment + 1} went on at {following}")
    return took * 1e6
