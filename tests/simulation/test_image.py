"""The reader of disk images finds where a log really ends."""

from __future__ import annotations

import pytest

from millstream.protocol.batch import encode_batch, set_base_offset_and_epoch
from millstream.protocol.record import Record
from tests.simulation.disk import SimDisk
from tests.simulation.image import survived_end
from tests.simulation.world import World

FOLDER = "/data/t-0"


def batch(base_offset: int, count: int) -> bytes:
    data = encode_batch([Record(value=b"x" * 50, timestamp=1) for _ in range(count)])
    set_base_offset_and_epoch(data, 0, base_offset, 0)
    return bytes(data)


def disk_with(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk(World(0), lambda: 0)
    mount = disk.mount()
    mount.makedirs(FOLDER)
    for name, data in files.items():
        mount.open(f"{FOLDER}/{name}", create=True).append(data)
    return disk


A, B, C = batch(0, 3), batch(3, 2), batch(5, 1)
FIRST, SECOND = "00000000000000000000.log", "00000000000000000005.log"


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({}, 0),
        ({FIRST: b""}, 0),
        ({FIRST: A + B}, 5),
        ({FIRST: A + B, SECOND: C}, 6),
        ({FIRST: A + B[:-1]}, 3),
        ({FIRST: A + B[:-1], SECOND: C}, 3),
        ({FIRST: A, SECOND: C}, 3),
        ({FIRST: A + bytes(len(B))}, 3),
        ({FIRST: A + B[:-1] + b"!"}, 3),
        ({FIRST: B + A}, 0),
        ({FIRST: A + bytes(len(B)) + B, SECOND: C}, 3),
        ({SECOND: C}, 6),
    ],
)
def test_end_of_what_survived(files: dict[str, bytes], end: int) -> None:
    assert survived_end(disk_with(files), ["/other", "/data"], "t", 0) == end
