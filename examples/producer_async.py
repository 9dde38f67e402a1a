"""Write records from asyncio: many at once, with back-pressure, and some that are waited for.

Start a broker with `millstream serve`, then run this; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import asyncio
import sys

from millstream import AsyncProducer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC, COUNT = "producer-events", 50_000


async def main() -> None:
    async with AsyncProducer(BOOTSTRAP, serializer="str") as producer:
        for number in range(COUNT):
            await producer.room()  # waits only while the buffer is full
            producer.send(TOPIC, f"event {number}")
        await producer.flush()

        # Deliveries are awaitables: these ten travel together and are waited for together.
        places = await asyncio.gather(*(producer.send(TOPIC, f"last {n}", partition=0) for n in range(10)))
        offsets = [place.offset for place in places]
        print(f"wrote {COUNT} events, and {len(offsets)} more in a row: {offsets == sorted(offsets)}")


if __name__ == "__main__":
    asyncio.run(main())
