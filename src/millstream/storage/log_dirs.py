"""The log dirs of a broker together: what becomes of each, and which were there before.

A dir that fails is out of use until the next start; one that is full is used again once it has room. What is
wrong is told once. Everything here may be called in any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from millstream.storage import editions
from millstream.storage.disk import Disk
from millstream.storage.files import is_temporary, is_without_room
from millstream.storage.known_dirs import KnownDirs
from millstream.storage.log_dir import LogDir

log = logging.getLogger(__name__)


class LogDirs:
    """In the order in which they are configured."""

    def __init__(
        self,
        disk: Disk,
        paths: Sequence[str],
        lost_ids: Collection[str],
        on_failure: Callable[[LogDir, OSError], None],
    ) -> None:
        """`lost_ids` are the directory ids of dirs that will not come back.

        `on_failure` is told once of each dir that fails.
        """
        self._dirs = [LogDir(disk, path) for path in paths]
        self._known = KnownDirs(self._dirs, lost_ids)
        self._on_failure = on_failure

    def __iter__(self) -> Iterator[LogDir]:
        return iter(self._dirs)

    def __getitem__(self, index: int) -> LogDir:
        return self._dirs[index]

    def at(self, path: str) -> LogDir:
        (found,) = self.some(path)
        return found

    def some(self, path: str | None) -> list[LogDir]:
        """The one with this path; all, if there is none."""
        return [folder for folder in self._dirs if path is None or folder.path == path]

    def usable(self) -> list[LogDir]:
        return [folder for folder in self._dirs if not folder.has_failed]

    def __str__(self) -> str:
        return ", ".join(folder.path for folder in self._dirs)

    # How they were left

    @property
    def were_clean(self) -> bool:
        """Whether the last stop wrote everything down, in every dir."""
        return all(folder.was_clean for folder in self._dirs)

    @property
    def kept_all(self) -> bool:
        """Whether all that was written before the last stop is still there, in every dir."""
        return self._known.were_kept and all(folder.kept_all for folder in self._dirs)

    def mark_boot(self) -> None:
        """What the last stop may have cost is known where it counts: the next start need not tell it."""
        for folder in self._dirs:
            try:
                folder.mark_boot()
            except OSError as error:
                self.not_written(folder, error)

    def compare_editions(self, known: Mapping[str, int], last: Collection[str] = ()) -> bool:
        """Whether the broker has worked in these dirs last, by what the cluster knows of them."""
        return editions.compare(self._dirs, known, last, self.not_written)

    def begin_edition(self, known: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """A new edition of every dir that is in use, by directory id."""
        return editions.begin(self._dirs, known, now_ms, self.not_written)

    # Which were there before

    def look_for_missing(self) -> None:
        """See which dirs are not there, after the others have been opened, and let these know each other."""
        self._known.look()
        self._known.remember(self.not_written)

    @property
    def has_new(self) -> bool:
        """Whether a dir is new, and none is missed."""
        return any(folder.is_new for folder in self._dirs) and not self.is_one_missing

    @property
    def is_one_missing(self) -> bool:
        """Whether a dir is not there that may come back."""
        return bool(self._known.missing)

    @property
    def may_miss_logs(self) -> bool:
        """Whether logs may lie where they cannot be seen now."""
        return self._known.may_miss_logs

    def why_logs_are_missing(self) -> str:
        return self._known.why()

    def begin_to_use(self, folder: LogDir) -> None:
        """Let the others know of a new dir, before the first log is made in it."""
        if folder.is_new and folder.log_count == 0:
            self._known.remember(self.not_written, used=folder)

    def settle(self) -> None:
        """No log is missing: from the next start on these dirs are expected, and no others."""
        self._known.settle(self.not_written)

    # What becomes of them

    def failed(self, folder: LogDir, error: OSError) -> None:
        if not folder.has_failed:
            folder.fail()
            log.error("the log dir %s has failed: %s", folder.path, error)
            self._on_failure(folder, error)

    def not_written(self, folder: LogDir, error: OSError) -> None:
        """A file beside the logs was not written. If that passes, as a full disk does, the old one holds."""
        if is_without_room(error):
            self.filled_up(folder, error)
        elif is_temporary(error):
            log.warning("writing in %s: %s", folder.path, error)
        else:
            self.failed(folder, error)

    def filled_up(self, folder: LogDir, error: OSError) -> None:
        if not folder.is_full:
            folder.is_full = True
            log.warning(
                "the log dir %s has no room: make some, or let its topics keep less. Until then other brokers"
                " lead its partitions, where they are in sync (%s)",
                folder.path,
                error,
            )

    def look_after(self, path: str) -> None:
        """See whether a dir is still in its place, and whether one that was full has room again."""
        for folder in self.some(path):
            if folder.has_failed:
                continue
            try:
                folder.check_place()
            except OSError as error:
                if is_temporary(error):
                    log.warning("looking after %s: %s", folder.path, error)
                else:
                    self.failed(folder, error)
                continue
            if folder.is_full and folder.has_room():
                folder.is_full = False
                log.info("the log dir %s has room again", folder.path)

    def release(self) -> None:
        for folder in self._dirs:
            folder.release()
