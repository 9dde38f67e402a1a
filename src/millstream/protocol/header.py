"""A record batch's header, what its attributes mean, and what can be wrong with a batch."""

from __future__ import annotations

from typing import NamedTuple

HEADER_SIZE = 61

CODEC_MASK = 7
LOG_APPEND_TIME = 8
TRANSACTIONAL = 16
CONTROL = 32
DELETE_HORIZON = 64

GOOD = 0
TRUNCATED = 1
BAD_LENGTH = 2
BAD_MAGIC = 3
BAD_CRC = 4
BAD_OFFSET = 5
BAD_RECORD = 6
BAD_COUNT = 7
BAD_OFFSET_DELTA = 8

REASONS = (
    "good",
    "the bytes end within a batch",
    "the batch's length is below that of its header",
    "the batch's magic is not 2",
    "the batch does not match its checksum",
    "the batch's offsets do not follow those before it",
    "a record is not well formed",
    "the batch does not hold as many records as it says",
    "the records' offsets are not consecutive",
)
"""What each error kind means, by number."""


class BatchHeader(NamedTuple):
    """The fields of a batch's header. `size` is that of the whole batch: 12 + its length field."""

    base_offset: int = 0
    size: int = HEADER_SIZE
    leader_epoch: int = -1
    magic: int = 2
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 0  # type: ignore[assignment]  # it hides tuple.count

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, -1 if there is none: after 2^31 - 1 comes 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp is the time at which tombstones and markers may go (KIP-534)."""
        return self.attributes & DELETE_HORIZON != 0


class Scan(NamedTuple):
    """What a walk over batches found.

    `position` is that after the last whole good batch, `error` says why it ended there (GOOD if at
    the end). The others speak of the good batches only; offsets and timestamp are -1 if there are
    none. `max_timestamp_offset` is the last offset of the first batch with the largest timestamp.
    """

    position: int
    error: int
    batches: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int

    @property
    def reason(self) -> str:
        return REASONS[self.error]


class Walk(NamedTuple):
    """What a walk over a batch's records found.

    `error` and `bad_index` name the first bad record (GOOD, -1). `max_timestamp_delta` is the offset
    delta of the first record with the largest timestamp; `null_keys` counts records without a key.
    """

    error: int
    bad_index: int
    min_timestamp: int
    max_timestamp: int
    max_timestamp_delta: int
    null_keys: int

    @property
    def reason(self) -> str:
        return REASONS[self.error]
