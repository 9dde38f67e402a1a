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

from millstream import AsyncConsumer, AsyncProducer
from millstream.client.serializers import json_decoder
from millstream.testing import Broker

TOPIC = "orders"
PARTITIONS = 4
ORDERS = 100_000
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


async def write_orders(bootstrap: str) -> None:
    """Orders of one city always go to the same partition, so they stay in order."""
    dice = random.Random(7)
    async with AsyncProducer(
        bootstrap, compression="lz4", key_serializer="str", serializer="json"
    ) as producer:
        for number in range(ORDERS):
            order = Order(number, dice.choice(CITIES), dice.randint(100, 20_000))
            await producer.room()
            producer.send(TOPIC, order, key=order.city)


async def read_orders(bootstrap: str) -> dict[str, Sales]:
    """Reads every partition from its start until all orders have come."""
    sales: dict[str, Sales] = defaultdict(Sales)
    seen = 0
    async with AsyncConsumer(
        bootstrap, offset_reset="earliest", deserializer=json_decoder(Order)
    ) as consumer:
        consumer.assign([(TOPIC, index) for index in range(PARTITIONS)])
        async for record in consumer:
            city = sales[record.value.city]
            city.orders += 1
            city.revenue += record.value.cents
            city.largest = max(city.largest, record.value.cents)
            seen += 1
            if seen == ORDERS:
                break
    return sales


async def stream(bootstrap: str) -> tuple[dict[str, Sales], float, float]:
    """Writes and reads; gives what was read and how long each took."""
    started = time.perf_counter()
    await write_orders(bootstrap)
    written = time.perf_counter()
    sales = await read_orders(bootstrap)
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
