"""Where a log is damaged: records are there, and cannot be read any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import KafkaError, KafkaStorageError
from millstream.protocol.batch import HEADER_SIZE, read_header
from millstream.storage.producer_state import ProducerState
from millstream.storage.recovery import good_batches
from millstream.storage.segment import Segment

if TYPE_CHECKING:
    from millstream.storage.log import Log

NOT_KNOWN: Final = 1 << 62
READ_BYTES: Final = 1 << 20


class DamagedLog(KafkaStorageError):
    """A batch that does not match its checksum, or what surrounds it."""

    def __init__(self, message: str, segment: Segment, position: int) -> None:
        super().__init__(message)
        self.segment = segment
        self.position = position


class Damage(NamedTuple):
    """What was met by somebody who wanted to read."""

    segment: Segment
    offset: int
    """What was asked for: the damage is there, or shortly before it."""
    position: int
    """Where in the segment's file the damage begins, or NOT_KNOWN."""


class Sound(NamedTuple):
    """The part of a log before a damage."""

    segment: Segment
    size: int
    """How much of the damaged segment is sound."""
    end_offset: int
    producers: ProducerState | None = None
    """What is known of producers there; None if that is to be found out."""


def sound_part(damage: Damage, upper_offset: int) -> Sound:
    """How much of the damaged segment can be kept. In a thread: it reads, from the index's last entry before.

    `upper_offset` is where the next segment begins.
    """
    segment = damage.segment
    size, end_offset = _sound_from(segment, damage, _begin(segment, damage), upper_offset)
    if size == 0:  # the index led to what is damaged itself
        size, end_offset = _sound_from(segment, damage, 0, upper_offset)
    return Sound(segment, size, end_offset)


def meet_damage(log: Log) -> None:
    """Read a log until something cannot be read, which the log notes. In a thread."""
    offset = log.start_offset
    try:
        while offset < log.end_offset:
            offset = max(log.read(offset, READ_BYTES).next_offset, offset + 1)
    except KafkaError:  # or records were deleted meanwhile
        pass


def _begin(segment: Segment, damage: Damage) -> int:
    try:
        position = segment.lookup(damage.offset - 1)[1]
    except OSError:
        return 0
    return position if 0 < position <= damage.position - HEADER_SIZE else 0


def _sound_from(segment: Segment, damage: Damage, position: int, upper_offset: int) -> tuple[int, int]:
    size, end_offset = 0, segment.base_offset
    try:
        if position:
            end_offset = read_header(segment.open().pread(HEADER_SIZE, position)).base_offset
        for at, header, _ in good_batches(segment, position, end_offset, upper_offset):
            if at >= damage.position:
                break
            size, end_offset = at + header.size, header.next_offset
    except OSError:  # what cannot be read is damaged
        pass
    return size, end_offset
