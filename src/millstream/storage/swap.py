"""Replacing segments by cleaned ones, so that a crash at any moment leaves either the old or the new.

1. The new segment's files are written with the suffix `.cleaned`, and made durable.
2. They are renamed to `.swap`, the `.log` last of all, and the names made durable: from there on the
   new one counts.
3. The old segments' files go, each `.log` first; the suffix `.swap` goes, from the `.log` last.

On opening a folder, `.cleaned` files are removed (step 1 was not finished), and `.swap` files are
put in place of what they cover (step 3 was not finished).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millstream.storage import names
from millstream.storage.cleaned_segment import CleanedSegment
from millstream.storage.cleaning_job import Rewritten
from millstream.storage.disk import Disk
from millstream.storage.recovery import find_end_offset
from millstream.storage.segment import SUFFIXES, Segment

if TYPE_CHECKING:
    from millstream.storage.log import Log

_log = logging.getLogger(__name__)


def finish_swaps(disk: Disk, folder: str, found: Iterable[str]) -> set[str]:
    """Finish or undo what a crash interrupted; the names of the files that are then there."""
    present = set(found)
    unfinished = {name for name in present if name.endswith((names.CLEANED, names.DELETED, names.BESIDE))}
    swapped = {name for name in present if name.endswith(names.SWAP)}
    if not unfinished and not swapped:
        return present
    for name in unfinished:
        disk.remove(f"{folder}/{name}")
    present -= unfinished | swapped
    bases = {names.offset_of(name) for name in swapped if name.endswith(names.LOG + names.SWAP)}
    for name in swapped:
        if names.offset_of(name) not in bases:
            disk.remove(f"{folder}/{name}")
    for base in sorted(bases):
        end_offset = _end_offset(disk, folder, base)
        _log.info("%s: putting the cleaned segment %d to %d in place", folder, base, end_offset)
        for name in _covered(present, base, end_offset):
            disk.remove(f"{folder}/{name}")
            present.discard(name)
        for suffix in reversed(SUFFIXES):  # the log last: until then it is still to be done again
            name = names.offset_name(base, suffix)
            if name + names.SWAP in swapped:
                disk.rename(f"{folder}/{name}{names.SWAP}", f"{folder}/{name}")
                present.add(name)
    disk.fsync_dir(folder)
    return present


class Swap:
    """A cleaned segment that takes the place of a run of segments.

    The loop begins and finishes it, a thread makes it durable between the two. Until it is finished it
    can be undone, and whoever drops records of the log meanwhile does so first: else a crash would bring
    them back.
    """

    def __init__(self, log: Log, old: Sequence[Segment], rewritten: Rewritten) -> None:
        self.old = old
        self._log = log
        self._rewritten = rewritten
        self._files = CleanedSegment(log.disk, log.folder, rewritten.base_offset)

    def begin(self) -> None:
        """Let the cleaned segment count from here on, should there be a crash. On the loop."""
        self._log.swap = self
        self._files.rename(names.CLEANED, names.SWAP)

    def make_durable(self) -> None:
        """Make the new names durable before the old ones go. In a thread."""
        self._log.disk.fsync_dir(self._log.folder)

    def undo(self) -> None:
        """Leave everything as it was. On the loop."""
        self._log.swap = None
        self._log.trash(self._files.paths(names.SWAP))

    def finish(self) -> bool:
        """Put the cleaned segment in place; readers go on meanwhile. On the loop. False if it was undone."""
        log, made = self._log, self._rewritten
        if log.swap is not self:
            return False
        new = Segment(log.disk, log.folder, made.base_offset, made.size, log.now_ms())
        new.set_timestamps(made.max_timestamp, made.max_timestamp_offset, 0)
        new.is_flushed = True
        log.swap = None
        with log.swapping:
            log.discard(self.old)
            self._files.rename(names.SWAP, "")
            log.segments = log.segments.replaced(self.old, [new])
        log.snapshots.keep([segment.base_offset for segment in log.segments], log.end_offset)
        return True


def _covered(present: set[str], base: int, end_offset: int) -> list[str]:
    """The files of the segments that a `.swap` segment replaces.

    Those of the same base offset are old ones only while the old `.log` is there, which therefore
    goes last. After that they are files of the new segment, which has all four of them.
    """
    found = [
        name for name in present if name.endswith(SUFFIXES) and base < names.offset_of(name) < end_offset
    ]
    old = [names.offset_name(base, suffix) for suffix in reversed(SUFFIXES)]
    if old[-1] in present:
        found += [name for name in old if name in present]
    return found


def _end_offset(disk: Disk, folder: str, base: int) -> int:
    """The offset after the last record of a `.swap` segment."""
    path = f"{folder}/{names.offset_name(base, names.LOG + names.SWAP)}"
    segment = Segment(disk, folder, base, disk.size(path), 0, suffix=names.SWAP)
    end_offset = find_end_offset(segment)
    segment.retire()
    return base if end_offset is None else end_offset
