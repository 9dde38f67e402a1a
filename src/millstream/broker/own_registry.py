"""The folder of a SQLite registry: beside a broker's logs, where the configuration names no other place."""

from __future__ import annotations

import os
from collections.abc import Sequence

from millstream.registry.choice import FILE_NAME
from millstream.storage.meta_properties import WrongLogDir
from millstream.storage.names import META_FILE


def registry_folder(log_dirs: Sequence[str], named: str = "") -> str:
    """Where the registry is, or a new one may be made.

    That is the folder that is `named`, else the first log dir that has a registry, in whatever order they are
    named, and the first of all if all are new. WrongLogDir if there is none though there are logs, or may be:
    a new one would know none of them.
    """
    places = [named] if named else log_dirs
    unreadable = []
    for folder in places:
        try:
            if _has(folder, FILE_NAME):
                return folder
        except OSError as error:
            unreadable.append(str(error))
    if unreadable:
        raise WrongLogDir(
            f"there may be a registry that cannot be seen: {'; '.join(unreadable)}. See to the disk,"
            " or name the place of the registry with registry=..."
        )
    for folder in log_dirs:
        if os.path.exists(os.path.join(folder, META_FILE)):
            where = f"not in {named}" if named else "in none of the log dirs"
            back = "" if named else ", put it back into log.dirs"
            raise WrongLogDir(
                f"{folder} belongs to a cluster whose registry is {where}: mount the one that"
                f" holds {FILE_NAME}{back}, or name the registry with registry=...;"
                " if it is lost, so are the topics: put a copy of it back, or give the broker empty folders"
            )
    return places[0]


def _has(folder: str, name: str) -> bool:
    """Whether there is such a file; OSError if that cannot be seen, as on a disk that failed."""
    try:
        os.stat(os.path.join(folder, name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
