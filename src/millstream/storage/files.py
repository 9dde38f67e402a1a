"""Small whole files, written without waiting for the device."""

from __future__ import annotations

from millstream.storage.disk import Disk


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
