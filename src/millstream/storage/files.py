"""Small whole files, written without waiting for the device; and what a full one is."""

from __future__ import annotations

import errno

from millstream.storage.disk import Disk


def is_full(error: OSError) -> bool:
    """Whether a write was refused for want of room: then nothing is broken, and later ones may succeed."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_file(disk: Disk, path: str, data: bytes) -> None:
    """Write a file that did not exist, or whose old content does not matter. Not durable."""
    file = disk.open(path, create=True)
    try:
        if file.size():
            file.truncate(0)
        file.append(data)
    finally:
        file.close()


def fsync_file(disk: Disk, path: str) -> None:
    """Make a file's content durable, if it exists."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.fsync()
    finally:
        file.close()
