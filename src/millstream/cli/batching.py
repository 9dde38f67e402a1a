"""Sends the records of a command and counts where they were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.client.producer import AsyncProducer
from millstream.client.producer_delivery import Delivery
from millstream.protocol.record import Record

BATCH_BYTES = 128 * 1024
BUFFER_BYTES = 64 * 1024 * 1024
"""Also how large a record may be: what a topic takes, its brokers say."""
TRY_TIMEOUT_MS = 10_000


@dataclass(slots=True)
class Written:
    """What has been acknowledged in one partition; offsets are -1 where the broker does not say."""

    count: int = 0
    first_offset: int = -1
    last_offset: int = -1


def producer_for(bootstrap: str, timeout_ms: int, **options: Any) -> AsyncProducer:
    """A producer for a command: large batches, and one deadline for whatever takes long."""
    return AsyncProducer(
        bootstrap,
        batch_bytes=BATCH_BYTES,
        max_request_bytes=BUFFER_BYTES,
        buffer_bytes=BUFFER_BYTES,
        request_timeout_ms=min(timeout_ms, TRY_TIMEOUT_MS),
        delivery_timeout_ms=max(timeout_ms, 10),
        max_block_ms=timeout_ms,
        **options,
    )


class Batching:
    """Hands records to a producer; the first one that fails ends it."""

    def __init__(self, producer: AsyncProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._failure: Exception | None = None
        self.written: dict[int, Written] = {}

    @property
    def records_written(self) -> int:
        return sum(written.count for written in self.written.values())

    async def add(self, record: Record, partition: int | None) -> None:
        """Send a record soon; waits while too much is under way."""
        await self._producer.room()
        self._raise_failure()
        delivery = self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            partition=partition,
            timestamp_ms=record.timestamp,
            headers=record.headers,
        )
        delivery.add_done_callback(self._acknowledged)

    async def finish(self) -> None:
        """Wait until all is acknowledged; the first error is raised."""
        await self._producer.flush()
        self._raise_failure()

    def _acknowledged(self, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self._failure = self._failure or error
            return
        place = delivery.result()
        written = self.written.get(place.partition)
        if written is None:
            written = self.written[place.partition] = Written()
        written.count += 1
        if place.offset >= 0:
            if written.first_offset < 0:
                written.first_offset = place.offset
            written.last_offset = place.offset

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
