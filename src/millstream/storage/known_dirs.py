"""Which log dirs a broker had before: one that was taken away, or replaced, is missed.

Each log dir names the others in its meta.properties. They learn of a new one before a log is made in it, and
forget one that is no longer there once a start has found every log that it looked for. So a log that is
nowhere to be found may be in a dir that is missed; only if none is missed, it was never there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from millstream.storage.log_dir import LogDir
from millstream.storage.meta_properties import OtherDir, encode_uuid

log = logging.getLogger(__name__)


class KnownDirs:
    """The log dirs of a broker that are there, and those that were."""

    def __init__(self, dirs: Sequence[LogDir], lost_ids: Collection[str]) -> None:
        """`lost_ids` are the directory ids of dirs that nobody waits for any more."""
        self._dirs = dirs
        self._lost_ids = lost_ids
        self._gone: dict[str, OtherDir] = {}
        self._have_others = False
        self._writing = threading.Lock()
        """Held from seeing which dirs there are until all are told: else the older list may win."""
        self.were_kept = True
        """Whether none was gone at the start, given up or not: then no record can be gone with it."""

    def look(self) -> None:
        """See which dirs are not there; after those that are there have been opened."""
        metas = [(folder, folder.meta) for folder in self._dirs if folder.meta is not None]
        here = {meta.directory_id for _, meta in metas}
        self._gone = {
            encode_uuid(other.directory_id): other
            for _, meta in metas
            for other in sorted(meta.others)
            if other.directory_id not in here
        }
        self.were_kept = not self._gone
        self._have_others = any(meta.others and not meta.is_new for _, meta in metas)
        for directory_id, other in self._gone.items():
            if directory_id in self._lost_ids:
                log.warning("the log dir %s is given up, and the records that were only there", other)
        for other in self.missing:
            log.warning("the log dir %s is not there: partitions that were in it stay offline", other)

    @property
    def missing(self) -> list[OtherDir]:
        """The dirs that may come back; but not those that are there and cannot be read."""
        unreadable = {folder.path for folder in self._dirs if folder.meta is None}
        return [
            other
            for directory_id, other in self._gone.items()
            if directory_id not in self._lost_ids and other.path not in unreadable
        ]

    @property
    def may_miss_logs(self) -> bool:
        """Whether logs may lie where they cannot be seen now.

        A new dir may be the empty place of a volume that is not mounted, unless all dirs are known.
        """
        has_new = any(folder.is_new for folder in self._dirs)
        has_failed = any(folder.has_failed for folder in self._dirs)
        return has_failed or bool(self.missing) or (has_new and not self._have_others)

    def why(self) -> str:
        """What is wrong with the dirs, and what to do."""
        suspects = [folder.path for folder in self._dirs if folder.has_failed or folder.is_new]
        missing = self.missing
        faults = [f"{', '.join(suspects)} failed or is empty"] if suspects else []
        if missing:
            faults.append(f"{', '.join(map(str, missing))} is not there any more")
        ids = ",".join(encode_uuid(other.directory_id) for other in missing)
        remedy = f"set lost.log.dirs={ids}, and they start empty" if missing else "delete the topic"
        return (
            f"{' and '.join(faults)}. Mount what is not mounted, put back into log.dirs what was taken out,"
            f" and start again; or, if the records are lost, {remedy}"
        )

    def remember(self, on_error: Callable[[LogDir, OSError], None], used: LogDir | None = None) -> None:
        """Let each dir know the others that hold logs, one that is now `used`, and those that are gone."""
        with self._writing:
            here = [
                folder for folder in self._dirs if not folder.is_new or folder.log_count > 0 or folder is used
            ]
            self._write([*_described(here), *self._gone.values()], False, on_error)

    def settle(self, on_error: Callable[[LogDir, OSError], None]) -> None:
        """Nothing is missed: take new dirs for good, and forget those that are gone."""
        with self._writing:
            self._gone = {}
            self._write(_described(self._dirs), True, on_error)

    def _write(
        self, known: list[OtherDir], is_settled: bool, on_error: Callable[[LogDir, OSError], None]
    ) -> None:
        for folder in self._dirs:
            if not folder.has_failed:
                try:
                    folder.know(known, is_settled=is_settled)
                except OSError as error:
                    on_error(folder, error)


def _described(dirs: Iterable[LogDir]) -> list[OtherDir]:
    return [OtherDir(folder.meta.directory_id, folder.path) for folder in dirs if folder.meta is not None]
