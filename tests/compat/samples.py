"""Records that every client must bring through unchanged, and the codecs they travel in."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_NUMBERS = {name: number for number, name in enumerate(CODECS)}
"""The low three bits of a batch's attributes."""

NOW_MS = int(time.time() * 1000)
"""When the tests began: older records could fall to retention while a test reads them."""

Headers = tuple[tuple[str, bytes | None], ...]


class Sample(NamedTuple):
    """A record as applications see it, with the fields that all clients share."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = NOW_MS


def samples(now_ms: int, big_bytes: int = 300_000) -> list[Sample]:
    """Every odd shape once: null and empty keys, values and headers, all bytes, big and noisy values."""
    noise = random.Random(20260101).randbytes
    shapes = [
        Sample(b"plain key", b"plain value"),
        Sample(None, b"no key"),
        Sample(b"tombstone", None),
        Sample(None, None),
        Sample(b"", b""),
        Sample("Schlüssel 水".encode(), "Wert 🌾".encode()),
        Sample(bytes(range(256)), bytes(reversed(range(256)))),
        Sample(b"headers", b"two of one name", (("trace", b"1"), ("trace", b"2"), ("empty", b""))),
        Sample(b"null header", b"", (("nothing", None), ("größe", "größer".encode()))),
        Sample(b"big, compressible", b"millstream " * (big_bytes // 11)),
        Sample(b"big, noise", noise(big_bytes)),
    ]
    shapes += [Sample(b"k%d" % (n % 7), b"v%d" % n) for n in range(200)]
    return [shape._replace(timestamp_ms=now_ms - len(shapes) + n) for n, shape in enumerate(shapes)]
