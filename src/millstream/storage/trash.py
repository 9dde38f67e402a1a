"""Files and folders that wait for their removal: renamed at once, removed after a delay.

The delay (file.delete.delay.ms) lets readers that hold them finish. A restart removes what is left.
"""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from threading import Lock
from typing import Final

from millstream.clock import Clock
from millstream.storage import names
from millstream.storage.disk import Disk

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 60.0


class Trash:
    """What a log dir is to remove. Put in by the loop, emptied by any thread."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._lock = Lock()
        self._waiting: list[tuple[float, str, bool]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put_files(self, paths: list[str], delay_ms: int) -> None:
        """Rename files out of the way, those that exist, and remove them later."""
        for path in paths:
            try:
                self._disk.rename(path, path + names.DELETED)
            except FileNotFoundError:
                continue
            self._wait(path + names.DELETED, delay_ms, is_folder=False)

    def put_folder(self, path: str, delay_ms: int) -> None:
        """Remove a folder, which already has its new name, later."""
        self._wait(path, delay_ms, is_folder=True)

    def empty(self, *, is_due_only: bool = True) -> int:
        """Remove what is due, or all; how many files and folders that were.

        What cannot be removed is tried again later.
        """
        now = self._clock.monotonic()
        count = 0
        kept: list[tuple[float, str, bool]] = []
        while True:
            with self._lock:
                if not self._waiting or (is_due_only and self._waiting[0][0] > now):
                    for entry in kept:
                        heappush(self._waiting, entry)
                    return count
                _, path, is_folder = heappop(self._waiting)
            try:
                if is_folder:
                    self._disk.rmtree(path)
                else:
                    self._disk.remove(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("%s cannot be removed yet: %s", path, error)
                kept.append((now + _RETRY_SECONDS, path, is_folder))
                continue
            count += 1

    def _wait(self, path: str, delay_ms: int, *, is_folder: bool) -> None:
        with self._lock:
            heappush(self._waiting, (self._clock.monotonic() + delay_ms / 1000, path, is_folder))
