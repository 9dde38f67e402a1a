"""Sends the records of a command and counts where they were written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from millstream.client.producer import AsyncProducer
from millstream.client.producer_columns import Deliveries
from millstream.protocol.record import Header, Record

BATCH_BYTES = 128 * 1024
BUFFER_BYTES = 64 * 1024 * 1024
"""Also how large a record may be: what a topic takes, its brokers say."""
TRY_TIMEOUT_MS = 10_000
RECORD_OVERHEAD_BYTES = 24


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


@dataclass(slots=True)
class _Rows:
    """Records that were read and not sent yet, by the column."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    headers: list[tuple[Header, ...]] = field(default_factory=list)
    size_bytes: int = 0


class Batching:
    """Hands records to a producer, many at once; the first one that fails ends it.

    Those for a partition of their own are gathered apart from those whose partition the producer chooses.
    """

    def __init__(self, producer: AsyncProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._pending: dict[int | None, _Rows] = {}
        self._sent: deque[Deliveries] = deque()
        self.written: dict[int, Written] = {}

    @property
    def records_written(self) -> int:
        return sum(written.count for written in self.written.values())

    async def add(self, record: Record, partition: int | None) -> None:
        """Send a record soon; waits while too much is under way."""
        rows = self._pending.get(partition)
        if rows is None:
            rows = self._pending[partition] = _Rows()
        rows.values.append(record.value)
        rows.keys.append(record.key)
        rows.timestamps_ms.append(record.timestamp)
        rows.headers.append(record.headers)
        rows.size_bytes += RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
        if rows.size_bytes >= BATCH_BYTES:
            await self._send(partition)

    async def flush(self) -> None:
        """Send what has gathered."""
        for partition in list(self._pending):
            await self._send(partition)

    async def _send(self, partition: int | None) -> None:
        rows = self._pending.pop(partition)
        deliveries = await self._producer.send_batch(
            self._topic,
            rows.values,
            keys=rows.keys if any(key is not None for key in rows.keys) else None,
            partition=partition,
            timestamps_ms=rows.timestamps_ms,
            headers=rows.headers if any(rows.headers) else None,
        )
        self._sent.append(deliveries)
        while self._sent and self._sent[0].done():
            await self._acknowledged(self._sent.popleft())

    async def finish(self) -> None:
        """Send what has gathered and wait until all is acknowledged; the first error is raised."""
        await self.flush()
        while self._sent:
            await self._acknowledged(self._sent.popleft())

    async def _acknowledged(self, deliveries: Deliveries) -> None:
        """Count what was written, also where some of it was not."""
        try:
            await deliveries
        finally:
            for place in deliveries.written():
                written = self.written.setdefault(place.partition, Written())
                written.count += place.count
                if place.offset >= 0:
                    if written.first_offset < 0:
                        written.first_offset = place.offset
                    written.last_offset = place.offset + place.count - 1

    def count_rest(self) -> None:
        """After an error: count what was written behind it."""
        for deliveries in self._sent:
            for place in deliveries.written():
                self.written.setdefault(place.partition, Written()).count += place.count
