"""Gathers records into batches and sends them, several partitions at once."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from millstream.client.deadline import Deadline
from millstream.client.metadata import Topic
from millstream.client.producing import Produced
from millstream.client.sender import Sender, partition_for_key
from millstream.errors import KafkaError, UnknownTopicOrPartition
from millstream.model import TopicPartition
from millstream.protocol.record import Record

BATCH_BYTES = 512 * 1024
BATCHES_IN_FLIGHT = 8
RECORD_OVERHEAD_BYTES = 24


@dataclass(slots=True)
class Written:
    """What has been acknowledged in one partition; offsets are -1 where the broker does not say."""

    count: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(slots=True)
class _Pending:
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0


class Batching:
    """Records with a key go where Java's client would put them; those without fill one partition's
    batch after the other, starting anywhere."""

    def __init__(self, sender: Sender, topic: Topic, *, timeout_ms: float) -> None:
        self._sender = sender
        self._topic = topic
        self._indexes = sorted(topic.partitions)
        self._timeout_ms = timeout_ms
        self._pending: dict[int, _Pending] = {}
        self._keyless = random.randrange(len(self._indexes))  # noqa: S311
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: KafkaError | None = None
        self.written: dict[int, Written] = {}

    @property
    def records_written(self) -> int:
        return sum(written.count for written in self.written.values())

    async def add(self, record: Record, partition: int | None) -> None:
        """Put a record into the batch of its partition; waits while too many batches are under way."""
        index = self._choose(record, partition)
        pending = self._pending.setdefault(index, _Pending())
        size = _size(record)
        if pending.records and pending.size_bytes + size > BATCH_BYTES:
            await self._send(index)
            index = self._choose(record, partition)
            pending = self._pending.setdefault(index, _Pending())
        pending.records.append(record)
        pending.size_bytes += size

    async def flush(self) -> None:
        """Send what has gathered."""
        for index in list(self._pending):
            await self._send(index)

    async def finish(self) -> None:
        """Send what has gathered and wait until all is acknowledged; the first error is raised."""
        await self.flush()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._raise_failure()

    async def cancel(self) -> None:
        """Give up what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _choose(self, record: Record, partition: int | None) -> int:
        if partition is not None:
            if partition not in self._topic.partitions:
                last = self._indexes[-1]
                raise UnknownTopicOrPartition(
                    f"topic {self._topic.name} has partitions 0 to {last}, not {partition}"
                )
            return partition
        if record.key is not None:
            return partition_for_key(record.key, len(self._indexes))
        return self._indexes[self._keyless]

    async def _send(self, index: int) -> None:
        pending = self._pending.pop(index, None)
        if pending is None:
            return
        while len(self._tasks) >= BATCHES_IN_FLIGHT:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()
        if index == self._indexes[self._keyless]:
            self._keyless = (self._keyless + 1) % len(self._indexes)
        task = asyncio.ensure_future(self._send_batch(index, pending.records))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, index: int, records: list[Record]) -> None:
        partition = TopicPartition(self._topic.name, index)
        try:
            produced = await self._sender.send(partition, records, Deadline(self._timeout_ms))
        except KafkaError as error:
            self._failure = self._failure or error
            return
        self._acknowledged(index, produced, len(records))

    def _acknowledged(self, index: int, produced: Produced, count: int) -> None:
        written = self.written.setdefault(index, Written())
        written.count += count
        if produced.base_offset >= 0:
            if written.first_offset < 0:
                written.first_offset = produced.base_offset
            written.last_offset = produced.base_offset + count - 1

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _size(record: Record) -> int:
    """About how many bytes a record takes in a batch."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size
