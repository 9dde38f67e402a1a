"""Writes records to a cluster, from threads that block.

Signatures are written out here as in producer.py, so that editors and type checkers know them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from millstream.client.face import LoopThread, tell_of_fork
from millstream.client.group_metadata import GroupMetadata
from millstream.client.producer import CLOSE_SECONDS, AsyncProducer
from millstream.client.producer_buffer import BufferFull, Headers
from millstream.client.producer_columns import Deliveries
from millstream.client.producer_coordinator import Offsets
from millstream.client.producer_delivery import Delivery
from millstream.client.producer_identity import HandedOver
from millstream.client.producer_settings import ProducerOptions, ProducerSettings
from millstream.client.transactions_client import TransactionFailed
from millstream.client.unclosed import MustClose
from millstream.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Waker:
    """Has the sender look at its lines, from any thread; many calls until it does are one.

    The buffer holds this and not the producer, which would otherwise never be freed.
    """

    def __init__(self, thread: LoopThread, core: AsyncProducer) -> None:
        self._thread = thread
        self._core = core
        self._is_due = False

    def __call__(self) -> None:
        if not self._is_due:
            try:
                self._is_due = True
                self._thread.call_soon(self._woken)
            except BaseException:  # a signal's handler raised; there may be no other call for this record
                self._thread.call_soon(self._woken)
                raise

    def _woken(self) -> None:
        self._is_due = False
        if not self._core._is_closed:
            self._core._sender.wake()


class Producer(MustClose):
    """Writes records, in order and each once. May be used by many threads.

        with Producer("localhost:9092") as producer:
            delivery = producer.send("orders", b"tea", key=b"42")
            print(delivery.result(10).offset)

    `send` takes a record and returns at once unless the buffer is full; records travel in batches, sent
    from a thread of the producer's own. ProducerSettings describes the options.
    """

    def __init__(
        self, bootstrap: str | list[str] = "localhost:9092", **options: Unpack[ProducerOptions]
    ) -> None:
        self._core = AsyncProducer(bootstrap, **options)
        self._buffer = self._core._buffer
        self._lock = self._buffer.lock
        self._serialize_key, self._serialize = self._core.serializers
        self._is_closed = False
        self._thread = LoopThread("millstream-producer")
        tell_of_fork(self)
        try:
            self._thread.run(self._start(), self._max_block)
        except BaseException:
            self._is_closed = True
            self._thread.close()
            raise
        self._holds()

    async def _start(self) -> None:
        await self._core.start()
        self._core._released()
        self._append = self._core._append
        self._buffer.on_work = Waker(self._thread, self._core)

    def _let_go(self) -> None:
        self._is_closed = True
        self._thread.abandon(self._core.close)

    @property
    def settings(self) -> ProducerSettings:
        return self._core.settings

    @property
    def _max_block(self) -> float:
        return self.settings.max_block_ms / 1000

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
        """Take a record and send it soon; the delivery's `result` tells where it was written.

        While the buffer is full it waits, for at most `max_block_ms`; then it raises BufferFull.
        """
        if self._is_closed:
            raise self._thread.closed("the producer")
        if self._serialize is not None and value is not None:
            value = self._serialize(value)
        if self._serialize_key is not None and key is not None:
            key = self._serialize_key(key)
        try:
            with self._lock:
                return self._append(topic, key, value, partition, timestamp_ms, headers)
        except BufferFull as full:
            more_bytes = full.more_bytes
        return self._append_with_room(more_bytes, topic, key, value, partition, timestamp_ms, headers)

    def _append_with_room(self, more_bytes: int | None, *record: Any) -> Delivery:
        deadline = time.monotonic() + self._max_block
        while True:
            room = threading.Event()
            self._thread.call_soon(self._on_room, room, more_bytes)
            left = deadline - time.monotonic()
            if left <= 0 or not room.wait(left):
                raise BufferFull(f"there was no room for more records in {self._max_block} seconds")
            if self._is_closed:
                raise self._thread.closed("the producer")
            try:
                with self._lock:
                    return self._append(*record)
            except BufferFull:
                continue  # another thread was faster

    def _on_room(self, room: threading.Event, more_bytes: int | None) -> None:
        if self._core._is_closed:
            room.set()
        else:
            self._core._sender.on_room(room.set, more_bytes)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were sent are written or have failed; do not linger."""
        seconds = self.settings.delivery_timeout_ms / 1000 if timeout is None else timeout
        self._thread.run(self._core.flush(seconds), seconds)

    def send_batch(
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
        """Send many records at once: much faster than one by one. The deliveries' `result` tells where.

        Waits for room in the buffer, for at most `timeout` seconds, `max_block_ms` where none is given.
        """
        work = self._core.send_batch(
            topic,
            values,
            keys=keys,
            partition=partition,
            timestamps_ms=timestamps_ms,
            headers=headers,
            timeout=timeout,
        )
        return self._run(work, timeout)

    def send_arrow(
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
        return self._run(self._core.send_arrow(topic, table, partition=partition, timeout=timeout), timeout)

    # ---------------------------------------------------------------- transactions

    @contextmanager
    def transaction(self, timeout: float | None = None) -> Iterator[None]:
        """A transaction for the length of a `with`: committed at its end, aborted after an error.

        `timeout` is that of the commit or the abort, `max_block_ms` where none is given.
        """
        self.begin_transaction()
        try:
            yield
        except BaseException:
            self._run(self._core._abort_after_error(timeout), timeout)
            raise
        try:
            self.commit_transaction(timeout)
        except TransactionFailed as failure:
            self._run(self._core._abort_after_error(timeout), timeout)
            raise failure.__cause__ or failure from None

    def begin_transaction(self) -> None:
        """Let the records and offsets from now on be written together or not at all."""
        if self._is_closed:
            raise self._thread.closed("the producer")
        self._core.begin_transaction()

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Write all records of the transaction and commit it.

        TransactionFailed says that it can only be aborted. After a RequestTimedOut the outcome is open, and
        committing may be tried again.
        """
        self._run(self._core.commit_transaction(timeout), timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Let nothing of the transaction be seen by readers of committed records."""
        self._run(self._core.abort_transaction(timeout), timeout)

    def hand_over_transaction(self, timeout: float | None = None) -> HandedOver | None:
        """Write all records of the transaction and leave it open, for another process to end.

        The producer can only be closed then. None: nothing was sent, so nothing is open.
        """
        return self._run(self._core.hand_over_transaction(timeout), timeout)

    def send_offsets(
        self, offsets: Offsets, group: str | GroupMetadata, timeout: float | None = None
    ) -> None:
        """Commit a group's offsets with the transaction: for what was read, worked on and is written in it.

        An offset is that of the next record to read. With a consumer's group metadata, a consumer that is no
        member any more is refused.
        """
        self._run(self._core.send_offsets(offsets, group, timeout), timeout)

    def _run(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        return self._thread.run(work, self._max_block if timeout is None else timeout)

    def partitions_of(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic, which is created where sending to it would."""
        return self._run(self._core.partitions_of(topic, timeout), timeout)

    @property
    def buffered_bytes(self) -> int:
        """What the records that are not written yet take."""
        return self._core.buffered_bytes

    # ---------------------------------------------------------------- life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forked(self) -> None:
        """Called in a process that was forked off: what was sent is the other process's to write."""
        self._is_closed = True

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what was sent, for at most `timeout` seconds, then let go of everything.

        What was not written by then fails with Closed; with 0 nothing more is sent.
        """
        if self._is_closed:
            return
        if self._thread.is_current:
            raise RuntimeError("a delivery's callback cannot close its producer, which would wait for itself")
        self._is_closed = True
        self._released()
        try:
            self._thread.run(self._core.close(timeout), timeout + CLOSE_SECONDS)
        finally:
            self._thread.close()
