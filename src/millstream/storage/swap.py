"""Replacing segments by cleaned ones, so that a crash at any moment leaves either the old or the new.

1. The new segment's files are written with the suffix `.cleaned`, and made durable.
2. They are renamed to `.swap`, the `.log` last of all: from there on the new one counts.
3. The old segments' files go; the suffix `.swap` goes.

On opening a folder, `.cleaned` files are removed (step 1 was not finished), and `.swap` files are
put in place of what they cover (step 3 was not finished).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millstream.storage import names
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
        for name in [name for name in present if name.endswith(SUFFIXES)]:
            if base <= names.offset_of(name) < max(end_offset, base + 1):
                disk.remove(f"{folder}/{name}")
                present.discard(name)
        for suffix in reversed(SUFFIXES):  # the log last: until then it is still to be done again
            name = names.offset_name(base, suffix)
            if name + names.SWAP in swapped:
                disk.rename(f"{folder}/{name}{names.SWAP}", f"{folder}/{name}")
                present.add(name)
    disk.fsync_dir(folder)
    return present


def make_durable(disk: Disk, folder: str, cleaned: Segment) -> Segment:
    """Finish a `.cleaned` segment: from here on a crash puts it in place. In a thread.

    The answer is what `Log.swap` takes.
    """
    cleaned.spill()
    cleaned.fsync(with_indexes=True)
    disk.fsync_dir(folder)
    cleaned.rename(names.SWAP)
    disk.fsync_dir(folder)
    return Segment(disk, folder, cleaned.base_offset, cleaned.size, cleaned.created_ms, suffix=names.SWAP)


def swap_in(log: Log, old: Sequence[Segment], cleaned: Segment) -> None:
    """Put a durable `.swap` segment in place of a run of segments. On the loop; readers go on meanwhile."""
    log.is_swapping = True
    try:
        log.discard(old)
        cleaned.rename("")
        final = Segment(log.disk, log.folder, cleaned.base_offset, cleaned.size, cleaned.created_ms)
        final.is_flushed = True
        log.segments = log.segments.replaced(old, [final])
    except OSError as error:
        raise log.fail(error) from error
    finally:
        log.is_swapping = False


def _end_offset(disk: Disk, folder: str, base: int) -> int:
    """The offset after the last record of a `.swap` segment."""
    path = f"{folder}/{names.offset_name(base, names.LOG + names.SWAP)}"
    segment = Segment(disk, folder, base, disk.size(path), 0, suffix=names.SWAP)
    end_offset = find_end_offset(segment)
    segment.retire()
    return base if end_offset is None else end_offset
