"""The logs that a log dir has, noted as they come and go: a folder that somebody takes away is missed.

On disk (`.millstream_logs`): lines of `+` or `-` and the name of a log's folder. A log is noted once its
folder has been made, and taken off before the folder is renamed: what is noted and not there was taken away.
Every start writes the file anew. Only a clean stop flushes it: after a power loss nobody looks at it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Set

from millstream.model import TopicPartition
from millstream.storage import names
from millstream.storage.disk import Disk
from millstream.storage.files import fsync_file, is_temporary

log = logging.getLogger(__name__)

MAX_SPARE_LINES = 10_000
"""How many lines more than there are logs the file may have."""
NOT_WHOLE = -1


class LogList:
    """The notes of one log dir. Once it is open, only the loop makes them."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = f"{folder}/{names.LOGS_FILE}"
        self._noted: set[TopicPartition] = set()
        """What the file says."""
        self._lines = 0

    def read(self) -> Collection[TopicPartition]:
        """The logs that were there when the last process worked here, as far as is known."""
        noted: dict[str, None] = {}
        data = self._disk.read_file(self._path) if self._disk.exists(self._path) else b""
        lines = data.decode(errors="replace").splitlines()
        for line in lines:
            if line.startswith("+"):
                noted[line[1:]] = None
            else:
                noted.pop(line[1:], None)
        is_torn = bool(data) and not data.endswith(b"\n")  # a line more would be taken for part of the last
        self._lines = NOT_WHOLE if is_torn else len(lines)
        self._noted = {found for found in map(names.parse_folder, noted) if found is not None}
        return sorted(self._noted)

    def begin(self, partitions: Set[TopicPartition]) -> None:
        """Note what there is, and nothing else."""
        if self._noted != partitions or self._lines != len(partitions):
            data = "".join(f"+{partition}\n" for partition in sorted(partitions))
            try:
                self._disk.replace_file(self._path, data.encode())
            except OSError as error:
                if is_temporary(error):
                    self._forget()  # what a start found in it is not so, and would be taken for so later
                raise
            self._noted, self._lines = set(partitions), len(partitions)

    def add(self, partition: TopicPartition) -> None:
        """A log's folder has been made."""
        self._append(f"+{partition}\n")
        self._noted.add(partition)

    def remove(self, partition: TopicPartition) -> None:
        """A log's folder is about to be renamed. If a full disk has no room to say so, all is forgotten."""
        if partition not in self._noted:
            return
        try:
            self._append(f"-{partition}\n")
            self._noted.discard(partition)
        except OSError as error:
            if not is_temporary(error):
                raise
            log.warning("%s is given up until the next start: %s", self._path, error)
            self._forget()

    def flush(self) -> None:
        """Make the notes durable."""
        fsync_file(self._disk, self._path)

    def _forget(self) -> None:
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
        self._noted, self._lines = set(), 0

    def _append(self, line: str) -> None:
        if self._lines >= len(self._noted) + MAX_SPARE_LINES:
            self.begin(self._noted)
        file = self._disk.open(self._path, create=True)
        try:
            file.append(line.encode())
        finally:
            file.close()
        self._lines += 1
