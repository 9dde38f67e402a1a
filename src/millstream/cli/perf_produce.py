"""`millstream perf produce`: how many records a second a cluster takes from one producer."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.options import client_options, complete_topics
from millstream.cli.perf_meter import Meter

if TYPE_CHECKING:
    from millstream import Deliveries, Delivery, Producer

SAMPLE_EVERY = 100
ROWS = 10_000
MIXED_VALUES = 1000
ACKS: dict[str, Any] = {"all": "all", "1": 1, "0": 0}


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--records", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option(
    "-s", "--size", type=click.IntRange(min=0), default=100, show_default=True, help="Bytes of a value."
)
@click.option("-r", "--rate", type=click.FloatRange(min=0, min_open=True), help="Records a second, at most.")
@click.option("--rows", "by_rows", is_flag=True, help=f"{ROWS:,} records at a time, by the column.")
@click.option(
    "-a",
    "--acks",
    type=click.Choice(list(ACKS)),
    default="all",
    show_default=True,
    help="Who must have it.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option("--linger-ms", type=click.FloatRange(min=0), default=5.0, show_default=True)
@click.option("--batch-bytes", type=click.IntRange(min=1), default=65536, show_default=True)
@client_options
def produce(
    topic: str,
    records: int,
    size: int,
    rate: float | None,
    by_rows: bool,
    acks: Any,
    compression: Any,
    linger_ms: float,
    batch_bytes: int,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Write RECORDS to TOPIC and say how fast, and how long acknowledgements took.

    Half of a value's bytes are random, so that compression has something to do.
    """
    from millstream import Producer

    values = [_value(size) for _ in range(MIXED_VALUES)]
    with Producer(
        bootstrap,
        client_id="millstream-perf",
        acks=ACKS[acks],
        compression=compression,
        linger_ms=linger_ms,
        batch_bytes=batch_bytes,
        max_block_ms=timeout_ms,
    ) as producer:
        producer.send(topic, values[0]).result(timeout_ms / 1000)
        meter = Meter("wrote")
        failures: list[Exception] = []
        if by_rows:
            _send_rows(producer, topic, values, records, rate, meter, failures)
        else:
            _send(producer, topic, values, records, rate, meter, failures)
        producer.flush(timeout_ms / 1000)
        if failures:
            raise failures[0]
        meter.finish(topic, as_json, acks=acks, compression=compression)


def _value(size: int) -> bytes:
    return os.urandom(size // 2) + b"x" * (size - size // 2)


def _send(
    producer: Producer,
    topic: str,
    values: list[bytes],
    records: int,
    rate: float | None,
    meter: Meter,
    failures: list[Exception],
) -> None:
    started = time.perf_counter()
    size = len(values[0])
    batch: object = None
    for number in range(records):
        delivery = producer.send(topic, values[number % MIXED_VALUES])
        if delivery.outcome is not batch:  # the records of a batch are written, or fail, together
            batch = delivery.outcome
            delivery.add_done_callback(partial(_check, failures))
        if not number % SAMPLE_EVERY:
            delivery.add_done_callback(partial(_sample, meter, time.perf_counter()))
            meter.add(min(SAMPLE_EVERY, records - number), min(SAMPLE_EVERY, records - number) * size)
            if failures:
                raise failures[0]
        if rate is not None:
            _pace(started + number / rate)


def _sample(meter: Meter, sent_at: float, delivery: Delivery) -> None:
    if delivery.exception() is None:
        meter.samples.append(time.perf_counter() - sent_at)


def _check(failures: list[Exception], delivery: Delivery) -> None:
    error = delivery.exception()
    if error is not None:
        failures.append(error)


def _check_all(failures: list[Exception], deliveries: Deliveries) -> None:
    try:
        deliveries.result(0)
    except Exception as error:
        failures.append(error)


def _send_rows(
    producer: Producer,
    topic: str,
    values: list[bytes],
    records: int,
    rate: float | None,
    meter: Meter,
    failures: list[Exception],
) -> None:
    started = time.perf_counter()
    rows = values * (ROWS // len(values))
    done = 0
    while done < records:
        part = rows[: records - done]
        producer.send_batch(topic, part).add_done_callback(partial(_check_all, failures))
        done += len(part)
        meter.add(len(part), len(part) * len(values[0]))
        if rate is not None:
            _pace(started + done / rate)


def _pace(due_at: float) -> None:
    left = due_at - time.perf_counter()
    if left > 0.001:
        time.sleep(left)
