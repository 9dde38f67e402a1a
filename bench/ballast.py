"""Free memory that the machine really has, on machines that give it away.

A virtual machine that reports its free pages gives them back to its host, and gets a page again, filled with
zeros, when somebody writes to it. That is paid by whoever needs memory next: writing a file into the page
cache costs 2.2 s of CPU per GB instead of 0.2, whichever broker writes it. So before each measurement what is
free is filled with pages of a file without content: the system takes those, which the host has given already.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PAGE_REPORTING = Path("/sys/module/page_reporting")
CHUNK_BYTES = 1 << 20
STEP_BYTES = 256 << 20
LEAST_FREE_BYTES = 512 << 20
"""Not filled: the system itself keeps some memory free."""
LONGEST_SECONDS = 90.0


class Ballast:
    """A file without content, as large as the memory, whose pages are read where memory is free."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        self._position = 0
        self._size = _memory("MemTotal")
        if PAGE_REPORTING.exists() and self._size:
            path = folder / "ballast"
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._descriptor, self._size)
            path.unlink()

    def fill(self) -> None:
        """Read on in the file until memory is full; those of its pages that went first come first."""
        if self._descriptor < 0:
            return
        deadline = time.monotonic() + LONGEST_SECONDS
        free = _memory("MemFree")
        while free > LEAST_FREE_BYTES and time.monotonic() < deadline:
            self._read(STEP_BYTES)
            left = _memory("MemFree")
            if left > free - STEP_BYTES // 4:
                break  # what is read takes the place of what was read before
            free = left

    def _read(self, count: int) -> None:
        buffer = bytearray(CHUNK_BYTES)
        for _ in range(count // CHUNK_BYTES):
            os.preadv(self._descriptor, [buffer], self._position)
            self._position = (self._position + CHUNK_BYTES) % self._size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _memory(name: str) -> int:
    """A row of the system's memory table in bytes; zero where there is none."""
    table = Path("/proc/meminfo")
    rows = table.read_text().splitlines() if table.exists() else []
    return next((int(row.split()[1]) * 1024 for row in rows if row.startswith(f"{name}:")), 0)
