"""What a task does: read one slice of a partition, the next fetch on its way while Spark takes the last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.client.cluster import BACKOFF_MS, MAX_BACKOFF_MS
from millstream.client.errors import NoSuchTopic
from millstream.client.fetch_session import FetchLimits
from millstream.client.offsets import EARLIEST, LATEST, list_offsets
from millstream.deadline import Deadline
from millstream.errors import (
    BadRecords,
    CorruptMessage,
    KafkaError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.columns import Columns
from millstream.protocol.header import GOOD, REASONS, TRUNCATED
from millstream.protocol.kernel import scan_batches
from millstream.protocol.plain_columns import fetched_columns
from millstream.streams.reading.errors import NoRecords, lost
from millstream.streams.reading.fetching import Fetched, fetch
from millstream.streams.reading.link import Link, link_for
from millstream.streams.reading.schema import HEADERS, arrow_schema
from millstream.streams.reading.settings import SourceSettings
from millstream.streams.reading.slices import Slice

if TYPE_CHECKING:
    import pyarrow

MAX_COLUMN_BYTES = 16 * 1024 * 1024
"""Compressed batches may become much more than was fetched: of these, so much at a time."""

HEARSAY_MS = 2_000
"""How long brokers may tell of a topic that was there before another of its name."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches as they came, checked; reading goes on at `next_offset`."""

    records: memoryview
    next_offset: int
    aborted: list[tuple[int, int]] | None


def read_slice(settings: SourceSettings, piece: Slice) -> Iterator[pyarrow.RecordBatch]:
    """The records of a slice. It ends when the position reaches the slice's end, whether or not the last
    offsets hold records: markers of transactions, compaction and aborted records leave gaps.
    """
    from millstream.streams.reading.arrow import SparkColumns

    schema = arrow_schema(settings.columns)
    with_headers = HEADERS in settings.columns
    maker = SparkColumns(schema, piece.topic, piece.partition)
    position = piece.start
    with link_for(settings) as link:
        fetcher = SliceFetcher(settings, piece, link)
        ahead = fetcher.begin(position)
        while position < piece.end:
            chunk = ahead.result()
            if chunk.next_offset < piece.end:
                ahead = fetcher.begin(chunk.next_offset)
            while position < min(chunk.next_offset, piece.end) and len(chunk.records):
                columns = _columns(chunk, position, piece, with_headers)
                position = columns.next_offset
                if len(columns):
                    batch = maker.batch(columns, piece.end)
                    if batch.num_rows:
                        yield batch
            position = chunk.next_offset


def _columns(chunk: Chunk, position: int, piece: Slice, with_headers: bool) -> Columns:
    from pyarrow import allocate_buffer  # not zeroed: for large values that is a third of the work

    try:
        return fetched_columns(
            chunk.records,
            position,
            chunk.next_offset,
            chunk.aborted,
            with_headers=with_headers,
            max_column_bytes=MAX_COLUMN_BYTES,
            room=allocate_buffer,
        )
    except CorruptMessage as error:
        raise BadRecords(f"{piece.topic}-{piece.partition}, {error.message}") from None


class SliceFetcher:
    """Fetches from one partition, on the loop of a link."""

    def __init__(self, settings: SourceSettings, piece: Slice, link: Link) -> None:
        self._settings = settings
        self._piece = piece
        self._partition = TopicPartition(piece.topic, piece.partition)
        self._limits = FetchLimits(
            max_wait_ms=settings.max_wait_ms,
            max_bytes=settings.max_fetch_bytes,
            partition_max_bytes=settings.max_fetch_bytes,
        )
        self._cluster = link.cluster
        self._loop = link.thread.loop

    def begin(self, position: int) -> Future[Chunk]:
        """Begin to fetch from an offset on."""
        return asyncio.run_coroutine_threadsafe(self._next(position), self._loop)

    async def _next(self, position: int) -> Chunk:
        """The next batches, however long leaders move and brokers restart, within the poll time-out."""
        deadline = Deadline(self._settings.poll_timeout_ms)
        pause_ms, last = float(BACKOFF_MS), "no records came"
        while not deadline.has_passed:
            try:
                chunk = await self._try(position, deadline)
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._cluster.forget(self._piece.topic)
                last = error.message
                await asyncio.sleep(min(pause_ms, deadline.remaining_ms) / 1000)
                pause_ms = min(2 * pause_ms, MAX_BACKOFF_MS)
                continue
            if chunk is not None:
                return chunk
        if not self._settings.fail_on_data_loss and await self._is_over(position):
            return self._skip(position, self._piece.end, "the partition ends before them now")
        raise NoRecords(
            f"{self._partition}: nothing could be read from offset {position} on (of {self._piece.end}) in "
            f"{self._settings.poll_timeout_ms} ms, {last}: see to the brokers, or raise "
            "kafkaConsumer.pollTimeoutMs"
        )

    async def _is_over(self, position: int) -> bool:
        """Whether the brokers say that there is no record from an offset on: it is not they who are away."""
        try:
            found = await list_offsets(
                self._cluster, {self._partition: LATEST}, Deadline(self._settings.request_timeout_ms)
            )
        except NoSuchTopic:
            return True
        except KafkaError:
            return False
        return found[self._partition].offset <= position

    async def _try(self, position: int, deadline: Deadline) -> Chunk | None:
        partition, settings = self._partition, self._settings
        try:
            leader = await self._cluster.leader(*partition, deadline)
            if self._is_another():
                if not await self._stays_another(deadline):
                    return None
                return self._skip(position, self._piece.end, "the topic was deleted and made anew")
            answers = await fetch(
                self._cluster,
                leader.id,
                {partition: position},
                deadline,
                limits=self._limits,
                isolation_level=settings.isolation,
            )
        except (NoSuchTopic, UnknownTopicOrPartition) as error:
            if not isinstance(error, NoSuchTopic):
                raise
            return self._skip(position, self._piece.end, "the topic is gone")
        fetched = answers[0]
        if isinstance(fetched.error, OffsetOutOfRange):
            return await self._out_of_range(position, deadline)
        if fetched.error is not None:
            raise fetched.error
        return self._checked(fetched, position)

    def _is_another(self) -> bool:
        """Whether the topic of that name is another than the one whose offsets are to be read.

        A fetch asks for the topic by the id that is looked at here, so it is never answered by another one.
        """
        now = self._cluster.metadata.topics[self._piece.topic].id
        return self._piece.topic_id is not None and now != NO_UUID and str(now) != self._piece.topic_id

    async def _stays_another(self, deadline: Deadline) -> bool:
        """Whether it is so for good: what this process or a broker knows may be of before the topic."""
        patience = Deadline(HEARSAY_MS)
        while self._is_another():
            if patience.has_passed or deadline.has_passed:
                return True
            await asyncio.sleep(BACKOFF_MS / 1000)
            self._cluster.forget(self._piece.topic)
            await self._cluster.leader(*self._partition, deadline)
        return False

    def _checked(self, fetched: Fetched, position: int) -> Chunk | None:
        view = memoryview(fetched.records)
        if not len(view):
            return None
        scan = scan_batches(view, 0, len(view), self._settings.checks_crcs)
        if not scan.batches:
            if scan.error in (GOOD, TRUNCATED):
                return None
            raise BadRecords(f"{self._partition} at offset {position}: {REASONS[scan.error]}")
        aborted = fetched.aborted if self._settings.isolation else None
        return Chunk(view[: scan.position], max(position, scan.last_offset + 1), aborted)

    async def _out_of_range(self, position: int, deadline: Deadline) -> Chunk | None:
        """Where the partition begins and ends now decides what was lost."""
        piece, partition = self._piece, self._partition
        first = (await list_offsets(self._cluster, {partition: EARLIEST}, deadline))[partition].offset
        if position < first:
            if piece.is_new and position == piece.start:
                return Chunk(memoryview(b""), min(first, piece.end), None)
            upto = min(first, piece.end)
            return self._skip(position, upto, f"the partition begins at offset {first} now")
        last = (await list_offsets(self._cluster, {partition: LATEST}, deadline))[partition].offset
        if position > last:
            return self._skip(position, piece.end, f"the partition ends at offset {last} now")
        return None

    def _skip(self, position: int, upto: int, why: str) -> Chunk:
        lost(self._partition, position, upto, why, self._settings.fail_on_data_loss)
        return Chunk(memoryview(b""), upto, None)
