"""A small file system in memory, and what fills it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[Path]:
    """The folder as a file system of its own."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def fill(folder: Path, leave_bytes: int) -> Path:
    """Take all room but a little; the file that does."""
    filler = folder / "filler"
    free = os.statvfs(folder)
    with filler.open("wb") as file:
        left = free.f_bavail * free.f_frsize - leave_bytes
        while left > 0:
            left -= file.write(bytes(min(left, 1 << 20)))
    return filler
