"""Write and read with aiokafka.

Start a broker with `millstream serve`, then run this program; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "aiokafka-quickstart"
COUNT = 10


async def write() -> None:
    """The topic comes to exist with its first record."""
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, enable_idempotence=True) as producer:
        for number in range(COUNT):
            await producer.send_and_wait(TOPIC, f"hello {number}".encode(), partition=0)
    print(f"wrote {COUNT} records")


async def read() -> None:
    async with AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        for _ in range(COUNT):
            record = await asyncio.wait_for(consumer.getone(), 10)
            print(f"{record.partition}:{record.offset} {record.value.decode()}")


async def main() -> None:
    await write()
    await read()


if __name__ == "__main__":
    asyncio.run(main())
