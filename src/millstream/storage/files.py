"""Small whole files, written without waiting for the device; and which errors pass."""

from __future__ import annotations

import errno

from millstream.storage.disk import Disk


def is_temporary(error: OSError) -> bool:
    """Whether something was refused for want of room, descriptors or memory.

    Then nothing is broken, and later tries may succeed. An fsync that fails is never temporary.
    """
    return is_without_room(error) or is_overloaded(error)


def is_without_room(error: OSError) -> bool:
    """Whether the disk is full, or as full as it may be."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_overloaded(error: OSError) -> bool:
    """Whether descriptors or memory were short, which says nothing of the disk."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


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
