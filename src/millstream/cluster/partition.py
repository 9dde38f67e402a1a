"""A partition as its leader keeps it: the log, the high watermark, and who waits on them.

Invariants: records are appended by the loop alone, in the order in which their requests started;
`start_offset <= high_watermark <= end_offset`; the high watermark never moves back; where an
acknowledgement must mean fsynced, it never passes what has been flushed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.metadata import INTERNAL_TOPICS, PartitionState
from millstream.cluster.transactional_appends import Admission, TransactionalAppends, no_admission
from millstream.cluster.waiters import ByteWaiter, OffsetWaiters
from millstream.config.log import LogConfig
from millstream.errors import (
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    OffsetNotAvailable,
    RecordListTooLarge,
)
from millstream.metrics import TopicCounters
from millstream.model import TopicPartition
from millstream.protocol.batch import BatchHeader, read_header
from millstream.protocol.header import CONTROL, TRANSACTIONAL
from millstream.protocol.types import Buffer
from millstream.protocol.validation import (
    Checked,
    NotDecompressed,
    ProduceRules,
    check_produced,
    needs_thread,
)
from millstream.storage.log import Appended, Log
from millstream.storage.reading import Slice

log = logging.getLogger(__name__)

QUICK_BYTES = 1024 * 1024
"""To how much a small compressed batch may unfold and still be checked on the loop."""

ALL = -1
"""`acks` of a producer that wants every in-sync replica to have its records."""

EVERYTHING = 1 << 62
"""More bytes than any reader waits for."""


class _QueuedAppend:
    """A batch that waits for its own check, or for those before it."""

    __slots__ = ("appended", "check", "data", "produce_version", "transactional_id")

    def __init__(self, data: memoryview, produce_version: int, transactional_id: str | None) -> None:
        self.data = data
        self.produce_version = produce_version
        self.transactional_id = transactional_id
        self.check: asyncio.Future[Checked] | None = None
        self.appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()


class Partition:
    """The leader's side of one partition."""

    def __init__(
        self,
        name: TopicPartition,
        topic_id: UUID,
        state: PartitionState,
        log: Log,
        clock: Clock,
        counters: TopicCounters,
        max_decompressed_bytes: int,
        admission: Admission = no_admission,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = state.leader_epoch
        self.isr_size = len(state.isr)
        self.replica_count = len(state.replicas)
        self.high_watermark = log.end_offset
        self.counters = counters
        self._clock = clock
        self._max_decompressed_bytes = max_decompressed_bytes
        self._unseen_bytes = 0
        self._commit_waiters = OffsetWaiters()
        self._flush_waiters = OffsetWaiters()
        self._byte_waiters: dict[ByteWaiter, None] = {}
        self._is_internal = name.topic in INTERNAL_TOPICS
        self._queue: deque[_QueuedAppend] = deque()
        self.transactions = TransactionalAppends(name, log, admission, self._write_admitted)
        self._flush_task: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None
        log.epochs.assign(state.leader_epoch, log.end_offset)
        self.configure(log.config)
        if self._flushes_first and log.recovery_point < log.end_offset:
            # What a crash left written but not flushed: neither shown nor acknowledged (to a producer
            # that sends it again) before it is.
            self.high_watermark = max(log.recovery_point, log.start_offset)
            self.start_flush()
        log.producers.note_committed(self.high_watermark)

    def configure(self, config: LogConfig) -> None:
        """Take a changed topic config; it holds from the next append on."""
        self.log.config = config
        self.rules = ProduceRules(
            max_message_bytes=config.max_message_bytes,
            is_compacted="compact" in config.cleanup_policy,
            compression_type=config.compression_type,
            gzip_level=config.compression_gzip_level,
            lz4_level=config.compression_lz4_level,
            zstd_level=config.compression_zstd_level,
            timestamp_type=config.message_timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            max_decompressed_bytes=self._max_decompressed_bytes,
        )
        self._quick_rules = self.rules.unfolding_at_most(QUICK_BYTES)
        self._flushes_first = config.flush_before_ack
        self._flush_messages = config.flush_messages

    # Writing

    def append(
        self, data: Buffer, acks: int, produce_version: int, transactional_id: str | None = None
    ) -> Appended | asyncio.Future[Appended]:
        """Check and append a producer's batch, before returning where that can be done at once.

        A large compressed batch is checked in a thread; it is copied first, and so are those that
        come behind it meanwhile, because order is kept. A transactional batch may have to wait for
        its coordinator.
        """
        self._check_writable(acks)
        if self._is_internal:
            raise InvalidTopic(f"{self.name.topic} is written by brokers only")
        if self._queue or needs_thread(data, self.rules):
            return self._enqueue(data, produce_version, transactional_id)
        try:
            checked = check_produced(data, self._quick_rules, produce_version, self._clock.now_ms())
        except NotDecompressed:  # broken, or it unfolds to much: a thread finds out
            return self._enqueue(data, produce_version, transactional_id)
        if checked.header.attributes & TRANSACTIONAL:
            return self.transactions.append(checked.data, checked.header, transactional_id, produce_version)
        return self._write(checked.data, checked.header)

    def _check_writable(self, acks: int) -> None:
        if self._failure is not None:
            raise self._failure
        if acks == ALL and self.isr_size < min(self.log.config.min_insync_replicas, self.replica_count):
            raise NotEnoughReplicas

    def append_internal(self, batch: bytearray, *, transaction_version: int = 0) -> Appended:
        """Append a batch that this broker made itself: a coordinator's entries, a transaction's end."""
        self._check_writable(ALL)
        data = memoryview(batch)
        header = read_header(data)
        if header.size > self.log.config.max_message_bytes:
            raise RecordListTooLarge(f"{header.size} bytes of entries do not fit in one batch of {self.name}")
        return self._write(data, header, transaction_version)

    def when_committed(self, next_offset: int) -> asyncio.Future[None] | None:
        """A future that ends when everything below the offset is committed; None if it is now."""
        if self.high_watermark >= next_offset:
            return None
        return self._commit_waiters.wait(next_offset)

    def when_acknowledged(self, acks: int, appended: Appended) -> asyncio.Future[None] | None:
        """A future that ends when an append may be acknowledged; None if it may be now."""
        next_offset = appended.last_offset + 1
        if acks == ALL and self.high_watermark < next_offset:
            return self._commit_waiters.wait(next_offset)
        if self.log.recovery_point < next_offset and self._must_flush():
            return self._flush_waiters.wait(next_offset)
        return None

    def _write(self, data: memoryview, header: BatchHeader, transaction_version: int = 0) -> Appended:
        appended = self.log.append(data, header, self.leader_epoch, transaction_version=transaction_version)
        if appended.is_duplicate:
            return appended
        nbytes = len(data)
        if header.attributes & CONTROL:
            self.transactions.ended(header.producer_id)
            self.log.producers.note_committed(self.high_watermark)
            nbytes = EVERYTHING  # readers of committed records may now have all that was written before
        else:
            self.counters.bytes_in.value += nbytes
            self.counters.records_in.value += header.count
        self._unseen_bytes += nbytes
        if self._must_flush():
            self.start_flush()
            if self._flushes_first:
                return appended
        self._advance(self.log.end_offset)
        return appended

    def _write_admitted(self, data: memoryview, header: BatchHeader) -> Appended:
        """Write a batch that may have waited."""
        if self._failure is not None:
            raise self._failure
        return self._write(data, header)

    def _enqueue(
        self, data: Buffer, produce_version: int, transactional_id: str | None
    ) -> asyncio.Future[Appended]:
        if len(data) > self.rules.max_message_bytes:
            raise MessageTooLarge(f"{len(data)} bytes are more than max.message.bytes of {self.name.topic!r}")
        entry = _QueuedAppend(memoryview(bytearray(data)), produce_version, transactional_id)
        self._queue.append(entry)
        entry.check = asyncio.get_running_loop().run_in_executor(
            None, check_produced, entry.data, self.rules, entry.produce_version, self._clock.now_ms()
        )
        entry.check.add_done_callback(self._drain_queue)
        return entry.appended

    def _drain_queue(self, _: object) -> None:
        queue = self._queue
        while queue and queue[0].check is not None and queue[0].check.done():
            entry = queue.popleft()
            assert entry.check is not None
            try:
                if self._failure is not None:
                    raise self._failure
                checked = entry.check.result()
                if checked.header.attributes & TRANSACTIONAL:
                    appended = self.transactions.append(
                        checked.data, checked.header, entry.transactional_id, entry.produce_version
                    )
                else:
                    appended = self._write(checked.data, checked.header)
            except Exception as error:
                if not entry.appended.done():
                    entry.appended.set_exception(error)
                continue
            if isinstance(appended, asyncio.Future):
                appended.add_done_callback(partial(_pass_on, entry.appended))
            elif not entry.appended.done():
                entry.appended.set_result(appended)

    def _advance(self, offset: int) -> None:
        """Move the high watermark and wake whoever waited for it."""
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        self._commit_waiters.passed(offset)
        nbytes, self._unseen_bytes = self._unseen_bytes, 0
        if self._byte_waiters:
            for waiter in tuple(self._byte_waiters):
                waiter.came(nbytes)

    # Flushing

    def _must_flush(self) -> bool:
        log = self.log
        return self._flushes_first or log.end_offset - log.recovery_point >= self._flush_messages

    def start_flush(self) -> None:
        """Flush in a thread. Appends that come meanwhile share the next flush: a group commit."""
        if self._flush_task is None:
            self._flush_task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.log.recovery_point < self.log.end_offset:
                flushed = await loop.run_in_executor(None, self.log.flush)
                self._flush_waiters.passed(flushed)
                if self._flushes_first:
                    self._advance(flushed)
                elif not self._must_flush():
                    break
        except KafkaError as error:
            if self.log.failure is not None:
                self.fail(error)
            else:  # a full disk: those who wait are told, and the next flush may succeed
                log.warning("flushing %s has to wait: %s", self.name, error.message)
                self._commit_waiters.fail(error)
                self._flush_waiters.fail(error)
        except OSError as error:
            log.error("flushing %s failed: %s", self.name, error)
            self.fail(KafkaStorageError(f"flushing {self.name} failed: {error}"))
        finally:
            self._flush_task = None

    @property
    def owes_flush(self) -> bool:
        """Whether records wait for a flush before they may be shown, and none is under way."""
        log = self.log
        return self._flushes_first and self._flush_task is None and log.recovery_point < log.end_offset

    async def settle(self) -> None:
        """Wait until no flush is under way."""
        self.transactions.stop()
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, is_committed_only: bool, min_one: bool, nowait: bool
    ) -> Slice:
        """Batches that a consumer may see. Raises BlockingIOError where `nowait` and the disk is needed.

        Thread-safe without `nowait`.
        """
        if self._failure is not None:
            raise self._failure
        limit = self.last_stable_offset if is_committed_only else self.high_watermark
        return self.log.read(offset, max_bytes, limit=limit, min_one=min_one, nowait=nowait)

    @property
    def last_stable_offset(self) -> int:
        """Up to where no transaction is open: what `read_committed` may see."""
        return self.log.last_stable_offset(self.high_watermark)

    def check_available(self) -> None:
        """Raise unless the high watermark covers this leader's epoch (KIP-207)."""
        if self.high_watermark < self.log.epochs.start_offset_of(self.leader_epoch):
            raise OffsetNotAvailable

    def watch(self, waiter: ByteWaiter) -> None:
        self._byte_waiters[waiter] = None

    def wake_fetches(self) -> None:
        """Have every fetch that waits here look again."""
        for waiter in tuple(self._byte_waiters):
            waiter.wake()

    def unwatch(self, waiter: ByteWaiter) -> None:
        self._byte_waiters.pop(waiter, None)

    # Ending

    def fail(self, error: KafkaError) -> None:
        """Serve nothing more: the partition was deleted or moved, or its log dir failed."""
        if self._failure is not None:
            return
        self._failure = error
        self._commit_waiters.fail(error)
        self._flush_waiters.fail(error)
        self.wake_fetches()

    @property
    def failure(self) -> KafkaError | None:
        return self._failure


def _pass_on(to: asyncio.Future[Appended], done: asyncio.Future[Appended]) -> None:
    """Let one append's outcome be another's."""
    if to.done() or done.cancelled():
        return
    error = done.exception()
    if error is None:
        to.set_result(done.result())
    else:
        to.set_exception(error)
