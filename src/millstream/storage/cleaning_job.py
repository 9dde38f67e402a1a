"""What one round of compaction is to do, and what it did: values that another process can be given."""

from __future__ import annotations

import msgspec

from millstream.storage.transaction_index import AbortedTransaction


class CleaningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A round of compaction of one log, without the log."""

    folder: str
    segments: list[tuple[int, int]]
    """Base offset and size of all segments below `end_offset`."""
    first_dirty_offset: int
    end_offset: int
    """Where the first segment that is left alone starts."""
    aborted: list[AbortedTransaction]
    """The aborted transactions of these segments."""
    last_offsets: list[int]
    """Where the last batches of the producers end."""
    begun_offsets: list[int]
    """Where the first batches of leader epochs end."""
    marker_epochs: dict[int, int]
    """The epochs of producers of whom only a marker is known."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """How large the table of keys may become."""
    load_factor: float
    secret: bytes
    """What keys are hashed with: 16 bytes."""
    chunk_bytes: int
    """How much is read at a time."""

    @property
    def read_bytes(self) -> int:
        """How much there is to read, at most."""
        return 2 * sum(size for _, size in self.segments)


class Scanned(msgspec.Struct, frozen=True):
    """The keys are known."""

    cleaned_until: int
    """How far the log will be clean."""
    groups: list[list[int]]
    """The segments to write anew, by base offset, in runs that become one each."""
    read_bytes: int


class Rewritten(msgspec.Struct, frozen=True):
    """A run of segments was written anew."""

    base_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    records_read: int
    records_kept: int
    read_bytes: int
