"""Reads what lies on a simulated disk, without the code under test: how far does a log survive?

A partition's log is its `.log` files in order of their names, which are base offsets. A batch is:
base offset i64, length i32 (of what follows), leader epoch i32, magic i8, CRC-32C u32 of all that
follows, attributes i16, last offset delta i32, and more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from tests.simulation.disk import SimDisk

_head = struct.Struct(">qiibIhi")
_CRC_START = 21
_MIN_LENGTH = 49


def survived_end(disk: SimDisk, log_dirs: Sequence[str], topic: str, partition: int) -> int:
    """The offset after the last batch that can be reached from the log's start without a gap.

    If the log lies in two log dirs, the longer one counts: a broker may hold on to none but that.
    """
    return max(_end(disk.files(f"{log_dir}/{topic}-{partition}")) for log_dir in log_dirs)


def _end(folder: dict[str, bytes]) -> int:
    names = sorted(name for name in folder if name.endswith(".log"))
    next_offset = int(names[0].split(".")[0]) if names else 0
    for name in names:
        if int(name.split(".")[0]) != next_offset:
            break
        data = folder[name]
        position = 0
        for base_offset, last_offset, end in batches(data):
            if base_offset != next_offset:
                return next_offset
            next_offset, position = last_offset + 1, end
        if position != len(data):
            break
    return next_offset


def batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(base offset, last offset, end position) of each whole good batch, up to the first that is not."""
    position = 0
    while position + 12 + _MIN_LENGTH <= len(data):
        base_offset, length, _, magic, crc, _, last_delta = _head.unpack_from(data, position)
        end = position + 12 + length
        if length < _MIN_LENGTH or end > len(data) or magic != 2:
            return
        if crc32c(data[position + _CRC_START : end]) != crc:
            return
        yield base_offset, base_offset + last_delta, end
        position = end
