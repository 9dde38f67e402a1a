"""Writes records to a cluster, from asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from millstream.client.cluster import Cluster
from millstream.client.face import Closed
from millstream.client.partitioners import function_of
from millstream.client.producer_buffer import Headers, RecordBuffer
from millstream.client.producer_columns import ROWS_BATCH_BYTES, Deliveries, RowSender
from millstream.client.producer_coordinator import TransactionCoordinator
from millstream.client.producer_delivery import Delivery, settled
from millstream.client.producer_identity import Identity
from millstream.client.producer_rows import ListRows, Rows, arrow_rows
from millstream.client.producer_sender import Sender
from millstream.client.producer_settings import ProducerOptions, ProducerSettings
from millstream.client.producer_transactions import TransactionalFace
from millstream.client.serializers import Serializer, serializer_of
from millstream.client.transactions_client import Transactions
from millstream.client.unclosed import MustClose
from millstream.clock import Clock, SystemClock
from millstream.deadline import Deadline
from millstream.errors import RequestTimedOut
from millstream.model import TopicPartition
from millstream.protocol.client_kernel import now_ms

if TYPE_CHECKING:
    import pyarrow as pa

CLOSE_SECONDS = 30.0


class AsyncProducer(TransactionalFace, MustClose):
    """Writes records, in order and each once.

        async with AsyncProducer("localhost:9092") as producer:
            delivered = await producer.send("orders", b"tea", key=b"42")

    `send` takes a record and returns at once; records travel in batches. Awaiting what it returns waits
    until the record is written. A program that sends many awaits `room` between them instead, and `flush` at
    the end:

            for value in values:
                await producer.room()
                producer.send("orders", value)
            await producer.flush()

    Belongs to the event loop in which it was started. ProducerSettings describes the options.
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.settings = settings = ProducerSettings(**options)
        self._clock = clock or SystemClock()
        self._random = random or Random()  # noqa: S311 - spreads records, keeps no secret
        self._serialize = serializer_of(settings.serializer)
        self._serialize_key = serializer_of(settings.key_serializer)
        self._partition_function = function_of(settings.partitioner)
        self._buffer = RecordBuffer(
            settings,
            now_ms=now_ms if clock is None else clock.now_ms,
            monotonic=self._monotonic,
            random=self._random,
            partition_function=self._partition_function,
        )
        self._append: Callable[..., Delivery] = self._refuse
        self._has_room: asyncio.Future[None] | None = None
        self._cluster = Cluster(
            bootstrap,
            client_id=settings.client_id,
            request_timeout_ms=settings.try_timeout_ms,
            random=self._random,
        )
        self._identity = Identity()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: Sender | None = None
        self._is_closed = False

    def _monotonic(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0

    @property
    def _sender(self) -> Sender:
        if self._is_closed or self._running is None:
            raise self._why_not()
        return self._running

    def _check_running(self) -> None:
        if self._is_closed or self._running is None:
            raise self._why_not()

    def _why_not(self) -> Exception:
        if self._is_closed:
            return Closed("the producer is closed")
        return RuntimeError("start the producer: `async with AsyncProducer(...)`, or `await start()`")

    # ---------------------------------------------------------------- life

    async def start(self) -> Self:
        """Begin to work on the running loop.

        Nothing has to be reachable yet, except for a transactional producer: it takes its id, and what an
        earlier owner left open is aborted.
        """
        if self._is_closed:
            raise Closed("the producer is closed")
        if self._running is None:
            self._loop = asyncio.get_running_loop()
            self._has_room = self._loop.create_future()
            self._has_room.set_result(None)
            self._holds()
            self._running = sender = Sender(self._cluster, self._buffer, self.settings, self._identity)
            self._buffer.on_work = sender.wake
            if self.settings.transactional_id is not None:
                await self._start_transactions(sender, self.settings.transactional_id)
                self._append = self._append_in_transaction
            else:
                self._append = self._buffer.append
        return self

    async def _start_transactions(self, sender: Sender, transactional_id: str) -> None:
        coordinator = TransactionCoordinator(
            self._cluster, transactional_id, self.settings.transaction_timeout_ms, self._identity
        )
        transactions = Transactions(coordinator, self._buffer, wake=sender.wake, flush=self.flush)
        try:
            await transactions.init(Deadline(self.settings.max_block_ms))
        except BaseException:
            await self.close()
            raise
        sender.may_send = transactions.may_send
        sender.max_produce_version = transactions.max_produce_version
        sender.answers.on_refused = transactions.on_refused
        sender.answers.may_retry = transactions.may_retry
        self._transactions = transactions

    def _let_go(self) -> None:
        self._cluster.abandon()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what was sent, for at most `timeout` seconds, then let go of everything.

        What was not written by then fails with Closed; with 0 nothing more is sent.
        """
        if self._is_closed:
            return
        self._released()
        deadline = Deadline(timeout * 1000)
        try:
            if self._running is not None and timeout > 0:
                await self._abort_at_the_end(deadline)
                await self.flush(deadline.remaining_ms / 1000)
        except RequestTimedOut:
            pass  # each delivery says so
        finally:
            sender, self._is_closed = self._running, True
            self._append = self._refuse
            try:
                if sender is not None:
                    await sender.close(Closed("the producer was closed before the record was written"))
            finally:
                await self._cluster.close()

    # ---------------------------------------------------------------- records

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Take a record and send it soon; await the delivery to know where it was written.

        Raises BufferFull if records come faster than brokers take them: await `room` before.
        """
        if self._serialize is not None and value is not None:
            value = self._serialize(value)
        if self._serialize_key is not None and key is not None:
            key = self._serialize_key(key)
        return self._append(topic, key, value, partition, timestamp_ms, headers)

    def _refuse(self, *_: Any) -> Delivery:
        """Stands where records are taken, before the start and after the end."""
        raise self._why_not()

    def _append_in_transaction(self, *record: Any) -> Delivery:
        self._open_transactions.check_open()
        return self._buffer.append(*record)

    def room(self, timeout: float | None = None) -> Awaitable[None]:
        """Wait until the buffer has room for more records, letting the sender work meanwhile.

        There is nothing to wait for most of the time: await it before each record.
        """
        buffer = self._buffer
        if not buffer.has_full and buffer.has_room() and self._has_room is not None:
            return self._has_room
        return self._wait_for_room(timeout)

    async def _wait_for_room(self, timeout: float | None) -> None:
        buffer = self._buffer
        if buffer.has_room():
            buffer.has_full = False
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        room = loop.create_future()
        self._sender.on_room(lambda: None if room.done() else room.set_result(None))
        await _within(room, self._block_seconds(timeout), "there was no room for more records")

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were sent are written or have failed; do not linger."""
        sender = self._sender
        seconds = self.settings.delivery_timeout_ms / 1000 if timeout is None else timeout
        sender.flushes += 1
        sender.wake()
        deadline = Deadline(seconds * 1000)
        try:
            waiting = [place.unplaced for place in list(self._buffer.topics.values()) if place.aside]
            await settled(waiting, seconds)
            await settled(list(self._buffer.incomplete), deadline.remaining_ms / 1000)
            if self.settings.acks_code == 0:
                await sender.confirm(deadline)
        finally:
            sender.flushes -= 1

    # ---------------------------------------------------------------- many records

    async def send_batch(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        timeout: float | None = None,
    ) -> Deliveries:
        """Send many records at once: much faster than one by one. Await the deliveries to know where.

        Waits for room in the buffer, for at most `timeout` seconds, `max_block_ms` where none is given.
        """
        if self._serialize is not None:
            values = [None if value is None else self._serialize(value) for value in values]
        if self._serialize_key is not None and keys is not None:
            keys = [None if key is None else self._serialize_key(key) for key in keys]
        return await self._send_rows(
            topic, [ListRows(values, keys, timestamps_ms, headers)], partition, timeout
        )

    async def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> Deliveries:
        """Send the rows of an Arrow table, read where they lie; serialisers are not asked.

        Columns: `value` and, if there are, `key` (both binary or text), `timestamp`, `partition`, `headers`
        (a list of structs of `key` and `value`). Others are passed over.
        """
        return await self._send_rows(topic, arrow_rows(table), partition, timeout)

    async def _send_rows(
        self, topic: str, parts: list[Rows], partition: int | None, timeout: float | None
    ) -> Deliveries:
        sender = self._sender
        check_open: Callable[[], object] = self._check_running
        if self.settings.transactional_id is not None:
            transactions = self._open_transactions
            check_open = partial(transactions.check_open, transactions.number)
        check_open()
        rows = RowSender(
            self._buffer,
            sender,
            batch_bytes=self._rows_batch_bytes,
            function=self._partition_function,
            now_ms=self._clock.now_ms,
            check_open=check_open,
        )
        return await rows.send(topic, parts, partition, Deadline(self._block_seconds(timeout) * 1000))

    @property
    def _rows_batch_bytes(self) -> int:
        settings = self.settings
        if settings.acks_code == 0:
            # Nobody would say that a batch is too large for its topic.
            return max(1, settings.batch_bytes)
        return max(settings.batch_bytes, min(ROWS_BATCH_BYTES, settings.max_request_bytes))

    async def partitions_of(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic, which is created where sending to it would."""
        deadline = Deadline(self._block_seconds(timeout) * 1000)
        await self._sender.known(topic, deadline)
        return [TopicPartition(topic, index) for index in range(self._buffer.topics[topic].count)]

    @property
    def buffered_bytes(self) -> int:
        """What the records that are not written yet take."""
        return self._buffer.used_bytes

    @property
    def serializers(self) -> tuple[Serializer | None, Serializer | None]:
        """The functions for keys and values; None for bytes as they are."""
        return self._serialize_key, self._serialize


async def _within(room: asyncio.Future[None], seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            await room
    except TimeoutError:
        raise RequestTimedOut(f"{what} in {seconds} seconds") from None
