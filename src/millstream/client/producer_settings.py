"""The settings of a producer, by their Python names, with Kafka's defaults where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from millstream.client.partitioners import Partitioner
from millstream.client.serializers import Format, Serializer
from millstream.protocol.compression import Codec

Acks = Literal["all", -1, 0, 1]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

ACKS_ALL = -1
MAX_IN_FLIGHT_IDEMPOTENT = 5
"""A broker remembers so many batches of a producer: what it would recognise when it is sent again."""


LEVELS = {Codec.GZIP: (-1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
"""From the fastest to the smallest, as Kafka has them."""


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of Producer and AsyncProducer; ProducerSettings says what they mean."""

    client_id: str
    acks: Acks
    idempotent: bool | None
    transactional_id: str | None
    transaction_timeout_ms: int
    linger_ms: float
    batch_bytes: int
    max_request_bytes: int
    buffer_bytes: int
    compression: Compression
    compression_level: int | None
    partitioner: Partitioner
    serializer: Format | Serializer | None
    key_serializer: Format | Serializer | None
    max_in_flight: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    max_block_ms: int
    retries: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    auto_create_topics: bool


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """`linger_ms`: how long a batch that is not full waits for more records.
    `delivery_timeout_ms`: from `send` to success or error, all tries included.
    `max_block_ms`: how long `send` of a blocking producer waits for room or for a topic to be known.
    `idempotent`: on with acks=all unless turned off.
    `max_in_flight`: requests to a broker, and batches of a partition, without an answer; a producer that is
    not idempotent sends one batch of a partition at a time, so that order is kept in any case.
    """

    client_id: str = "millstream"
    acks: Acks = "all"
    idempotent: bool | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    linger_ms: float = 5
    batch_bytes: int = 64 * 1024
    max_request_bytes: int = 1024 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    compression: Compression = "none"
    compression_level: int | None = None
    partitioner: Partitioner = "sticky"
    serializer: Format | Serializer | None = None
    key_serializer: Format | Serializer | None = None
    max_in_flight: int = MAX_IN_FLIGHT_IDEMPOTENT
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    retries: int = 2**31 - 1
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1000
    auto_create_topics: bool = True

    def __post_init__(self) -> None:
        if self.acks not in ("all", -1, 0, 1):
            raise ValueError(f"acks is 'all', 1 or 0, not {self.acks!r}")
        if self.compression.upper() not in Codec.__members__:
            raise ValueError(f"compression is none, gzip, snappy, lz4 or zstd, not {self.compression!r}")
        if self.compression_level is not None:
            least, most = LEVELS.get(self.codec, (1, 0))
            if not least <= self.compression_level <= most:
                allowed = f"{least} to {most}" if least <= most else "not given"
                raise ValueError(f"with {self.compression}, compression_level is {allowed}")
        if self.is_idempotent and self.acks not in ("all", -1):
            raise ValueError("an idempotent or transactional producer needs acks='all'")
        if self.transactional_id is not None and not self.is_idempotent:
            raise ValueError("a transactional producer is idempotent")
        most = MAX_IN_FLIGHT_IDEMPOTENT if self.is_idempotent else 1000
        if not 1 <= self.max_in_flight <= most:
            raise ValueError(f"max_in_flight is 1 to {most}, not {self.max_in_flight}")
        if self.batch_bytes < 0 or self.linger_ms < 0 or self.retries < 0:
            raise ValueError("batch_bytes, linger_ms and retries are not negative")
        if self.retry_backoff_ms < 0 or self.retry_backoff_max_ms < 0:
            raise ValueError("retry_backoff_ms and retry_backoff_max_ms are not negative")
        if min(self.request_timeout_ms, self.max_block_ms, self.transaction_timeout_ms) <= 0:
            raise ValueError("request_timeout_ms, max_block_ms and transaction_timeout_ms are more than 0")
        if self.transactional_id is not None and not self.transactional_id:
            raise ValueError("transactional_id is a name, or None for a producer without transactions")
        if self.batch_bytes > self.max_request_bytes or self.max_request_bytes > self.buffer_bytes:
            raise ValueError("batch_bytes <= max_request_bytes <= buffer_bytes must hold")
        if self.delivery_timeout_ms <= self.linger_ms:
            raise ValueError("delivery_timeout_ms is more than linger_ms")

    @property
    def is_idempotent(self) -> bool:
        if self.idempotent is None:
            return self.acks in ("all", -1)
        return self.idempotent

    @property
    def acks_code(self) -> int:
        return ACKS_ALL if self.acks == "all" else self.acks

    @property
    def try_timeout_ms(self) -> int:
        """How long one request may take."""
        return min(self.request_timeout_ms, self.delivery_timeout_ms)

    @property
    def codec(self) -> Codec:
        return Codec[self.compression.upper()]
