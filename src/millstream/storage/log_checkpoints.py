"""What is written down of the logs of each log dir, beside them, so that a start need not read them.

Each file is replaced whole, and only if it would say something else. All of it may be called in any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from millstream.errors import KafkaStorageError
from millstream.model import TopicPartition
from millstream.storage import checkpoints
from millstream.storage.log import Log
from millstream.storage.log_dir import LogDir
from millstream.storage.log_dirs import LogDirs
from millstream.storage.transaction_check import known_indexes

log = logging.getLogger(__name__)


class LogCheckpoints:
    """Up to where logs are durable, where they start, how far they are compacted and committed."""

    def __init__(self, dirs: LogDirs, logs_of: Callable[[LogDir], list[Log]]) -> None:
        self._dirs = dirs
        self._logs_of = logs_of

    def write(self, path: str | None = None) -> None:
        """Flush finished segments, and write down recovery points and starts; in one log dir, or in all."""
        for folder in self._dirs.some(path):
            if folder.has_failed:
                continue
            try:
                for one in self._logs_of(folder):
                    if one.failure is None:
                        one.flush(rolled_only=True)
                self.write_dir(folder)
            except OSError as error:
                self._dirs.not_written(folder, error)
            except KafkaStorageError as error:
                log.error("checkpointing %s: %s", folder.path, error)

    def write_dir(self, folder: LogDir) -> None:
        """All but the high watermarks, of one dir. OSError if it cannot be written."""
        self._write_known_indexes(folder)
        self._write(folder, checkpoints.RECOVERY_POINTS, lambda one: one.saved_point)
        self._write_starts(folder)
        self._write_cleaned(folder)

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """What was written down of the high watermarks."""
        found: dict[TopicPartition, int] = {}
        for folder in self._dirs.usable():
            found |= folder.read_offsets(checkpoints.HIGH_WATERMARKS)
        return found

    def write_high_watermarks(self, high_watermarks: Mapping[Log, int]) -> bool:
        """Write down what is committed; false if that failed in a dir that is in use.

        Of these very logs: one of the same name may have been made since.
        """
        is_written = True
        for folder in self._dirs.usable():
            try:
                self._write(folder, checkpoints.HIGH_WATERMARKS, high_watermarks.get)
            except OSError as error:
                self._dirs.not_written(folder, error)
                is_written = False
        return is_written

    def write_starts(self, path: str | None = None) -> set[str]:
        """Write down where the logs start, so that deleted records stay so; the dirs where that failed.

        In one log dir, or in all.
        """
        dirs = self._dirs.some(path)
        unwritten: set[str] = set()
        for folder in dirs:
            if not folder.has_failed:
                try:
                    self._write_starts(folder)
                except OSError as error:
                    unwritten.add(folder.path)
                    self._dirs.not_written(folder, error)
        return unwritten | {folder.path for folder in dirs if folder.has_failed}

    def write_cleaned(self, cleaned: Log) -> None:
        """Write down how far the logs beside this one, and itself, have been compacted."""
        folder = self._dirs.at(cleaned.dir_path)
        if not folder.has_failed:
            try:
                self._write_known_indexes(folder)
                self._write_cleaned(folder)
            except OSError as error:
                self._dirs.not_written(folder, error)

    # Parts

    def _write_starts(self, folder: LogDir) -> None:
        self._write(folder, checkpoints.LOG_STARTS, lambda one: one.saved_start or None)

    def _write_cleaned(self, folder: LogDir) -> None:
        self._write(folder, checkpoints.CLEANER_OFFSETS, lambda one: one.cleaned_until or None)

    def _write(self, folder: LogDir, name: str, offset_of: Callable[[Log], int | None]) -> None:
        """A file with an offset of each log that has one to be written down."""
        folder.write_offsets(name, partial(self._offsets, folder, offset_of))

    def _offsets(self, folder: LogDir, offset_of: Callable[[Log], int | None]) -> dict[TopicPartition, int]:
        return {
            one.partition: offset for one in self._logs_of(folder) if (offset := offset_of(one)) is not None
        }

    def _write_known_indexes(self, folder: LogDir) -> None:
        folder.write_known_indexes(
            lambda: {one.partition: known_indexes(one) for one in self._logs_of(folder)}
        )
