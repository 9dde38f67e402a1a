"""Log folders made, copied, damaged and opened again through the storage layer, without a broker."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from millstream.clock import SystemClock
from millstream.config.log import LogConfig
from millstream.model import TopicPartition
from millstream.protocol.batch import encode_batch, read_header
from millstream.protocol.record import Record
from millstream.storage.log import Log
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import Store

PARTITION = TopicPartition("t", 0)
TOPIC_ID = UUID("7b1d8d0a-9a53-4d26-8f4b-4a0c1a3b5c01")
SEGMENT = "00000000000000000000.log"


@contextmanager
def opened_log(data: Path, *, is_clean: bool = False, config: LogConfig | None = None) -> Iterator[Log]:
    """The log of the only partition; left as a killed process leaves it, unless told otherwise."""
    store = Store([str(data)], OsDisk(), SystemClock(), config, random=random.Random(1))
    store.open()
    try:
        log = store.get(PARTITION, TOPIC_ID)
        yield log or store.create(PARTITION, TOPIC_ID, config or LogConfig())
    finally:
        store.close(clean=is_clean)


def batch_kinds() -> Iterator[bytearray]:
    """Batches of every codec, plain and idempotent, with one and several records."""
    now_ms = int(time.time() * 1000)
    for codec in range(5):
        yield encode_batch(
            [Record(value=b"%d-%d" % (codec, n), key=b"k", timestamp=now_ms) for n in range(1 + codec)],
            codec=codec,
            producer_id=1000 + codec if codec % 2 else -1,
            producer_epoch=0 if codec % 2 else -1,
            base_sequence=0 if codec % 2 else -1,
        )


def append(log: Log, data: bytearray) -> int:
    return log.append(memoryview(data), read_header(data), 0).base_offset


def copied(data: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(data, to)
    return to


def read_bytes(log: Log, offset: int = 0) -> bytes:
    """Everything from an offset on."""
    found = bytearray()
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, limit=log.end_offset)
        assert piece.data, f"nothing at {offset} though the log goes to {log.end_offset}"
        found += piece.data
        offset = piece.next_offset
    return bytes(found)
