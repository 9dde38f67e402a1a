"""Editions of log dirs: how an older copy, such as a backup that was put back, is told from the dir itself.

Every dir holds the number of its edition, and so does the cluster's registry, for each directory id. A new
edition begins at every start, before the broker takes part in anything, and at every clean stop: first in the
dir, durably, and only then in the registry. So the dir is never behind the registry, whenever the process is
killed; one that is behind is not the dir in which the broker worked last, and lacks what was written since.
Numbers are times where clocks allow it: what a dir began without the registry's knowledge is below what a
copy of it begins later.

The registry also has the directory ids of those that the last edition was begun with. A dir that is not among
them was away when the broker worked without it, on another machine or with its other dirs, and lacks what was
written since, too; unless it is new. Where the registry says none, nothing follows from that, nor from a dir
that is ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from millstream.storage.log_dir import LogDir
from millstream.storage.meta_properties import encode_uuid

log = logging.getLogger(__name__)

OnError = Callable[[LogDir, OSError], None]


def compare(
    dirs: Iterable[LogDir], known: Mapping[str, int], last: Collection[str], on_error: OnError
) -> bool:
    """Whether the broker worked in these dirs last; if it did not, it counts as one that lost records.

    `last` are the directory ids of those in which it did, as far as that is known.
    """
    are_current = True
    for directory_id, folder in _usable(dirs):
        fault = _fault(folder, directory_id, known, last)
        if fault and not folder.is_outdated:
            log.error(
                "the log dir %s %s."
                " Other replicas lead where they can, and what this one lacks is copied from them",
                folder.path,
                fault,
            )
        if fault:  # also where that was so before: it may have been answered for since
            try:
                folder.lost_records()
            except OSError as error:
                on_error(folder, error)
        folder.is_outdated = bool(fault)
        are_current = are_current and not fault
    return are_current


def _fault(folder: LogDir, directory_id: str, known: Mapping[str, int], last: Collection[str]) -> str:
    """Why the broker cannot have worked in a dir last; empty if it can."""
    expected = known.get(directory_id, 0)
    if folder.edition < expected:
        has = folder.edition
        return f"is an older copy, of edition {has}; the broker has worked in edition {expected} since"
    if last and directory_id not in last and (directory_id in known or not folder.is_new):
        return "was away, and the broker has worked without it since, in other dirs or on another machine"
    return ""


def begin(dirs: Iterable[LogDir], known: Mapping[str, int], now_ms: int, on_error: OnError) -> dict[str, int]:
    """A new edition of each dir; those that are in use, which the registry may know from now on.

    One that has no room for it keeps the number that it had.
    """
    begun: dict[str, int] = {}
    for directory_id, folder in _usable(dirs):
        number = max(folder.edition, known.get(directory_id, 0))
        try:
            folder.write_edition(max(number + 1, now_ms))
            number = folder.edition
        except OSError as error:
            on_error(folder, error)
        if not folder.has_failed:
            begun[directory_id] = number
    return begun


def _usable(dirs: Iterable[LogDir]) -> Iterator[tuple[str, LogDir]]:
    for folder in dirs:
        if not folder.has_failed and folder.meta is not None:
            yield encode_uuid(folder.meta.directory_id), folder
