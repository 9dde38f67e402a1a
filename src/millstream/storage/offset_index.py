"""The offset index of a segment: where in the log a record batch starts.

On disk (`.index`): entries of 8 bytes, big-endian: int32 last offset of a batch, relative to the
segment's base offset; int32 position of that batch in the `.log` file. Both strictly grow. About
one batch in every `index.interval.bytes` has an entry.
"""

from __future__ import annotations

from struct import Struct

from millstream.storage.sparse_index import SparseIndex


class OffsetIndex(SparseIndex):
    """Last offset of a batch (relative) → its position."""

    ENTRY = Struct(">ii")

    __slots__ = ()
