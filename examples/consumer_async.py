"""Read with asyncio from a point in time on, without a group.

Start a broker with `millstream serve`, then run this; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import asyncio
import sys

from millstream import AsyncAdmin, AsyncConsumer, AsyncProducer
from millstream.errors import TopicAlreadyExists

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "async-readings"
NOON_MS = 1_700_000_000_000


async def write() -> None:
    async with AsyncAdmin(BOOTSTRAP) as admin:
        try:
            await admin.create_topic(TOPIC, partitions=1)
        except TopicAlreadyExists:
            pass
    async with AsyncProducer(BOOTSTRAP, serializer="str") as producer:
        for minute in range(60):
            await producer.send(TOPIC, f"{20 + minute / 10:.1f} °C", timestamp_ms=NOON_MS + minute * 60_000)


async def read() -> None:
    async with AsyncConsumer(BOOTSTRAP, deserializer="str") as consumer:
        consumer.assign(await consumer.partitions_of(TOPIC))
        consumer.seek_to_time(NOON_MS + 55 * 60_000)
        async for record in consumer:
            minute = (record.timestamp_ms - NOON_MS) // 60_000
            print(f"12:{minute:02} {record.value}")
            if minute == 59:
                break


async def main() -> None:
    await write()
    await read()


if __name__ == "__main__":
    asyncio.run(main())
