"""Kafka's checkpoint files: small text files that are replaced as a whole.

Offsets (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint`, `cleaner-offset-checkpoint`) lie in a log dir: a line with the
version (0), a line with the number of entries, then one `topic partition offset` per line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.errors import MillstreamError
from millstream.model import TopicPartition
from millstream.storage.disk import Disk

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

_VERSION: Final = "0"


class BadCheckpoint(MillstreamError):
    """A checkpoint file that does not have its format."""


def format_checkpoint(rows: list[str]) -> bytes:
    """The bytes of a checkpoint file with these entries, one per line."""
    return "\n".join((_VERSION, str(len(rows)), *rows, "")).encode()


def parse_checkpoint(data: bytes, columns: int) -> list[list[str]]:
    """The entries of a checkpoint file, each split into its columns; BadCheckpoint if it is none."""
    try:
        version, count, *lines = data.decode().splitlines()
        rows = [line.rsplit(" ", columns - 1) for line in lines]
        if version != _VERSION or int(count) != len(rows) or any(len(row) != columns for row in rows):
            raise ValueError("counts differ")
    except ValueError as error:
        raise BadCheckpoint(f"not a checkpoint file: {error}") from error
    return rows


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint file; none if it does not exist."""
    try:
        rows = parse_checkpoint(disk.read_file(path), 3)
        return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except FileNotFoundError:
        return {}
    except (ValueError, BadCheckpoint) as error:
        raise BadCheckpoint(f"{path}: {error}") from error


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint file, old or new even after a power loss."""
    rows = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    disk.replace_file(path, format_checkpoint(rows))
