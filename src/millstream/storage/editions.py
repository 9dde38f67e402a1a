"""Editions of log dirs: how an older copy, such as a backup that was put back, is told from the dir itself.

Every dir holds the number of its edition, and so does the cluster's registry, for each directory id. A new
edition begins at every start, before the broker takes part in anything, and at every clean stop: first in the
dir, durably, and only then in the registry. So the dir is never behind the registry, whenever the process is
killed; one that is behind is not the dir in which the broker worked last, and lacks what was written since.

A dir that the registry does not know says nothing, nor does one that is ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from millstream.storage.log_dir import LogDir
from millstream.storage.meta_properties import encode_uuid

log = logging.getLogger(__name__)

OnError = Callable[[LogDir, OSError], None]


def compare(dirs: Iterable[LogDir], known: Mapping[str, int], on_error: OnError) -> None:
    """Find the dirs that are older copies: their broker counts as one that lost records."""
    for directory_id, folder in _usable(dirs):
        expected = known.get(directory_id, 0)
        if folder.edition < expected and not folder.is_outdated:
            log.error(
                "the log dir %s is an older copy, of edition %d; the broker has worked in edition %d since."
                " Other replicas lead where they can, and what this one lacks is copied from them",
                folder.path,
                folder.edition,
                expected,
            )
            folder.is_outdated = True
            try:
                folder.lost_records()
            except OSError as error:
                on_error(folder, error)


def begin(dirs: Iterable[LogDir], known: Mapping[str, int], on_error: OnError) -> dict[str, int]:
    """A new edition of each dir; those that could be written, which the registry may know from now on."""
    begun: dict[str, int] = {}
    for directory_id, folder in _usable(dirs):
        number = max(folder.edition, known.get(directory_id, 0)) + 1
        try:
            folder.write_edition(number)
        except OSError as error:
            on_error(folder, error)
        else:
            begun[directory_id] = number
    return begun


def _usable(dirs: Iterable[LogDir]) -> Iterator[tuple[str, LogDir]]:
    for folder in dirs:
        if not folder.has_failed and folder.meta is not None:
            yield encode_uuid(folder.meta.directory_id), folder
