"""Finding out at a start whether records are gone that were committed: the logs are held against the list of
logs and the high watermarks that were written down. What is torn or damaged in a log itself, recovery finds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import NamedTuple

from millstream.model import TopicPartition
from millstream.storage.log_dir import LogDir

log = logging.getLogger(__name__)

NAMED = 10
"""How many of the folders that are gone are named."""


class LoadedDir(NamedTuple):
    """A log dir that could be read."""

    folder: LogDir
    partitions: set[TopicPartition]
    """Those whose logs are in it."""
    committed: dict[TopicPartition, int]
    """Up to where was committed what it held before, but for deleted logs."""
    noted: Collection[TopicPartition]
    """The logs that it had before."""


def loaded_dir(
    folder: LogDir,
    partitions: set[TopicPartition],
    watermarks: Mapping[TopicPartition, int],
    deleted: Iterable[str],
    noted: Collection[TopicPartition],
) -> LoadedDir:
    """`deleted` are the names of folders that wait for their removal."""
    retired = {name.rpartition(".")[0] for name in deleted}
    committed = {one: offset for one, offset in watermarks.items() if str(one) not in retired}
    return LoadedDir(folder, partitions, committed, noted)


def look_for_lost(
    loaded: LoadedDir, end_offset: Callable[[TopicPartition], int], there: Container[TopicPartition]
) -> list[str]:
    """Hold the logs against what was noted and committed of them, where nothing can have been lost.

    `end_offset` says up to where a partition is there, in whatever dir: zero if it is not. The folders of
    logs that are gone.
    """
    folder = loaded.folder
    missed = [str(one) for one in loaded.noted if one not in there] if folder.kept_all else []
    if missed:
        first = ", ".join(missed[:NAMED])
        log.error("%d folders of logs are gone from %s, such as %s", len(missed), folder.path, first)
        folder.lost_records()
    for partition, offset in loaded.committed.items() if folder.kept_all else ():
        if end_offset(partition) < offset:
            log.error("%s was committed up to %d, and is not there that far", partition, offset)
            folder.lost_records()
    return missed
