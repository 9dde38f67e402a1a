"""Making a log durable, in a thread while the loop goes on appending.

What lies below `recovery_point` survives a power loss: the bytes of the batches, the names of the
files and folders that lead to them, and, for segments that will not grow any more, their indexes.
The active segment's indexes are not needed: recovery derives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from millstream.errors import KafkaStorageError
from millstream.storage import names
from millstream.storage.files import fsync_file, is_overloaded, is_temporary, write_file
from millstream.storage.segment import Segment

if TYPE_CHECKING:
    from millstream.storage.log import Log


class Flusher:
    """The durable part of one log. `flush` may run in any thread, one at a time; the rest is the loop's."""

    __slots__ = (
        "_cuts",
        "_cutters",
        "_flushing",
        "_is_folder_synced",
        "_is_renamed",
        "_log",
        "_names_changed",
        "_names_synced",
        "_naming",
        "_point",
        "recovery_point",
    )

    def __init__(self, log: Log, recovery_point: int, *, is_folder_synced: bool) -> None:
        self._log = log
        self.recovery_point = recovery_point
        self._flushing = Lock()
        self._point = Lock()
        self._naming = Lock()
        """Held while a file is reached by its name, and while the log is closed; never while a disk syncs."""
        self._cuts = self._cutters = 0
        self._is_folder_synced = is_folder_synced
        self._is_renamed = False
        """Whether leader epochs were written down, and their file's name is not durable yet."""
        self._names_changed = 0 if is_folder_synced else 1
        self._names_synced = 0

    def name_changed(self) -> None:
        """A file was made in the log's folder: its name must be durable before its bytes count."""
        self._names_changed += 1

    def rolled(self, base_offset: int) -> None:
        """A segment was finished at `base_offset`: it is durable only when its indexes are, too."""
        self._names_changed += 1
        with self._point:
            self.recovery_point = min(self.recovery_point, base_offset - 1)

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Cut the log off. A flush that began before or meanwhile makes nothing count as durable."""
        with self._point:
            self._cutters += 1
        try:
            yield
        finally:
            with self._point:
                self._cutters -= 1
                self._cuts += 1

    def cut(self, end_offset: int) -> None:
        """What lies beyond `end_offset` does not count as durable."""
        with self._point:
            self._cuts += 1
            self.recovery_point = min(self.recovery_point, end_offset)

    def flush(self, *, rolled_only: bool = False, is_last: bool = False) -> int:
        """As `Log.flush`; if `is_last`, the active segment's indexes are made durable, too."""
        log = self._log
        with self._flushing:
            cuts = self._cuts
            target = log.segments.active.base_offset if rolled_only else log.end_offset
            segments = log.segments  # after the end offset: they hold all below it
            if target <= self.recovery_point and not is_last:
                return self.recovery_point
            if log.is_closed:  # while an earlier flush was waited for
                raise self._closed()
            names_changed = self._names_changed
            try:
                self._sync_epochs()
                for segment in segments.unflushed(target):
                    self._sync_segment(segment, cuts, is_active=segment is segments.active and not is_last)
                self._sync_names(names_changed)
            except OSError as error:
                if log.is_closed:  # and its folder perhaps renamed: no fault of the disk
                    raise self._closed() from error
                if is_overloaded(error):  # no file could be opened, and so nothing was flushed
                    raise log.storage_error(error) from error
                raise log.fail(error) from error
            with self._point:
                active = segments.active
                if log.segments.active is not active and not (active.is_flushed or active.is_retired):
                    target = min(target, log.segments.start_of_next(active, target) - 1)
                if self._counts(cuts):
                    self.recovery_point = max(self.recovery_point, target)
                log.last_flush_ms = log.now_ms()
                return self.recovery_point

    def _counts(self, cuts: int) -> bool:
        """Whether the log is as it was when there had been so many cuts; `_point` is held."""
        return self._cuts == cuts and not self._cutters

    def _sync_segment(self, segment: Segment, cuts: int, *, is_active: bool) -> None:
        try:
            segment.fsync(with_indexes=not is_active)
        except OSError:
            if not segment.is_retired:
                raise
            segment.is_flushed = True  # it was deleted meanwhile, and is owed nothing
            return
        with self._point:  # one that was cut off meanwhile is the active one, and grows again
            segment.is_flushed = not is_active and self._counts(cuts)

    def _sync_epochs(self) -> None:
        """Write the leader epochs down, if they changed; the folder is synced after that."""
        log = self._log
        if log.epochs.is_changed:
            path = f"{log.folder}/{names.EPOCHS_FILE}"
            log.epochs.is_changed = False  # first: they may change again meanwhile
            try:
                with self._in_own_folder():
                    self._write_epochs(path + names.BESIDE)
                fsync_file(log.disk, path + names.BESIDE)
                with self._in_own_folder():
                    log.disk.rename(path + names.BESIDE, path)
            except (OSError, KafkaStorageError):
                log.epochs.is_changed = True
                raise
            self._is_renamed = True

    def close(self) -> None:
        """Close the log: no flush writes by name any more, as the folder may be another log's soon."""
        with self._naming:
            self._log.is_closed = True

    @contextmanager
    def _in_own_folder(self) -> Iterator[None]:
        with self._naming:
            if self._log.is_closed:
                raise self._closed()
            yield

    def _closed(self) -> KafkaStorageError:
        return KafkaStorageError(f"{self._log.partition} is closed")

    def _write_epochs(self, path: str) -> None:
        log = self._log
        try:
            write_file(log.disk, path, log.epochs.encode())
        except OSError as error:
            if is_temporary(error):
                raise log.storage_error(error) from error
            raise

    def _sync_names(self, names_changed: int) -> None:
        """Make the files' names durable, and at first the folder's own with what says whose it is."""
        log = self._log
        if not self._is_folder_synced:
            fsync_file(log.disk, f"{log.folder}/{names.METADATA_FILE}")
            log.sync_dir_names()
            self._is_folder_synced = True
        if self._is_renamed or names_changed != self._names_synced:
            log.disk.fsync_dir(log.folder)
            self._is_renamed = False
            self._names_synced = names_changed
