"""Record batches (format v2) and values, made once and sent identically to every broker."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

WORDS = 4096
VALUE_COUNT = 1024
STARTED_MS = int(time.time() * 1000)
"""Timestamp of all prepared records: now, so that retention leaves them alone."""


def sample_values(size: int, count: int = VALUE_COUNT, seed: int = 7) -> list[bytes]:
    """Values of exactly `size` bytes that compress about twice with lz4, as log lines might."""
    chance = random.Random(seed)
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789"
    words = [bytes(chance.choices(letters, k=chance.randint(3, 12))) + b" " for _ in range(WORDS)]
    values = []
    for _ in range(count):
        line = bytearray()
        while len(line) < size:
            line += words[int(chance.random() ** 3 * WORDS)]
        values.append(bytes(line[:size]))
    return values


def varint(value: int) -> bytes:
    """Zig-zag and base 128, as record fields are written."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(offset_delta: int, value: bytes, key: bytes | None = None) -> bytes:
    key_part = varint(-1) if key is None else varint(len(key)) + key
    body = b"\x00\x00" + varint(offset_delta) + key_part + varint(len(value)) + value + b"\x00"
    return varint(len(body)) + body


@dataclass(frozen=True, slots=True)
class Batch:
    data: bytes
    count: int


def batch(
    values: Sequence[bytes], keys: Sequence[bytes] | None = None, timestamp_ms: int | None = None
) -> Batch:
    """One uncompressed batch at base offset 0, all records at one timestamp."""
    records = b"".join(
        record(index, value, keys[index] if keys is not None else None) for index, value in enumerate(values)
    )
    at_ms = STARTED_MS if timestamp_ms is None else timestamp_ms
    count = len(values)
    checked = struct.pack(">hiqqqhii", 0, count - 1, at_ms, at_ms, -1, -1, -1, count) + records
    data = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(checked), -1, 2, crc32c(checked)) + checked
    return Batch(data, count)


def batch_of_size(value_size: int, target_bytes: int) -> Batch:
    """A batch of as many values of one size as fit in about `target_bytes`."""
    values = sample_values(value_size)
    count = max(1, (target_bytes - 61) // len(record(100, values[0])))
    return batch([values[index % len(values)] for index in range(count)])
