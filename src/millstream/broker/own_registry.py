"""The registry that lies beside a broker's logs, where the configuration names no other place."""

from __future__ import annotations

import os
from collections.abc import Sequence

from millstream.registry.choice import FILE_NAME
from millstream.storage.meta_properties import WrongLogDir
from millstream.storage.names import META_FILE


def registry_folder(log_dirs: Sequence[str]) -> str:
    """The first log dir that has a registry, in whatever order they are named; the first one if all are new.

    WrongLogDir if there is none beside logs that were made with one: a new one would know none of them.
    """
    for folder in log_dirs:
        if os.path.exists(os.path.join(folder, FILE_NAME)):
            return folder
    for folder in log_dirs:
        if os.path.exists(os.path.join(folder, META_FILE)):
            raise WrongLogDir(
                f"{folder} belongs to a cluster whose registry is in none of the log dirs: mount the one that"
                f" holds {FILE_NAME}, put it back into log.dirs, or name the registry with registry=...;"
                " if it is lost, so are the topics: put a copy of it back, or give the broker empty folders"
            )
    return log_dirs[0]
