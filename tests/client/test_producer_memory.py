"""A producer's memory is bounded by its buffer, not by what it sends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tracemalloc

import pytest

from millstream import Admin, Producer
from millstream.testing import Broker
from tests.client.consuming import new_topic

PARTITIONS, RECORDS = 4, 250_000
LIMIT_MB = 150
"""The modules take 70, the buffer and its sockets at most 40."""

PROGRAM = """
import re, sys
from bench.client_memory import arrow_table
from millstream import Producer
bootstrap, topic, how, records = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
values = [bytes(1000)] * 5000
rows = arrow_table(values) if how == "send_arrow" else None
with Producer(bootstrap) as producer:
    for _ in range(records // 5000):
        if how == "send":
            for value in values:
                producer.send(topic, value)
        elif how == "send_batch":
            producer.send_batch(topic, values)
        else:
            producer.send_arrow(topic, rows)
status = open("/proc/self/status").read()  # getrusage would count the memory of whoever forked this
print(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024)
"""


@pytest.mark.parametrize("how", ["send", "send_batch", "send_arrow"])
def test_sending_much_takes_little_memory(own_bootstrap: str, how: str) -> None:
    topic = asyncio.run(new_topic(own_bootstrap, PARTITIONS))
    words = [sys.executable, "-c", PROGRAM, own_bootstrap, topic, how, str(RECORDS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LIMIT_MB


def test_rows_for_many_partitions_take_no_more_than_they_are() -> None:
    """Each of the many batches is small; while no broker takes them, they all wait."""
    rows = [b"%03d" % number * 30 for number in range(1000)]
    with Broker() as broker, Producer(broker.bootstrap) as producer:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("wide", 64)
        producer.partitions_of("wide")
        broker.stop()
        tracemalloc.start()
        try:
            producer.send_batch("wide", rows, keys=rows)
            held, _ = tracemalloc.get_traced_memory()
            buffered_bytes = producer.buffered_bytes
        finally:
            tracemalloc.stop()
            producer.close(0)
    assert 180_000 < buffered_bytes < 250_000, "all of them wait"
    assert held < 3_000_000
