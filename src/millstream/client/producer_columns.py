"""Sends rows: whole batches, filled by the column, in the place of many single records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from millstream.client.batch_builder import Batch
from millstream.client.partitioners import PartitionFunction
from millstream.client.producer_buffer import BufferFull, RecordBuffer
from millstream.client.producer_delivery import Delivery, settled
from millstream.client.producer_line import Line
from millstream.client.producer_rows import ANYWHERE, Rows, choose, grouped
from millstream.client.producer_sender import Sender
from millstream.deadline import Deadline
from millstream.errors import MessageTooLarge, RequestTimedOut, UnknownTopicOrPartition
from millstream.protocol.client_kernel import BatchBuilder
from millstream.protocol.types import Buffer

ROWS_BATCH_BYTES = 1_000_000
"""Batches of rows are larger than those of single records: all that goes into them is there already. Brokers
take a little more than this, unless they are told otherwise."""

RUN_BYTES = 16_000_000
"""Chunks of a table are parted by partition together, until they have as much: the last batch of a partition
is seldom full."""


class DeliveredRange(NamedTuple):
    """Where a run of rows was written. The offset is -1 where no broker told it (acks=0)."""

    topic: str
    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # it hides tuple.count


class Deliveries:
    """Many records on their way, by the batch. Await them, or ask for their `result`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        """Whether all were written or failed."""
        return all(batch.is_done for batch in self._batches)

    def result(self, timeout: float | None = None) -> list[DeliveredRange]:
        """Where the rows were written, in the order of batches; the first error if some failed.

        This blocks the thread. In a coroutine, await the deliveries instead.
        """
        deadline = None if timeout is None else _now() + timeout
        for batch in self._batches:
            Delivery(batch, 0, -1).exception(None if deadline is None else max(0.0, deadline - _now()))
        return self._ranges()

    def __await__(self) -> Generator[Any, None, list[DeliveredRange]]:
        yield from settled(self._batches, FOREVER_SECONDS).__await__()
        return self._ranges()

    def add_done_callback(self, callback: Callable[[Deliveries], object]) -> None:
        """Call `callback` with these deliveries once all are done: at once, if they are.

        It runs in the producer's loop and must be quick.
        """
        for batch in self._batches:
            if not batch.is_done:
                Delivery(batch, 0, -1).add_done_callback(lambda _: self.add_done_callback(callback))
                return
        callback(self)

    def written(self) -> list[DeliveredRange]:
        """Where rows were written by now, whatever becomes or became of the others."""
        done = [leaf for batch in self._batches for leaf in batch.leaves if leaf.is_done]
        return self._places([batch for batch in done if batch.error is None])

    def _ranges(self) -> list[DeliveredRange]:
        return self._places([leaf for batch in self._batches for leaf in batch.leaves])

    @staticmethod
    def _places(written: list[Batch]) -> list[DeliveredRange]:
        firsts = [(batch.delivered(0, -1), batch.count) for batch in written]
        return [DeliveredRange(each.topic, each.partition, each.offset, count) for each, count in firsts]


FOREVER_SECONDS = 1e9
"""A batch has a deadline of its own."""


def _now() -> float:
    import time

    return time.monotonic()


class _Piece(NamedTuple):
    """Some of the rows of a part: from `start` to `stop`, of `order` if that is given."""

    rows: Rows
    order: Buffer | None
    start: int
    stop: int


def _runs(parts: Iterable[Rows]) -> Iterator[list[Rows]]:
    """Parts, so many at a time as have RUN_BYTES. The last one's size is not asked for: to find it may take
    as long as sending."""
    run: list[Rows] = []
    held_bytes = 0
    for rows in parts:
        if run:
            held_bytes += run[-1].nbytes
            if held_bytes >= RUN_BYTES:
                yield run
                run, held_bytes = [], 0
        run.append(rows)
    if run:
        yield run


class RowSender:
    """Fills batches from rows, waiting for room before each."""

    def __init__(
        self,
        buffer: RecordBuffer,
        sender: Sender,
        *,
        batch_bytes: int,
        function: PartitionFunction | None,
        now_ms: Callable[[], int],
        check_open: Callable[[], object],
    ) -> None:
        self._buffer = buffer
        self._sender = sender
        self._batch_bytes = batch_bytes
        self._function = function
        self._now_ms = now_ms
        self._check_open = check_open

    async def send(
        self, topic: str, parts: Iterable[Rows], partition: int | None, deadline: Deadline
    ) -> Deliveries:
        batches: list[Batch] = []
        await self._sender.known(topic, deadline)
        place = self._buffer.topics[topic]
        if partition is not None:
            self._check(topic, partition, place.count)
        for run in _runs(parts):
            for index, pieces in (await self._pieces(run, topic, place.count, partition)).items():
                self._check(topic, max(index, 0), place.count)  # it may have been made anew, with fewer
                line = None if index == ANYWHERE else place.lines[index]
                for builder in self._filled(pieces):
                    batches.append(await self._begin(builder, line, topic, deadline))
                    await asyncio.sleep(0)
        return Deliveries(batches)

    async def _pieces(
        self, run: list[Rows], topic: str, count: int, partition: int | None
    ) -> dict[int, list[_Piece]]:
        """The rows of a run for each partition, in their order; ANYWHERE for those that may go anywhere."""
        found: dict[int, list[_Piece]] = {}
        for rows in run:
            await asyncio.sleep(0)
            chosen = None if partition is not None else choose(rows, topic, count, self._function)
            if chosen is None:
                index = ANYWHERE if partition is None else partition
                found.setdefault(index, []).append(_Piece(rows, None, 0, rows.count))
                continue
            try:
                order, starts = grouped(chosen, count)
            except ValueError:  # one is out of range; say which, and what there is
                for index in sorted(set(chosen) - {ANYWHERE}):
                    self._check(topic, index, count)
                raise
            for index in range(ANYWHERE, count):
                start, stop = starts[index + 1], starts[index + 2]
                if start < stop:
                    found.setdefault(index, []).append(_Piece(rows, order, start, stop))
        return found

    @staticmethod
    def _check(topic: str, partition: int, count: int) -> None:
        if not 0 <= partition < count:
            raise UnknownTopicOrPartition(f"topic {topic} has partitions 0 to {count - 1}, not {partition}")

    def _filled(self, pieces: list[_Piece]) -> Iterator[BatchBuilder]:
        """Rows as batches that are as full as they will be."""
        builder = None
        for rows, order, start, stop in pieces:
            while start < stop:
                if builder is None:
                    builder = BatchBuilder(self._batch_bytes, self._batch_bytes)
                start = rows.fill(builder, order, start, stop, self._now_ms())
                if start < stop:
                    yield builder
                    builder = None
        if builder is not None:
            yield builder

    async def _begin(self, builder: BatchBuilder, line: Line | None, topic: str, deadline: Deadline) -> Batch:
        """Have a batch sent, as soon as there is room for it."""
        buffer = self._buffer
        if builder.size > buffer.max_record_bytes:
            raise MessageTooLarge(
                f"a record of {builder.size} bytes is larger than max_request_bytes, "
                f"{buffer.max_record_bytes}"
            )
        builder.close()  # rows for one of many partitions fill a small part of it
        while True:
            await self._room(builder.size, deadline)
            with buffer.lock:
                self._check_open()  # the transaction may have ended while there was no room
                target = line if line is not None else buffer.stick(buffer.topics[topic])
                try:
                    batch = buffer.begin(target, builder, reserved_bytes=builder.size)
                except BufferFull:
                    continue  # another thread was faster
                target.open = None  # it is as full as it will be
                return batch

    async def _room(self, more_bytes: int, deadline: Deadline) -> None:
        buffer = self._buffer
        while not buffer.has_room(more_bytes):
            if deadline.has_passed:
                raise RequestTimedOut(f"there was no room for more records in {deadline.timeout_ms:.0f} ms")
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sender.on_room(partial(_settle, room), more_bytes)
            await asyncio.wait([room], timeout=deadline.remaining_ms / 1000)


def _settle(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
