"""What the tests of consumers share: topics with known records, and polls until enough has come."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from millstream.client.cluster import Cluster
from millstream.client.consumer import AsyncConsumer
from millstream.deadline import Deadline
from millstream.model import TopicPartition
from millstream.protocol.batch import Codec
from millstream.protocol.consumer_kernel import Record
from millstream.protocol.record import Record as Sent
from tests.client.logs import make_topic
from tests.client.raw import write

_numbers = itertools.count(1)
PATIENCE_S = 60.0


async def new_topic(bootstrap: str, partitions: int = 1, prefix: str = "consumed") -> str:
    """A topic of its own for a test."""
    return await make_topic(bootstrap, f"{prefix}-{next(_numbers)}", partitions)


async def fill(
    bootstrap: str,
    topic: str,
    partition: int = 0,
    values: Sequence[bytes | None] = (),
    *,
    start_ms: int = 1_000,
    codec: Codec = Codec.NONE,
) -> None:
    """Write values as one batch; record i has the time start_ms + i and the key b"k<i>"."""
    async with Cluster(bootstrap) as cluster:
        records = [
            Sent(value=value, key=b"k%d" % i, timestamp=start_ms + i, headers=(("n", b"%d" % i),))
            for i, value in enumerate(values)
        ]
        await write(cluster, TopicPartition(topic, partition), records, Deadline(30_000), codec)


def numbered(count: int, start: int = 0) -> list[bytes | None]:
    return [b"%d" % i for i in range(start, start + count)]


async def read(consumer: AsyncConsumer, count: int, **options: Any) -> list[Record]:
    """Poll until so many records have come."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await consumer.poll(timeout=0.5, **options)
    return records


async def until(
    is_so: Callable[[], bool], *consumers: AsyncConsumer, each: Callable[[], Awaitable[Any]] | None = None
) -> None:
    """Poll consumers until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.gather(*(consumer.poll(timeout=0.1) for consumer in consumers))
            if each is not None:
                await each()
