"""What every replica of a partition does, whether it leads or follows: it holds a log, knows how much of it
is committed, shows that to readers, and copies from a leader.

Invariants: `start_offset <= high_watermark <= end_offset`; the high watermark moves back only where the log
is cut off; only the loop changes anything.
"""

from __future__ import annotations

from concurrent.futures import Executor
from uuid import UUID

from millstream.cluster.flushing import Flushing
from millstream.cluster.holder import Holder
from millstream.cluster.waiters import ByteWaiter, OffsetWaiters, Watcher
from millstream.errors import KafkaError, NotLeaderOrFollower, OffsetNotAvailable
from millstream.metrics import TopicCounters
from millstream.model import TopicPartition
from millstream.storage.damage import Sound
from millstream.storage.log import Log
from millstream.storage.reading import Slice


class Replica:
    """One replica of a partition, held by this broker."""

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
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.counters = counters
        self.leader_epoch = -1
        self.is_leader = False
        self.failure: KafkaError | None = None
        """Why nothing can be done with this replica any more."""
        self.refusal: KafkaError | None = NotLeaderOrFollower(f"{name} is not led here")
        """Why nothing can be written; None while this replica leads."""
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        self._led_from = 0
        """Where the log ended when this replica began to lead."""
        self.is_throttled_leader = False
        """Whether followers that are not in sync copy from here at a limited rate only."""
        self.is_throttled_follower = False
        """Whether this replica copies at a limited rate only, while it is not in sync."""
        self._holder = holder
        self._clock = holder.clock
        self._unseen_bytes = 0
        self._commit_waiters = OffsetWaiters()
        self._ack_waiters = OffsetWaiters()
        self._deletion_waiters = OffsetWaiters()
        self._byte_waiters: dict[ByteWaiter, None] = {}
        self.watchers: dict[Watcher, None] = {}
        """The followers' fetches, which see records before they are committed."""
        flushes = holder.threads.flushes(log.dir_path)
        self._flushing = Flushing(log, flushes, self.commit, self._not_flushed, self.fail)
        log.producers.note_committed(self.high_watermark)

    @property
    def cold_reads(self) -> Executor | None:
        """The threads in which it is waited for this log's disk."""
        return self._holder.threads.reads(self.log.dir_path)

    # Committing

    def commit(self) -> None:
        """Work out what is committed; a follower is told."""

    def _acknowledge(self) -> None:
        """Tell producers that what is committed is; a follower has none."""

    def _advance(self, offset: int) -> None:
        """Move the high watermark and wake whoever waited for it."""
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        self._commit_waiters.passed(offset)
        self._acknowledge()
        nbytes, self._unseen_bytes = self._unseen_bytes, 0
        if self._byte_waiters:
            for waiter in tuple(self._byte_waiters):
                waiter.came(nbytes)
        for watcher in self.watchers:
            watcher.committed()

    # Copying, as a follower

    def copy(self, batches: memoryview, leader_high_watermark: int, leader_start: int) -> None:
        """Append what the leader has, and take over what it says of itself."""
        log = self.log
        if batches:
            log.append_as_follower(batches)
            self._unseen_bytes += len(batches)
            if self._flushing.is_due:
                self._flushing.start()
        offset = min(leader_high_watermark, log.end_offset)
        if offset > self.high_watermark:
            self._advance(offset)
            log.producers.note_committed(offset)
        if leader_start > log.start_offset:
            log.delete_records(min(leader_start, self.high_watermark))

    def truncate(self, offset: int) -> None:
        """Cut off what the leader does not have."""
        self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self.log.producers.note_committed(self.high_watermark)

    def hide_from(self, offset: int) -> None:
        """Show nothing from `offset` on: it is about to be cut off."""
        self.high_watermark = min(self.high_watermark, max(offset, self.log.start_offset))

    def cut_damage(self, sound: Sound) -> None:
        """Cut off what is damaged, to copy it anew."""
        self.log.keep_sound(sound)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self.log.producers.note_committed(self.high_watermark)

    def restart(self, offset: int) -> None:
        """Begin anew where the leader's log begins."""
        self.log.restart_at(offset)
        self.high_watermark = offset
        self.log.producers.note_committed(offset)

    # Flushing

    @property
    def flushes_before_ack(self) -> bool:
        """Whether nothing may be acknowledged, to producers or to a leader, before it is flushed."""
        return self._flushing.comes_first

    @property
    def has_unflushed(self) -> bool:
        """Whether records are here that must not count before they are flushed."""
        return self._flushing.comes_first and self.log.recovery_point < self.log.end_offset

    def start_flush(self) -> None:
        """Flush in a thread."""
        self._flushing.start()

    @property
    def owes_flush(self) -> bool:
        """Whether records wait for a flush before they may be shown, and none is under way."""
        return self._flushing.is_owed

    async def settle_flush(self) -> None:
        """Wait until no flush is under way."""
        await self._flushing.settle()

    def _not_flushed(self, error: KafkaError) -> None:
        self._commit_waiters.fail(error)
        self._ack_waiters.fail(error)

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, is_committed_only: bool, min_one: bool, nowait: bool
    ) -> Slice:
        """Batches that a consumer may see. Raises BlockingIOError where `nowait` and the disk is needed.

        Thread-safe without `nowait`.
        """
        if self.failure is not None:
            raise self.failure.again()
        limit = self.last_stable_offset if is_committed_only else self.high_watermark
        return self.log.read(offset, max_bytes, limit=limit, min_one=min_one, nowait=nowait)

    @property
    def last_stable_offset(self) -> int:
        """Up to where no transaction is open: what `read_committed` may see."""
        return self.log.last_stable_offset(self.high_watermark)

    def check_available(self) -> None:
        """Raise unless the high watermark covers all that was here when this replica began to lead (KIP-207).

        That is up to where its epoch starts, or more if it led in it before a restart of its broker: the high
        watermark that was written down then may be less than what it had told.
        """
        if self.high_watermark < self._led_from:
            raise OffsetNotAvailable

    def watch(self, waiter: ByteWaiter) -> None:
        self._byte_waiters[waiter] = None

    def unwatch(self, waiter: ByteWaiter) -> None:
        self._byte_waiters.pop(waiter, None)

    def wake_fetches(self) -> None:
        """Have every fetch that waits here look again."""
        for waiter in tuple(self._byte_waiters):
            waiter.wake()
        for watcher in self.watchers:
            watcher.changed()

    # Ending

    def fail(self, error: KafkaError) -> None:
        """Serve nothing more: the partition was deleted or moved, or its log dir failed."""
        if self.failure is not None:
            return
        self.failure = self.refusal = error
        self.is_leader = False
        self._end_waits(error.again())
        self.wake_fetches()

    def _end_waits(self, error: KafkaError) -> None:
        self._commit_waiters.fail(error)
        self._ack_waiters.fail(error)
        self._deletion_waiters.fail(error)
        self._flushing.waiters.fail(error)
