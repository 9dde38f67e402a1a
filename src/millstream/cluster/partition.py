"""A partition as a broker that holds a replica of it sees it, above all as its leader.

The broker leads or follows, as the cluster says; a new leader epoch begins each time it says so anew.

Invariants: records are appended by the loop alone, in the order in which their requests started; where an
acknowledgement must mean fsynced, the high watermark never passes what has been flushed. A leader that
has followers appends nothing and commits nothing once its lease has run out.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from millstream.cluster.append_queue import AppendQueue
from millstream.cluster.holder import Holder
from millstream.cluster.leadership import REFUSED_PAUSE_S, Follower, Leadership
from millstream.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, PartitionState
from millstream.cluster.replica import Replica
from millstream.cluster.transactional_appends import TransactionalAppends
from millstream.config.log import LogConfig
from millstream.errors import (
    InvalidTopic,
    KafkaError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
)
from millstream.metrics import TopicCounters
from millstream.model import TopicPartition
from millstream.protocol.batch import HEADER_SIZE, BatchHeader, read_header
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

QUICK_BYTES = 1024 * 1024
"""To how much a small compressed batch may unfold and still be checked on the loop."""

ALL = -1
"""`acks` of a producer that wants every in-sync replica to have its records."""

EVERYTHING = 1 << 62
"""More bytes than any reader waits for."""

LEASE_PAUSE_S = 0.1
"""How soon a leader looks again whether it holds its lease."""

NOT_HELD = PartitionState([], [], NO_LEADER, -1, -1)
"""What is known of a partition before the cluster said anything."""


class Partition(Replica):
    """One replica of a partition, which leads it or follows its leader, as the cluster says."""

    def __init__(
        self,
        name: TopicPartition,
        topic_id: UUID,
        log: Log,
        holder: Holder,
        counters: TopicCounters,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark` is what was last written down of it."""
        super().__init__(name, topic_id, log, holder, counters, high_watermark)
        self.state = NOT_HELD
        self.leadership: Leadership | None = None
        """The followers, if this replica leads and there may be any."""
        self.acknowledged = 0
        """Up to where a leader may acknowledge records to those who want acks=all."""
        self._lease_timer: asyncio.TimerHandle | None = None
        self._is_internal = name.topic in INTERNAL_TOPICS
        self._queue = AppendQueue(
            name, self._clock, holder.threads.checks, self._write_queued, self.not_written
        )
        self.transactions = TransactionalAppends(name, log, holder.admission, self._write_admitted)
        self.configure(log.config)

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
            max_decompressed_bytes=self._holder.max_decompressed_bytes(),
        )
        self._quick_rules = self.rules.unfolding_at_most(QUICK_BYTES)
        self._flushing.configure()
        self._isr_changed()  # it may be enough now, or too few
        self.commit()  # and what waits for a flush need not wait any more

    # What the cluster says

    def lead(self, state: PartitionState) -> None:
        """Lead, in the state's leader epoch, or go on leading with another ISR."""
        log, is_same = self.log, self.is_leader and state.leader_epoch == self.leader_epoch
        self.state = state
        if self.failure is not None:
            return
        if is_same:
            if self.leadership is not None:
                self.leadership.update(state)
            elif len(state.replicas) > 1:
                self.leadership = self._begin_leadership(state)
            self._isr_changed()
            self.admit_followers()
            return
        self.is_leader = True
        self.acknowledged = 0
        if state.leader_epoch != self.leader_epoch:
            self._led_from = log.end_offset
        self.leader_epoch = state.leader_epoch
        self.refusal = None
        log.begin_epoch(state.leader_epoch)
        self.leadership = self._begin_leadership(state) if len(state.replicas) > 1 else None
        if self._flushing.comes_first and log.recovery_point < log.end_offset:
            # What a crash left written but not flushed: neither shown nor acknowledged (to a producer
            # that sends it again) before it is.
            self._flushing.start()
        self.commit()
        self._acknowledge()
        log.producers.note_committed(self.high_watermark)
        self.wake_fetches()

    def _begin_leadership(self, state: PartitionState) -> Leadership:
        epoch_start = self.log.epochs.start_offset_of(state.leader_epoch)
        begun = Leadership(self._holder, self.log, state, max(epoch_start, 0))
        begun.recount()
        return begun

    def follow(self, state: PartitionState) -> None:
        """Follow the state's leader, in its epoch."""
        is_new = self.is_leader or state.leader_epoch != self.leader_epoch
        self.state = state
        if self.failure is not None:
            return
        self.leader_epoch = state.leader_epoch
        if is_new:
            self.resign()
            self.log.epochs.truncate_end(self.log.end_offset)  # of an epoch without a record: never led in
            self.wake_fetches()

    def resign(self) -> None:
        """Lead no more, without knowing yet who does. Those who wait are told to look elsewhere."""
        self.is_leader = False
        self.leadership = None
        error = NotLeaderOrFollower(f"{self.name} is not led here any more")
        if self.failure is None:
            self.refusal = error
        self._end_waits(error.again())

    def _isr_changed(self) -> None:
        leadership = self.leadership
        if leadership is not None:
            if not leadership.has_enough:
                self._ack_waiters.fail(NotEnoughReplicasAfterAppend())
            self.commit()
            self._acknowledge()

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
            return self._queue.add(data, self.rules, produce_version, transactional_id)
        try:
            checked = check_produced(data, self._quick_rules, produce_version, self._clock.now_ms())
        except NotDecompressed:  # broken, or it unfolds to much: a thread finds out
            return self._queue.add(data, self.rules, produce_version, transactional_id)
        if checked.header.attributes & TRANSACTIONAL:
            return self.transactions.append(checked.data, checked.header, transactional_id, produce_version)
        return self._write(checked.data, checked.header)

    def not_written(self, data: Buffer, error: KafkaError) -> None:
        """A producer's batch was refused and will be sent again: those in flight behind it wait for it."""
        if len(data) >= HEADER_SIZE:
            header = read_header(data)
            if header.magic == 2:
                self.log.producers.refuse(header, error)

    def _check_writable(self, acks: int) -> None:
        if self.refusal is not None:
            raise self.refusal.again()
        self.check_lease()
        leadership = self.leadership
        if leadership is not None and acks == ALL and not leadership.has_enough:
            raise NotEnoughReplicas

    def check_lease(self) -> None:
        """Raise unless this broker certainly leads still: another one may have written meanwhile."""
        if self.leadership is not None and not self._holder.is_lease_held():
            raise NotLeaderOrFollower("this broker does not know whether it still leads")

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
        """A future that ends when an append may be acknowledged; None if it may be now.

        Who wants all in-sync replicas to have it is refused if another broker has led since it was appended.
        """
        if acks == ALL:
            self._check_kept(appended)
        next_offset = appended.last_offset + 1
        flushing = self._flushing
        is_flush_owed = self.log.recovery_point < next_offset and (flushing.is_due or flushing.waiters)
        if acks == ALL and self.acknowledged < next_offset:
            copied = self._ack_waiters.wait(next_offset)
            if flushing.comes_first or not is_flush_owed:
                return copied
            both = asyncio.ensure_future(self._copied_and_flushed(copied, appended))
            both.add_done_callback(_heed)
            return both
        if is_flush_owed:
            flushing.start()  # none is under way if the last was refused, and this was written before
            return flushing.waiters.wait(next_offset)  # also where others wait: none overtakes them
        return None

    def _check_kept(self, appended: Appended) -> None:
        """Raise unless this replica leads, and has what was appended: another leader may not have had it.

        Who had to wait for the append, and for other partitions of its request, comes here late.
        """
        if self.refusal is not None:
            raise self.refusal.again()
        epoch = appended.leader_epoch
        if epoch != self.leader_epoch and epoch != self.log.epochs.epoch_of(appended.last_offset):
            raise NotLeaderOrFollower(f"{self.name} was led by another broker since")

    async def _copied_and_flushed(self, copied: asyncio.Future[None], appended: Appended) -> None:
        """The request that reaches flush.messages waits for that flush, whoever has copies."""
        await copied
        flushed = self.when_acknowledged(1, appended)
        if flushed is not None:
            await flushed

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
        for watcher in self.watchers:
            watcher.appended()
        if self._flushing.is_due:
            self._flushing.start()
            if self._flushing.comes_first:
                return appended
        if self.leadership is None:
            self._advance(self.log.end_offset)
        else:
            self.commit()
        return appended

    def _write_admitted(self, data: memoryview, header: BatchHeader) -> Appended:
        """Write a batch that may have waited."""
        self._check_writable(0)
        return self._write(data, header)

    def _write_queued(
        self, checked: Checked, produce_version: int, transactional_id: str | None
    ) -> Appended | asyncio.Future[Appended]:
        data, header = checked.data, checked.header
        self._check_writable(0)
        if header.attributes & TRANSACTIONAL:
            return self.transactions.append(data, header, transactional_id, produce_version)
        return self._write(data, header)

    # Committing

    def commit(self) -> None:
        """Work out what is committed: by this replica alone, or by all that must have it."""
        log = self.log
        end_offset = log.recovery_point if self._flushing.comes_first else log.end_offset
        leadership = self.leadership
        if leadership is None:
            if self.is_leader:
                self._advance(end_offset)
            return
        offset = leadership.committed(self.high_watermark, end_offset)
        if offset > self.high_watermark:
            if self._holder.is_lease_held():
                self._advance(offset)
            elif self._lease_timer is None:  # it may be late; the followers have nothing more to say
                self._lease_timer = asyncio.get_running_loop().call_later(LEASE_PAUSE_S, self._look_at_lease)

    def _look_at_lease(self) -> None:
        self._lease_timer = None
        self.commit()

    def _acknowledge(self) -> None:
        """Tell producers, as far as those who must know of it do."""
        leadership = self.leadership
        offset = self.high_watermark if leadership is None else leadership.acknowledged(self.high_watermark)
        if offset > self.acknowledged:
            self.acknowledged = offset
            self._ack_waiters.passed(offset)

    @property
    def is_awaited(self) -> bool:
        """Whether producers wait for followers to know what is committed."""
        return bool(self._ack_waiters)

    # Followers, told by the leader's side of replication

    def fetched(self, follower: Follower, offset: int, start_offset: int, known_watermark: int) -> None:
        """A follower has everything below `offset`, as it is here, and knows what is committed of it."""
        leadership = self.leadership
        if leadership is None:
            return
        follower.high_watermark = known_watermark
        is_proposed = leadership.fetched(follower, offset, start_offset, self.high_watermark)
        if self.high_watermark < self.log.end_offset:
            self.commit()
        if self.acknowledged < self.high_watermark:
            self._acknowledge()
        if is_proposed:
            self._holder.propose(self)
        if self._deletion_waiters:
            self._deletion_waiters.passed(leadership.low_watermark(self.log.start_offset))

    def delete_records(self, offset: int) -> asyncio.Future[None] | None:
        """Let the log begin at `offset`; a future that ends when the followers' logs do, None if they do."""
        self.log.delete_records(offset)
        leadership = self.leadership
        if leadership is None or leadership.low_watermark(self.log.start_offset) >= offset:
            return None
        for watcher in self.watchers:
            watcher.changed()
        return self._deletion_waiters.wait(offset)

    def brokers_changed(self) -> None:
        """Brokers came or went: some need not be waited for, and others may be in sync."""
        leadership = self.leadership
        if leadership is not None:
            leadership.recount()
            self.commit()
            self._acknowledge()
            self.admit_followers()
            if self._deletion_waiters:
                self._deletion_waiters.passed(leadership.low_watermark(self.log.start_offset))

    def check_followers(self) -> None:
        """Go on without followers that lag behind; called time and again."""
        if self.leadership is not None:
            if self.leadership.shrink() or self.leadership.expand(self.high_watermark):
                self._holder.propose(self)
            self.commit()
            self._acknowledge()  # a proposal may have been given up without a word
            if self._deletion_waiters:
                self._deletion_waiters.passed(self.leadership.low_watermark(self.log.start_offset))

    def isr_accepted(self, isr: list[int], version: int) -> None:
        """The controller wrote down what this leader proposed."""
        if self.leadership is not None:
            self.leadership.accepted(isr, version)
            self.state = replace(self.state, isr=list(isr), version=version)
            self._isr_changed()
            self.admit_followers()

    def isr_refused(self, *, is_final: bool) -> None:
        """The controller did not write it down, and will not if that is final."""
        if self.leadership is not None:
            pause_s = self.leadership.refused(is_final=is_final)
            self.commit()
            self._acknowledge()  # those that were proposed need not know of it any more
            loop = asyncio.get_running_loop()
            for each in {REFUSED_PAUSE_S, pause_s}:
                loop.call_later(each * 1.1, self.admit_followers)

    def admit_followers(self) -> None:
        """Propose to have those in sync that may be; for when that changed without their doing."""
        if self.leadership is not None and self.leadership.expand(self.high_watermark):
            self._holder.propose(self)

    # Ending

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        self.transactions.stop()
        await self._flushing.settle()

    def fail(self, error: KafkaError) -> None:
        """Serve nothing more: the partition was deleted or moved, or its log dir failed."""
        if self.failure is None:
            self.leadership = None
        super().fail(error)

    def _end_waits(self, error: KafkaError) -> None:
        super()._end_waits(error)
        self.transactions.fail(error)


def _heed(ended: asyncio.Future[None]) -> None:
    """Who still waits is told how it ended; who waits no more need not be."""
    if not ended.cancelled():
        ended.exception()
