"""`millstream perf consume`: how many records a second one consumer reads."""

from __future__ import annotations

import time

import click

from millstream.cli.options import client_options, complete_topics
from millstream.cli.perf_meter import Meter

POLL_RECORDS = 1000
QUIET_SECONDS = 2.0


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--records", type=click.IntRange(min=1), help="Stop after so many; all that are there.")
@click.option("--arrow", "by_columns", is_flag=True, help="By the column, as Arrow record batches.")
@client_options
def consume(
    topic: str,
    records: int | None,
    by_columns: bool,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Read TOPIC from its beginning and say how fast."""
    from millstream import Consumer

    with Consumer(bootstrap, client_id="millstream-perf", offset_reset="earliest") as consumer:
        partitions = consumer.partitions_of(topic, timeout_ms / 1000)
        starts = consumer.beginning_offsets(partitions, timeout_ms / 1000)
        ends = consumer.end_offsets(partitions, timeout_ms / 1000)
        there = sum(ends[each] - starts[each] for each in partitions)
        wanted = there if records is None else min(records, there)
        consumer.assign(partitions)
        meter = Meter("read")
        heard_at = time.monotonic()
        while meter.records < wanted:
            if by_columns:
                batch = consumer.poll_arrow()
                count, size = batch.num_rows, batch.column("value").nbytes
            else:
                found = consumer.poll(POLL_RECORDS)
                count = len(found)
                size = sum(len(record.value) for record in found if record.value is not None)
            meter.add(count, size)
            if count:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > QUIET_SECONDS:
                break  # offsets without records: markers of transactions, or what compaction left out
        meter.finish(topic, as_json)
