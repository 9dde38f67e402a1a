"""The time index of a segment: up to which offset no record is younger than a timestamp.

On disk (`.timeindex`): entries of 12 bytes, big-endian: int64 timestamp, int32 offset relative to
the segment's base offset. An entry says that no record up to and including that offset has a
larger timestamp; the offset is the last one of the batch that carries the timestamp. Timestamps
strictly grow, offsets too. The last entry of a segment that is no longer active, or was closed, is
its largest timestamp.
"""

from __future__ import annotations

from struct import Struct

from millstream.storage.sparse_index import SparseIndex


class TimeIndex(SparseIndex):
    """Largest timestamp so far → last offset (relative) of the batch that carries it."""

    ENTRY = Struct(">qi")

    __slots__ = ()
