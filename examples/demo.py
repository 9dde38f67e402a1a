"""A broker, a topic, a stream of orders, and what came of it, in one process; `make demo` runs it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.client.reader import Reader
from millstream.client.sender import Sender, partition_for_key
from millstream.model import TopicPartition
from millstream.protocol.compression import Codec
from millstream.protocol.record import Record
from millstream.testing import Broker

TOPIC = "orders"
PARTITIONS = 4
ORDERS = 100_000
BATCH = 2_000
CITIES = ["Lisbon", "Nairobi", "Osaka", "Quito", "Tallinn", "Tunis"]


@dataclass
class Sales:
    """What one city has bought."""

    orders: int = 0
    revenue: int = 0
    largest: int = 0


class Order(msgspec.Struct):
    """One order, as it lies in a record's value."""

    number: int
    city: str
    cents: int


async def write_orders(cluster: Cluster) -> None:
    """Orders of one city always go to the same partition, so they stay in order."""
    dice = random.Random(7)
    sender = Sender(cluster, codec=Codec.LZ4)
    await sender.start(Deadline(10_000))
    for start in range(0, ORDERS, BATCH):
        batches: dict[int, list[Record]] = defaultdict(list)
        for number in range(start, start + BATCH):
            order = Order(number, dice.choice(CITIES), dice.randint(100, 20_000))
            key, value = order.city.encode(), msgspec.json.encode(order)
            record = Record(key=key, value=value, timestamp=time.time_ns() // 1_000_000)
            batches[partition_for_key(key, PARTITIONS)].append(record)
        await asyncio.gather(
            *(
                sender.send(TopicPartition(TOPIC, index), records, Deadline(10_000))
                for index, records in batches.items()
            )
        )


async def read_orders(cluster: Cluster) -> dict[str, Sales]:
    """Reads every partition from its start until all orders have come."""
    sales: dict[str, Sales] = defaultdict(Sales)
    seen = 0
    decode = msgspec.json.Decoder(Order).decode
    async with Reader(cluster, {TopicPartition(TOPIC, index): 0 for index in range(PARTITIONS)}) as reader:
        while seen < ORDERS:
            for batch in await reader.poll(10_000):
                seen += len(batch.records)
                for record in batch.records:
                    order = decode(record.value or b"")
                    city = sales[order.city]
                    city.orders += 1
                    city.revenue += order.cents
                    city.largest = max(city.largest, order.cents)
    return sales


async def stream(bootstrap: str) -> tuple[dict[str, Sales], float, float]:
    """Writes and reads; gives what was read and how long each took."""
    async with Cluster(bootstrap) as cluster:
        started = time.perf_counter()
        await write_orders(cluster)
        written = time.perf_counter()
        sales = await read_orders(cluster)
        return sales, written - started, time.perf_counter() - written


def show(console: Console, sales: dict[str, Sales]) -> None:
    table = Table("city", title="orders by city", title_justify="left")
    for name in ("orders", "revenue", "largest"):
        table.add_column(name, justify="right")
    for city, sold in sorted(sales.items()):
        table.add_row(city, f"{sold.orders:,}", f"{sold.revenue / 100:,.2f}", f"{sold.largest / 100:,.2f}")
    table.add_section()
    total = sum(sold.revenue for sold in sales.values())
    table.add_row("all", f"{sum(sold.orders for sold in sales.values()):,}", f"{total / 100:,.2f}", "")
    console.print(table)


def main() -> None:
    console = Console(highlight=False)
    started = time.perf_counter()
    with Broker() as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        ready_ms = (time.perf_counter() - started) * 1000
        console.print(f"A broker on {broker.bootstrap}, with a topic called {TOPIC}, in {ready_ms:.0f} ms.")
        console.print("Any Kafka client can talk to it. This program writes orders and adds them up:")
        sales, write_s, read_s = asyncio.run(stream(broker.bootstrap))
        show(console, sales)
        console.print(
            f"{ORDERS:,} orders made and written in {write_s:.1f} s ({ORDERS / write_s:,.0f}/s), "
            f"read and added up in {read_s:.1f} s ({ORDERS / read_s:,.0f}/s)."
        )
    console.print("The broker has stopped. Run your own with [bold]millstream serve[/bold].")


if __name__ == "__main__":
    main()
