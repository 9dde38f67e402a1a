"""How much memory clients need while they send or read a lot: the bar is 200 MB resident for 10 GB.

    python -m bench.client_memory                  10 GB of 1 KB records, from a process of its own
    python -m bench.client_memory --gigabytes 1 --way send_arrow

So that the disk does not fill, the broker keeps only the newest of what is sent, and what is read is one
gigabyte, again and again from its beginning.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import psutil

from bench.subjects import MILLSTREAM, Subject
from bench.workload import topic_on

VALUE_BYTES = 1000
ROWS = 5_000
BAR_MB = 200.0
SENDING = ("send", "send_batch", "send_arrow")
READING = ("iterate", "poll", "poll_arrow")
PARTITIONS = 4
READ_AGAIN_RECORDS = 1_000_000
SMALL_LOG = {"retention.bytes": "200000000", "segment.bytes": "100000000"}


def arrow_table(values: list[bytes]) -> Any:
    """Values as a table.

    Of a Python list, pyarrow would first ask pandas whether it is one of its own, and import that where it is
    installed: 60 MB that no client needs.
    """
    import pyarrow as pa

    ends = array("i", itertools.accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    column = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    return pa.Table.from_arrays([column], names=["value"])


def produce(bootstrap: str, topic: str, way: str, records: int) -> None:
    from millstream import Producer

    value = bytes(VALUE_BYTES)
    with Producer(bootstrap) as producer:
        if way == "send":
            for _ in range(records):
                producer.send(topic, value)
            return
        values = [value] * ROWS
        send: Any = producer.send_batch
        rows: Any = values
        if way == "send_arrow":
            send, rows = producer.send_arrow, arrow_table(values)
        for _ in range(records // ROWS):
            send(topic, rows)


def consume(bootstrap: str, topic: str, way: str, records: int) -> None:
    from millstream import Consumer

    with Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, index) for index in range(PARTITIONS)])
        while records > 0:
            wanted = seen = min(records, READ_AGAIN_RECORDS)
            if way == "iterate":
                for record in consumer:
                    seen -= len(record.value) // VALUE_BYTES
                    if seen == 0:
                        break
            while seen > 0:
                seen -= len(consumer.poll()) if way == "poll" else consumer.poll_arrow().num_rows
            records -= wanted
            consumer.seek_to_beginning()


def watch(bootstrap: str, topic: str, way: str, records: int) -> tuple[float, float]:
    """The most memory, in MB, that the process ever had, and the seconds it took."""
    started = time.monotonic()
    process = multiprocessing.get_context("spawn").Process(
        target=produce if way in SENDING else consume, args=(bootstrap, topic, way, records)
    )
    process.start()
    most = 0.0
    while process.is_alive():
        try:
            most = max(most, psutil.Process(process.pid).memory_info().rss / 1e6)
        except psutil.Error:
            break
        time.sleep(0.05)
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the client ended with {process.exitcode}")
    return most, time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--way", choices=(*SENDING, *READING), action="append")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    records = int(options.gigabytes * 1e9) // VALUE_BYTES
    settings = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "500"}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-memory-") as folder:
        subject = Subject(MILLSTREAM, MILLSTREAM, Path(folder))
        with subject.fresh(settings) as broker:
            for way in options.way or (*SENDING, *READING):
                with topic_on(broker, PARTITIONS, SMALL_LOG if way in SENDING else None) as topic:
                    if way in READING:
                        produce(broker.bootstrap, topic, "send_batch", min(records, READ_AGAIN_RECORDS))
                    most, seconds = watch(broker.bootstrap, topic, way, records)
                verdict = "met" if most <= BAR_MB else "MISSED"
                rate = options.gigabytes * 1e3 / seconds
                moved = f"{options.gigabytes:g} GB in {seconds:.0f} s ({rate:.0f} MB/s)"
                print(f"{verdict}: {way}: at most {most:.0f} MB resident for {moved}", flush=True)


if __name__ == "__main__":
    main()
