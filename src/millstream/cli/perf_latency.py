"""`millstream perf latency`: how long it takes until a record is acknowledged, and until it is read."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from millstream.cli.options import client_options, complete_topics
from millstream.cli.output import print_json
from millstream.cli.perf_meter import Meter, summary_ms
from millstream.cli.session import run

if TYPE_CHECKING:
    from millstream import Delivery

STAMP_BYTES = 8


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--records", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option(
    "-s",
    "--size",
    type=click.IntRange(min=STAMP_BYTES),
    default=100,
    show_default=True,
    help="Bytes of a value.",
)
@click.option("-r", "--rate", type=click.FloatRange(min=0, min_open=True), default=1000.0, show_default=True)
@client_options
def latency(
    topic: str, records: int, size: int, rate: float, bootstrap: str, timeout_ms: int, as_json: bool
) -> None:
    """Send RECORDS to TOPIC at a steady RATE, read them, and say how long they were on their way.

    To partition 0, without lingering, acknowledged by all in-sync replicas.
    """
    acknowledged, read = run(_measure(bootstrap, topic, records, size, rate, timeout_ms / 1000))
    figures = {"acknowledged": summary_ms(acknowledged), "read": summary_ms(read)}
    if as_json:
        print_json({"topic": topic, "records": records, "latency_ms": figures})
        return
    for name, times in figures.items():
        shown = ", ".join(f"{percent} {value:g}" for percent, value in times.items())
        click.echo(f"{name} after, in ms: {shown}")


async def _measure(
    bootstrap: str, topic: str, records: int, size: int, rate: float, timeout: float
) -> tuple[list[float], list[float]]:
    from millstream import AsyncConsumer, AsyncProducer

    acknowledged: list[float] = []
    meter = Meter("read")
    read = meter.samples
    padding = bytes(size - STAMP_BYTES)

    async with (
        AsyncProducer(bootstrap, client_id="millstream-perf", linger_ms=0) as producer,
        AsyncConsumer(bootstrap, client_id="millstream-perf", fetch_max_wait_ms=500) as consumer,
    ):
        first = await producer.send(topic, bytes(size), partition=0)
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), first.offset + 1)

        def answered(sent_at: float, delivery: Delivery) -> None:
            if delivery.exception() is None:
                acknowledged.append(time.perf_counter() - sent_at)

        async def send() -> None:
            started = time.perf_counter()
            for number in range(records):
                left = started + number / rate - time.perf_counter()
                if left > 0:
                    await asyncio.sleep(left)
                now = time.perf_counter()
                value = int(now * 1e9).to_bytes(STAMP_BYTES, "big") + padding
                producer.send(topic, value, partition=0).add_done_callback(partial(answered, now))
            await producer.flush(timeout)

        async def receive() -> None:
            while len(read) < records:
                found = await consumer.poll(500, 1.0)
                now = time.perf_counter()
                read.extend(now - int.from_bytes(each.value[:STAMP_BYTES], "big") / 1e9 for each in found)
                meter.add(len(found), len(found) * size)

        async with asyncio.timeout(timeout + records / rate):
            await asyncio.gather(send(), receive())
    meter.clear_line()
    return acknowledged, read
