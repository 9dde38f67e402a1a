"""`millstream consume`: records on standard output."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import BinaryIO

import click

from millstream.cli.offset_range import Span, parse_offset_range, resolve
from millstream.cli.options import client_options, complete_topics
from millstream.cli.output import forget_stdout
from millstream.cli.progress import Progress
from millstream.cli.record_format import Format, format_named
from millstream.cli.session import CLIENT_ID, with_admin
from millstream.cli.span_reader import SpanReader
from millstream.client.admin import AsyncAdmin
from millstream.client.consumer import AsyncConsumer
from millstream.client.record import ReadBatch
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition

POLL_SECONDS = 1.0
BOUNDED_POLL_SECONDS = 0.1
"""Behind the last record there may be offsets without records, which no poll tells of."""
FETCH_MAX_BYTES = 8 * 1024 * 1024
PARTITION_MAX_BYTES = 2 * 1024 * 1024


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "-o",
    "--offset",
    "offset",
    default=None,
    metavar="RANGE",
    help="start, end, N, +N, -N, N:M, :end, @TIME or @TIME:TIME. Default: end, or start with --exit.",
)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Only this one; may be repeated."
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("-e", "--exit", "at_end_exit", is_flag=True, help="Stop at the present end instead of waiting.")
@click.option(
    "-f",
    "--format",
    "format_text",
    metavar="FORMAT",
    help="json, value, text, or percent signs. Default: text on a terminal, json elsewhere.",
)
@click.option("--read-committed", is_flag=True, help="Leave out records of open and aborted transactions.")
@click.option("--output", "-O", type=click.File("wb"), metavar="FILE", help="Write to a file.")
@client_options
def consume(
    topics: tuple[str, ...],
    offset: str | None,
    partitions: tuple[int, ...],
    count: int | None,
    at_end_exit: bool,
    format_text: str | None,
    read_committed: bool,
    output: BinaryIO | None,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Read records of topics, from any offset or time, and follow what comes.

    \b
    Ranges (-o):  start  end  :end   the first record; what comes from now on; all there is now
                  +10  -10           10 after the start; the last 10 of each partition
                  100  100:200       from an offset on; up to an offset, not included
                  @-1h  @2026-05-31  from an hour ago on; from a time on (UTC)
                  @-2h:-1h  @-5m:end between two times; the last five minutes up to now
    Formats (-f): %k %v %K %V        key, value, their lengths
                  %t %p %o %d %i     topic, partition, offset, timestamp, number of the record
                  %h{%k=%v } %H      each header; how many
                  %e %a %x %y        leader epoch, compression, producer id, producer epoch
                  {hex} {base64} {json} behind a text, {big32} and so on behind a number,
                  %d{%Y-%m-%d %H:%M:%S}, \\n \\t \\0 \\xHH, %%

    \b
    Examples:
      millstream consume orders
      millstream consume orders -o -10 --exit
      millstream consume orders -o @-1h:end -f '%o %k %v\\n'
      millstream consume orders -o start --exit -f json > orders.jsonl
    """
    if as_json and format_text not in (None, "json"):
        raise click.UsageError("--json and -f do not go together")
    name = "json" if as_json else format_text
    if name is None:
        name = "text" if output is None and sys.stdout.isatty() else "json"
    try:
        text = offset or ("start" if at_end_exit else "end")
        wanted = parse_offset_range(text, time.time_ns() // 1_000_000)
        shown = format_named(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    target = output or sys.stdout.buffer

    async def work(admin: AsyncAdmin, deadline: Deadline) -> None:
        chosen = await _partitions(admin, topics, partitions, deadline)
        spans = await resolve(admin, chosen, wanted, deadline, only_committed=read_committed)
        reading = _Reading(spans, at_end_exit, count, shown, target)
        async with AsyncConsumer(
            bootstrap,
            client_id=CLIENT_ID,
            offset_reset="none",
            isolation_level="read_committed" if read_committed else "read_uncommitted",
            fetch_max_bytes=FETCH_MAX_BYTES,
            partition_max_bytes=PARTITION_MAX_BYTES,
            request_timeout_ms=timeout_ms,
        ) as consumer:
            await reading.run(SpanReader(consumer, {each: span.start for each, span in spans.items()}))

    try:
        with_admin(bootstrap, timeout_ms, work)
    except KeyboardInterrupt:
        pass  # the usual end of following a topic
    except BrokenPipeError:
        forget_stdout()
        return
    target.flush()


async def _partitions(
    admin: AsyncAdmin, topics: tuple[str, ...], wanted: tuple[int, ...], deadline: Deadline
) -> list[TopicPartition]:
    """The partitions to read, which must exist; leaders that are missing are waited for later."""
    chosen = []
    for name in topics:
        topic = await admin.describe_topic(name, deadline.remaining)
        for index in wanted or topic.partitions:
            try:
                chosen.append(TopicPartition(name, topic.known(index).index))
            except KafkaError as error:
                raise click.ClickException(str(error)) from None
    return chosen


@dataclass(slots=True)
class _Reading:
    """Prints what a reader brings until every partition is at its stop."""

    spans: dict[TopicPartition, Span]
    at_end_exit: bool
    count: int | None
    shown: Format
    target: BinaryIO

    async def run(self, reader: SpanReader) -> None:
        stops = {partition: self._stop(span) for partition, span in self.spans.items()}
        total = sum(max(0, stop - self.spans[p].start) for p, stop in stops.items() if stop is not None)
        is_bounded = all(stop is not None for stop in stops.values())
        printed = 0
        self._drop_finished(reader, stops)
        with Progress(
            "reading", total if is_bounded else None, "records", quiet=self._is_terminal()
        ) as progress:
            while reader.positions:
                batches = await reader.poll(BOUNDED_POLL_SECONDS if is_bounded else POLL_SECONDS)
                before = printed
                for batch in batches:
                    printed = self._print(batch, stops[batch.partition], printed)
                    if self.count is not None and printed >= self.count:
                        return
                if printed > before:
                    progress.advance(printed - before)
                    self.target.flush()
                self._drop_finished(reader, stops)

    def _stop(self, span: Span) -> int | None:
        """A range that ends in the future is waited for, unless the present end is enough."""
        if self.at_end_exit:
            return span.end if span.stop is None else min(span.stop, span.end)
        return span.stop

    def _print(self, batch: ReadBatch, stop: int | None, printed: int) -> int:
        lines = []
        for record in batch.records:
            if stop is not None and record.offset >= stop:
                break
            if self.count is not None and printed >= self.count:
                break
            printed += 1
            lines.append(self.shown(batch, record, printed))
        self.target.write(b"".join(lines))
        return printed

    def _drop_finished(self, reader: SpanReader, stops: dict[TopicPartition, int | None]) -> None:
        reader.drop(
            partition
            for partition, stop in stops.items()
            if stop is not None and reader.positions.get(partition, -1) >= stop
        )

    def _is_terminal(self) -> bool:
        return self.target is sys.stdout.buffer and sys.stdout.isatty()
