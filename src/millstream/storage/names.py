"""Names of a log's files: a base offset in 20 digits and what the file is.

`.deleted` marks a file that waits for its removal, `.cleaned` one that compaction is still writing,
`.swap` a finished one that is about to take the place of the originals. A folder `topic-partition`
is a log; with a `.{32 hex digits}-delete` at its end it waits for its removal, with a `-stray` it was set
aside because it belongs to another topic of the same name.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from millstream.model import TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
BESIDE: Final = ".tmp"
DELETE_FOLDER: Final = "-delete"
STRAY_FOLDER: Final = "-stray"

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
METADATA_FILE: Final = "partition.metadata"
BOOT_FILE: Final = ".millstream_boot"
CLEAN_FILE: Final = ".kafka_cleanshutdown"
EDITION_FILE: Final = ".millstream_edition"
LOCK_FILE: Final = ".lock"
LOGS_FILE: Final = ".millstream_logs"
META_FILE: Final = "meta.properties"
ROOM_FILE: Final = ".millstream_room"

_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
_MAX_FOLDER_NAME: Final = 255


def offset_name(offset: int, suffix: str) -> str:
    """A file's name: `00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int:
    """The offset at the head of a file's name; -1 if there is none."""
    digits = name[:20]
    return int(digits) if len(digits) == 20 and digits.isdigit() else -1


def parse_folder(name: str) -> TopicPartition | None:
    """The partition whose log a folder is, None if its name is not that of a live log."""
    match = _FOLDER.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def retired_folder(partition: TopicPartition, unique: UUID, suffix: str) -> str:
    """The name of a log's folder that is deleted or set aside: unique, and short enough for a file system."""
    tail = f"-{partition.partition}.{unique.hex}{suffix}"
    return partition.topic[: _MAX_FOLDER_NAME - len(tail)] + tail
