"""A walk over the batches of a segment for compaction: read in chunks, judged and taken by the kernel.

Most batches never meet Python: the kernel takes a chunk at a time, without the interpreter's lock, and
stops only before what it leaves to its caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from millstream.errors import MillstreamError
from millstream.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from millstream.protocol.header import GOOD, REASONS, TRUNCATED
from millstream.protocol.walk_kernel import CALLER, FULL
from millstream.storage.segment import Segment

_BATCHES_AT_ONCE: Final = 8
_LENGTH: Final = Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12


class Piece(NamedTuple):
    """A little work that was done."""

    moved_bytes: int
    """What was read or written."""
    locked: int = 0
    """How many batches were taken one by one, under the interpreter's lock."""


class Uncleanable(MillstreamError):
    """Batches that are damaged or cannot be read: the log cannot be compacted while they are there."""


class Taker(Protocol):
    """What the batches of a walk are given to."""

    @property
    def stop(self) -> int:
        """Why `take_many` stopped."""
        ...

    def take_many(self, chunk: memoryview, start: int) -> int:
        """Take batches from `start` on; the position at which it stopped."""
        ...

    def take_one(self, batch: memoryview, header: BatchHeader) -> bool:
        """Take a good batch that `take_many` left; false if the walk is to end."""
        ...

    def make_room(self) -> bool:
        """Make room for what comes after FULL; false if the walk is to end."""
        ...


def walk(segment: Segment, position: int, taker: Taker, chunk_bytes: int) -> Iterator[Piece]:
    """Give a segment's batches from a position on to `taker`; yields what was done, piece by piece."""
    want_bytes = chunk_bytes
    taken = 0
    while position < segment.size:
        try:
            chunk = segment.open().pread(min(want_bytes, segment.size - position), position)
        except OSError as error:
            raise Uncleanable(f"{segment.path} cannot be read at byte {position}: {error}") from error
        want_bytes = chunk_bytes
        at = 0
        while True:
            at = taker.take_many(chunk, at)
            if taker.stop == CALLER:
                header = read_header(chunk, at)
                if not taker.take_one(chunk[at : at + header.size], header):
                    return
                at += header.size
                taken += 1
                if taken == _BATCHES_AT_ONCE:
                    yield Piece(0, taken)
                    taken = 0
            elif taker.stop != FULL:
                break
            elif not taker.make_room():
                return
        if taker.stop == TRUNCATED and at == 0 and chunk:
            want_bytes = _size_of_batch(chunk)
            if not len(chunk) < want_bytes <= segment.size - position:
                raise _damaged(segment, position, taker.stop)
        elif taker.stop not in (GOOD, TRUNCATED) or not chunk:
            raise _damaged(segment, position + at, taker.stop or TRUNCATED)
        position += at
        yield Piece(at, taken)
        taken = 0


def _damaged(segment: Segment, position: int, error: int) -> Uncleanable:
    return Uncleanable(f"{segment.path} is damaged at byte {position}: {REASONS[error]}")


def _size_of_batch(chunk: memoryview) -> int:
    if len(chunk) < HEADER_SIZE:
        return -1
    size: int = _LENGTH.unpack_from(chunk, _LENGTH_AT)[0] + _LENGTH_END
    return size
