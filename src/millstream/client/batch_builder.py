"""One record batch of a producer, from its first record to the broker's answer."""

from __future__ import annotations

import struct

from millstream.client.producer_delivery import NO_OFFSET, Delivered, Outcome, fresh_error
from millstream.errors import KafkaError
from millstream.protocol.batch import seal
from millstream.protocol.client_kernel import BatchBuilder
from millstream.protocol.compression import Codec, compress
from millstream.protocol.header import HEADER_SIZE, TRANSACTIONAL

UNNUMBERED = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")


class Batch(Outcome):
    """Records of one partition.

    It is open while `records` takes more, then sealed (compressed, once) and stamped with who sends it and
    its sequence (again, where the producer starts anew). `number` orders the batches of a partition.

    `is_in_doubt` says that it was sent and no answer came: it may have been written. Until a broker has
    answered, it may be sent again only as what it was: with the same producer, epoch and sequence.
    """

    __slots__ = (
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "count",
        "created_at",
        "data",
        "error",
        "is_in_doubt",
        "last_error",
        "log_append_time_ms",
        "number",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "reserved_bytes",
        "span",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        number: float,
        builder: BatchBuilder,
        reserved_bytes: int,
        now: float,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.number = number
        self.builder = builder
        self.reserved_bytes = reserved_bytes
        self.created_at = now
        self.data: bytearray | None = None
        self.count = 0
        self.attempts = 0
        self.is_in_doubt = False
        self.last_error: KafkaError | None = None
        """Why it is to be sent again."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = UNNUMBERED
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = -1
        self.error: Exception | None = None
        self.span = 1.0
        """How far it is to the next number, for those that stand in its place."""
        self.parts: list[Batch] = []

    @property
    def size(self) -> int:
        """How many records it has."""
        return self.count or self.builder.count

    @property
    def leaves(self) -> list[Batch]:
        """Itself, or those that stand in its place."""
        return [leaf for part in self.parts for leaf in part.leaves] if self.parts else [self]

    def packed(self, codec: Codec, level: int | None) -> bytearray:
        """Close it and compress its records; the batch but for its stamp. May run in another thread."""
        builder = self.builder
        self.count = builder.count
        data = builder.take()
        if codec:
            packed = compress(codec, memoryview(data)[HEADER_SIZE:], level)
            data = bytearray(HEADER_SIZE)
            data += packed
        return data

    def stamp(self, codec: Codec, *, is_transactional: bool) -> bytearray:
        """Write the header of a sealed batch, with its producer and sequence, and its checksum."""
        data = self.data
        if data is None:
            raise RuntimeError("a batch is sealed before it is stamped")
        builder = self.builder
        _HEADER.pack_into(
            data,
            0,
            0,
            len(data) - 12,
            -1,
            2,
            0,
            codec | (TRANSACTIONAL if is_transactional else 0),
            self.count - 1,
            builder.base_timestamp,
            builder.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )
        seal(memoryview(data))
        return data

    def forget_sequence(self) -> None:
        """Let it be sent as if it never had been: it is known not to have been written."""
        self.base_sequence = UNNUMBERED
        self.is_in_doubt = False

    def become(self, parts: list[Batch]) -> None:
        """Let others stand in its place: it is done when they are."""
        self.parts = parts
        self.data = None
        for part in parts:
            part.add_waiter(self._settle_with_parts)

    def _settle_with_parts(self) -> None:
        if all(part.is_done for part in self.parts):
            self.settle()

    def written(self, base_offset: int, log_append_time_ms: int) -> None:
        self.base_offset, self.log_append_time_ms = base_offset, log_append_time_ms
        self.data = None
        self.settle()

    def failed(self, error: Exception) -> None:
        self.error = error
        self.data = None
        self.settle()

    def delivered(self, index: int, timestamp_ms: int) -> Delivered:
        for part in self.parts:
            if index < part.size:
                return part.delivered(index, timestamp_ms)
            index -= part.size
        if self.error is not None:
            raise fresh_error(self.error)
        return Delivered(
            self.topic,
            self.partition,
            self.base_offset + index if self.base_offset >= 0 else NO_OFFSET,
            self.log_append_time_ms if self.log_append_time_ms >= 0 else timestamp_ms,
        )
