"""A consumer's memory is bounded by its buffers, not by what it reads."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.client.consuming import fill, new_topic

PARTITIONS, BATCHES, TIMES = 12, 10, 4
VALUE = b"v" * 1000
LIMIT_MB = 200

PROGRAM = """
import re, sys
from millstream import Consumer
bootstrap, topic, how, wanted = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with Consumer(bootstrap, offset_reset="earliest") as consumer:
    consumer.assign(consumer.partitions_of(topic))
    for _ in range(int(sys.argv[5])):
        seen = 0
        while seen < wanted:
            seen += len(consumer.poll()) if how == "poll" else consumer.poll_arrow().num_rows
        consumer.seek_to_beginning()
status = open("/proc/self/status").read()  # getrusage would count the memory of whoever forked this
print(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024)
"""


@pytest.mark.parametrize("how", ["poll", "poll_arrow"])
def test_reading_much_takes_little_memory(own_bootstrap: str, how: str) -> None:
    async def write() -> str:
        topic = await new_topic(own_bootstrap, PARTITIONS)
        for partition in range(PARTITIONS):
            for _ in range(BATCHES):
                await fill(own_bootstrap, topic, partition, [VALUE] * 800)
        return topic

    topic, records = asyncio.run(write()), PARTITIONS * BATCHES * 800
    words = [sys.executable, "-c", PROGRAM, own_bootstrap, topic, how, str(records), str(TIMES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LIMIT_MB
