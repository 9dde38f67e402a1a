"""A partition's log: segments end to end, read by offset, appended at the end.

Who does what: one thread (the broker's loop) appends, rolls, deletes and truncates. Any thread may
read, look up timestamps, and flush meanwhile. An offset below `end_offset` is in the file; one below
`recovery_point` is on the device, with the names that lead to it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.config.keys import MAX_LONG
from millstream.errors import KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange, RecordListTooLarge
from millstream.protocol.batch import BatchHeader, ControlMarker, read_header
from millstream.storage import epoch_check, retention, timestamps, truncation
from millstream.storage.damage import NOT_KNOWN, Damage, DamagedLog, Sound, sound_part
from millstream.storage.disk import Buffer
from millstream.storage.epochs import Epochs
from millstream.storage.files import is_temporary, is_without_room
from millstream.storage.flusher import Flusher
from millstream.storage.producer_state import DAY_MS, Producer, ProducerState
from millstream.storage.reading import OtherEpoch, Slice, read_slice
from millstream.storage.replay import note_marker, read_marker
from millstream.storage.rolling import Rolling
from millstream.storage.segment import MAX_RELATIVE_OFFSET, Segment
from millstream.storage.segment_list import SegmentList
from millstream.storage.snapshots import Snapshots
from millstream.storage.surroundings import Surroundings
from millstream.storage.timestamps import FoundTimestamp

if TYPE_CHECKING:
    from millstream.config.log import LogConfig
    from millstream.model import TopicPartition
    from millstream.storage.swap import Swap

__all__ = ["Appended", "FoundTimestamp", "Log", "Slice", "Surroundings"]

logger = logging.getLogger(__name__)

_PLACE: Final = Struct(">qii")
_LENGTH_END: Final = 12
_LOG_APPEND_TIME: Final = 8
_NO_DATA: Final = memoryview(b"")
_NOWHERE: Final = 1 << 63
_UNREADABLE: Final = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""What devices, and file systems with checksums, answer where they have lost something."""


class Appended(NamedTuple):
    """What became of a batch."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the batch's timestamp is that of the append."""
    log_start_offset: int
    is_duplicate: bool
    leader_epoch: int
    """That of its records: with their offsets it tells them from all others that may come to be there."""


class Log:
    """The log of one partition in one folder."""

    def __init__(
        self,
        around: Surroundings,
        folder: str,
        partition: TopicPartition,
        config: LogConfig,
        segments: SegmentList,
        *,
        start_offset: int,
        end_offset: int,
        recovery_point: int,
        epochs: Epochs,
        producers: ProducerState,
        snapshots: Snapshots,
        is_folder_synced: bool = False,
    ) -> None:
        """The arguments are what `loading` found in the folder."""
        self.folder = folder
        self.partition = partition
        self.segments = segments
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.epochs = epochs
        self.producers = producers
        self.snapshots = snapshots
        self.last_flush_ms = around.clock.now_ms()
        self.disk = around.disk
        self.sync_dir_names = around.sync_dir_names
        self.is_closed = False
        self.swap: Swap | None = None
        """The replacement of segments that compaction has begun."""
        self.swapping = Lock()
        """Held while segments are replaced: a reader that fails then waits for it and looks again."""
        self.cleaned_until = 0
        """The offset below which the log has been compacted."""
        self.cuts = 0
        """How often the log's end was cut off."""
        self.failure: str | None = None
        """Why the log takes no more writes; None while it does."""
        self._damage: Damage | None = None
        self._is_doubted = False
        self._doubted_from = _NOWHERE
        self._around = around
        self._flusher = Flusher(self, recovery_point, is_folder_synced=is_folder_synced)
        self.config = config

    def __repr__(self) -> str:
        return f"Log({self.partition}, {self.start_offset} to {self.end_offset})"

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Take another configuration; it holds from the next append on."""
        self._config = config
        self._rolling = Rolling(config, self._around.random, self._around.clock)

    @property
    def dir_path(self) -> str:
        """The log dir that the folder lies in."""
        return self.folder.rpartition("/")[0]

    @property
    def size_bytes(self) -> int:
        return sum([segment.size for segment in self.segments])

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is durable."""
        return self._flusher.recovery_point

    @property
    def saved_point(self) -> int:
        """What is written down of the recovery point: not the end of a segment whose indexes may be lost.

        If the log goes on in another segment there, a start must still look at the one before. In any thread:
        what is looked at later is never older.
        """
        point, end_offset, segments = self.recovery_point, self.end_offset, self.segments
        before = segments.floor(point - 1)
        if self.is_closed or point <= before.base_offset or (before.is_flushed and not self._is_doubted):
            return point
        may_end_there = point == end_offset or point == segments.floor(point).base_offset
        return point - 1 if may_end_there or self._is_doubted else point

    @property
    def saved_start(self) -> int:
        """What is written down of the start: where the log is being cut off, if that lies before it.

        Else a start would take what comes there, up to the old start, for deleted. In any thread.
        """
        return min(self.start_offset, self._doubted_from)

    def now_ms(self) -> int:
        return self._around.clock.now_ms()

    # Appending, on the loop

    def append(
        self,
        data: Buffer,
        header: BatchHeader,
        leader_epoch: int,
        *,
        now_ms: int = -1,
        transaction_version: int = 0,
    ) -> Appended:
        """Add one checked batch as the leader: assign its offsets, write it.

        `data` is changed in place (base offset, leader epoch) and may be reused afterwards. A batch
        that a producer sent before is not written again; the answer holds its first offsets.
        KafkaStorageError if the disk is full: nothing has changed, and it can be tried again.
        """
        producer_id = header.producer_id
        marker: ControlMarker | None = None
        append_time_ms = header.max_timestamp if header.attributes & _LOG_APPEND_TIME else -1
        if producer_id >= 0:
            if header.is_control:
                marker = read_marker(data)
                if marker is not None:
                    self.producers.check_marker(header, marker, transaction_version)
            else:
                sent = self.producers.check(header)
                if sent is not None:
                    if append_time_ms >= 0:
                        append_time_ms = sent.timestamp
                    epoch = self.epochs.epoch_of(sent.last_offset)
                    return Appended(
                        sent.first_offset, sent.last_offset, append_time_ms, self.start_offset, True, epoch
                    )
        base_offset = self.end_offset
        last_offset = base_offset + header.last_offset_delta
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        size = header.size
        _PLACE.pack_into(data, 0, base_offset, size - _LENGTH_END, leader_epoch)
        try:
            self._write(data, size, base_offset, last_offset, header.max_timestamp)
        except KafkaStorageError as error:
            self.producers.refuse(header, error)
            raise
        if producer_id >= 0:
            self._note_producer(header, marker, base_offset, last_offset)
        self.end_offset = self.producers.end_offset = last_offset + 1
        return Appended(base_offset, last_offset, append_time_ms, self.start_offset, False, leader_epoch)

    def append_as_follower(self, data: memoryview) -> None:
        """Add whole, checked batches that carry the leader's offsets and epochs.

        Those that go to one segment are written at once. KafkaStorageError if the disk is full: the log
        holds whole batches up to its end, and it can be gone on from there.
        """
        position = start = 0
        run: list[BatchHeader] = []
        next_offset = self.end_offset
        latest_epoch = self.epochs.latest
        while position < len(data):
            header = read_header(data, position)
            base_offset = header.base_offset
            if base_offset < next_offset:
                raise OffsetOutOfRange(f"offset {base_offset} of {self.partition} is there already")
            if header.leader_epoch < latest_epoch:
                raise OffsetOutOfRange(
                    f"offset {base_offset} of {self.partition} is of epoch {header.leader_epoch},"
                    f" after epoch {latest_epoch}"
                )
            latest_epoch = header.leader_epoch
            next_offset = base_offset + header.last_offset_delta + 1
            segment = self.segments.active
            if run and (
                segment.size == 0
                or self._rolling.is_due(
                    segment, position - start + header.size, next_offset - 1, header.max_timestamp
                )
            ):
                self._write_run(data[start:position], run)
                run, start = [], position
            run.append(header)
            position += header.size
        if run:
            self._write_run(data[start:position], run)

    def _write_run(self, data: memoryview, run: Sequence[BatchHeader]) -> None:
        """Write batches that go to one segment, the first of which may be what begins it."""
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        first = run[0]
        segment = self.segments.active
        if self._rolling.is_due(segment, first.size, first.last_offset, first.max_timestamp):
            # No gap between segments, if it can be helped: after a power loss it would be taken for a loss.
            is_near = first.last_offset - self.end_offset <= MAX_RELATIVE_OFFSET
            segment = self.roll(self.end_offset if is_near else first.base_offset)
        elif not segment.is_appendable:
            self._flusher.name_changed()
        for header in run:
            if header.leader_epoch != self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
        try:
            segment.append_run(data, run, self._config.index_interval_bytes)
        except OSError as error:
            self.epochs.truncate_end(self.end_offset)  # a follower has records of all epochs that it knows
            raise self.storage_error(error) from error
        position = 0
        for header in run:
            if header.producer_id >= 0:
                marker = read_marker(data[position : position + header.size]) if header.is_control else None
                self._note_producer(header, marker, header.base_offset, header.last_offset)
            position += header.size
        self.end_offset = self.producers.end_offset = run[-1].last_offset + 1

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note that this broker leads from the log's end on (KIP-207 holds the high watermark against it)."""
        self.epochs.assign(leader_epoch, self.end_offset)

    def _note_producer(
        self, header: BatchHeader, marker: ControlMarker | None, first_offset: int, last_offset: int
    ) -> None:
        if not header.is_control:
            self.producers.add(header, first_offset, last_offset)
        elif marker is not None:
            aborted = note_marker(self.producers, header, marker, last_offset)
            if aborted is not None:
                try:
                    self.segments.active.transaction_index.add(aborted)
                except OSError as error:
                    raise self.fail(error) from error

    def _write(self, data: Buffer, size: int, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        config = self._config
        segment = self.segments.active
        if self._rolling.is_due(segment, size, last_offset, max_timestamp):
            if size > config.segment_bytes:
                raise RecordListTooLarge(f"a batch of {size} bytes is larger than a segment may be")
            segment = self.roll(base_offset)
        elif not segment.is_appendable:
            self._flusher.name_changed()
        try:
            segment.append(data, size, last_offset, max_timestamp, config.index_interval_bytes)
        except OSError as error:
            raise self.storage_error(error) from error

    def roll(self, base_offset: int | None = None) -> Segment:
        """Finish the active segment and start one at the log's end, or at `base_offset` beyond it."""
        if base_offset is None:
            base_offset = self.end_offset
        old = self.segments.active
        if old.size == 0 and old.base_offset == base_offset:
            return old
        segment = Segment(self.disk, self.folder, base_offset, 0, self.now_ms())
        try:
            if old.size:
                old.spill()
            self.snapshots.take(self.producers, base_offset)
            segment.create()
        except OSError as error:
            raise self.storage_error(error) from error
        if old.size:
            self.segments = self.segments.rolled(segment)
            self._flusher.rolled(base_offset)
        else:
            self._flusher.name_changed()
            self.segments = self.segments.replaced([old], [segment])
            self.discard([old])
        return segment

    # Reading, in any thread

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int | None = None,
        min_one: bool = True,
        nowait: bool = False,
    ) -> Slice:
        """Whole, verified batches from the one that holds `offset`.

        At most `max_bytes`, but at least one batch if `min_one`; only those that start below
        `limit`. Empty at the end. OffsetOutOfRange outside of [start_offset, end_offset];
        KafkaStorageError if the first batch is damaged. With `nowait` it raises BlockingIOError
        where it would wait for the device.
        """
        while True:
            end_offset = self.end_offset
            if not self.start_offset <= offset <= end_offset:
                raise OffsetOutOfRange(
                    f"offset {offset} of {self.partition} is not within {self.start_offset} to {end_offset}"
                )
            if offset >= (end_offset if limit is None or limit > end_offset else limit):
                return Slice(_NO_DATA, offset, offset)
            if max_bytes <= 0 and not min_one:
                return Slice(_NO_DATA, offset, offset)
            segments = self.segments
            try:
                found = read_slice(
                    segments,
                    self.epochs,
                    offset,
                    max_bytes,
                    end_offset if limit is None or limit > end_offset else limit,
                    end_offset,
                    min_one=min_one,
                    nowait=nowait,
                )
            except BlockingIOError:
                raise
            except (OSError, KafkaStorageError) as error:
                if self.is_changed_since(segments):
                    continue
                self.check_open(error)
                if isinstance(error, OtherEpoch):
                    if nowait:  # what is around it may not be in memory
                        raise BlockingIOError(errno.EAGAIN, "not in memory", str(self.partition)) from error
                    if epoch_check.mend(self.epochs, segments, error, end_offset):
                        continue
                self._note_damage(error, offset)
                if isinstance(error, OSError):
                    raise KafkaStorageError(f"reading {self.partition}: {error}") from error
                raise
            if self.segments is segments or not segments.floor(found.first_offset).is_retired:
                return found

    @property
    def damage(self) -> Damage | None:
        """What was met of this log that cannot be read, and has neither been deleted nor cut off since."""
        found = self._damage
        if found is not None and (found.segment.is_retired or found.offset < self.start_offset):
            found = self._damage = None
        return found

    def _note_damage(self, error: OSError | KafkaStorageError, offset: int) -> None:
        """Remember damage. An error that is the device's says of the segment alone that it is damaged."""
        if self.damage is not None:
            return
        if isinstance(error, DamagedLog):
            self._damage = Damage(error.segment, offset, error.position)
        elif isinstance(error, OSError) and error.errno in _UNREADABLE:
            segment = self.segments.floor(offset)
            self._damage = Damage(segment, offset, NOT_KNOWN)
        else:
            return
        logger.error("%s cannot be read at offset %d: %s", self.partition, offset, error)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is decided: what read_committed sees."""
        stable = self.producers.last_stable_offset(high_watermark)
        return min(max(stable, self.start_offset), high_watermark)

    def aborted_transactions(
        self, start_offset: int, end_offset: int, *, nowait: bool = False
    ) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in [start, end).

        With `nowait` it raises BlockingIOError where it would wait for the device.
        """
        while True:
            segments = self.segments
            try:
                found = segments.aborted_transactions(
                    start_offset, end_offset, self.end_offset, nowait=nowait
                )
            except BlockingIOError:
                raise
            except OSError as error:
                if self.is_changed_since(segments):
                    continue
                self.check_open(error)
                raise KafkaStorageError(f"reading {self.partition}: {error}") from error
            if start_offset < segments.first.base_offset:
                raise OffsetOutOfRange(f"offset {start_offset} of {self.partition} was deleted meanwhile")
            if not self.is_changed_since(segments):
                return found

    def check_open(self, error: Exception) -> None:
        """Raise what says so if a reader failed because the log was deleted, or moved away, meanwhile."""
        if self.is_closed and isinstance(error, OSError) and error.errno in (errno.EBADF, errno.ENOENT):
            raise NotLeaderOrFollower(f"{self.partition} is not here any more") from error

    def is_changed_since(self, segments: SegmentList) -> bool:
        """Whether the log's segments are others than these, which explains what makes no sense in them."""
        with self.swapping:
            return self.segments is not segments

    def offset_for_timestamp(self, timestamp: int, *, limit: int | None = None) -> FoundTimestamp | None:
        """The first record that is at least as late as `timestamp`, None if there is none below `limit`."""
        return timestamps.find_first(self, timestamp, self.end_offset if limit is None else limit)

    def max_timestamp_offset(self, *, limit: int | None = None) -> FoundTimestamp | None:
        """The first record with the largest timestamp, None if there is none below `limit`."""
        return timestamps.find_largest(self, self.end_offset if limit is None else limit)

    def active_producers(self) -> list[Producer]:
        return list(self.producers)

    # Making durable, in any thread

    def flush(self, *, rolled_only: bool = False) -> int:
        """Make everything that was appended before the call durable; the offset up to which that is so.

        With `rolled_only` the active segment is left out. An fsync that fails is final: the log dir
        has failed, and the log takes no more writes.
        """
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        return self._flusher.flush(rolled_only=rolled_only)

    def save_recovery_point(self) -> None:
        """Write the recovery point down, before segments below it get gaps.

        Above it, recovery takes a gap between two segments for a loss.
        """
        self._around.save_recovery_points()

    def doubt_from(self, offset: int) -> None:
        """Take nothing from `offset` on for durable, also after a crash: something else will be there.

        A start believes what lies below the recovery point, with the leader epochs that were written down,
        takes no gap below what was cleaned for a loss, and everything below the log's start for deleted.
        """
        self.cleaned_until = min(self.cleaned_until, offset)
        if self.recovery_point >= offset or self.start_offset > offset:
            self._flusher.cut(offset)
            self._doubted_from = offset
            self._is_doubted = True  # it will end there
            try:
                self.save_recovery_point()
            except OSError:
                self._doubted_from = _NOWHERE  # it is not cut off
                raise
            finally:
                self._is_doubted = False

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms asks for a flush now.

        If the clock was set back since the last one, nobody knows how long ago that was: then flush.ms does.
        """
        unflushed = self.end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        if unflushed >= self._config.flush_messages:
            return True
        flush_ms = self._config.flush_ms
        return flush_ms < MAX_LONG and not 0 <= now_ms - self.last_flush_ms < flush_ms

    # Shortening, on the loop

    def delete_records(self, offset: int) -> int:
        """Raise the log's start to `offset`; whole segments below it go with the next retention."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} of {self.partition} is beyond {self.end_offset}")
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_start(offset)
        return self.start_offset

    def apply_retention(
        self, now_ms: int, high_watermark: int | None = None, producer_expiration_ms: int = DAY_MS
    ) -> int:
        """Delete the old segments that the configuration no longer keeps; how many bytes went.

        Producers that have been silent for `producer_expiration_ms` are forgotten.
        """
        self.producers.expire(now_ms, producer_expiration_ms)
        return retention.apply(self, now_ms, self.end_offset if high_watermark is None else high_watermark)

    def needs_confirmed_ages(self, now_ms: int) -> bool:
        """Whether `confirm_ages` has anything to do before `apply_retention`. On the loop."""
        return next(retention.unconfirmed_segments(self, now_ms), None) is not None

    def confirm_ages(self, now_ms: int) -> None:
        """Hold the ages of segments that seem too old against their batches. In a thread."""
        retention.confirm_ages(self, now_ms)

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` or beyond; the log then ends there, or before."""
        try:
            truncation.truncate(self, offset)
        except DamagedLog as error:
            self._note_damage(error, offset)
            raise
        except OSError as error:
            raise self.fail(error) from error

    def find_sound(self) -> Sound | None:
        """What lies before the damage; None if there is none. In a thread."""
        damage, segments = self.damage, self.segments
        if damage is None:
            return None
        size = damage.segment.size
        found = sound_part(damage, segments.start_of_next(damage.segment, self.end_offset))
        if damage.position == NOT_KNOWN and found.size >= size:  # the device reads it again
            self._damage = None
            return None
        return found._replace(producers=truncation.producers_at(self, found.end_offset))

    def keep_sound(self, sound: Sound) -> None:
        """Drop the damage that was found, and all that comes after it."""
        if sound.segment.is_retired:
            return
        try:
            truncation.keep(self, sound)
        except OSError as error:
            raise self.fail(error) from error

    def restart_at(self, offset: int) -> None:
        """Drop everything and go on at `offset`."""
        try:
            truncation.restart(self, offset)
        except OSError as error:
            raise self.fail(error) from error

    def cutting(self) -> AbstractContextManager[None]:
        """While something is cut off: nothing counts as durable that a flush finds. For truncation alone."""
        return self._flusher.cutting()

    def replace_tail(self, old: Sequence[Segment], new: Sequence[Segment], end_offset: int) -> None:
        """Take other segments at the log's end, which moves back to `end_offset`. For truncation alone."""
        self.abandon_swap()
        self.cuts += 1
        if self._damage is not None and end_offset <= self._damage.offset:
            self._damage = None
        self.cleaned_until = min(self.cleaned_until, end_offset)
        self.end_offset = end_offset
        self._doubted_from = _NOWHERE
        self.segments = self.segments.replaced(old, new)
        self._flusher.cut(end_offset)
        self._flusher.name_changed()  # producer snapshots of what was cut off must not come back
        if len(new) > 1:
            self._flusher.rolled(end_offset)
        self._rolling = Rolling(self._config, self._around.random, self._around.clock)

    def abandon_swap(self) -> None:
        """Undo the replacement of segments that has begun, if there is one."""
        if self.swap is not None:
            self.swap.undo()

    def discard(self, segments: Sequence[Segment]) -> None:
        """Put the files of segments that are no longer part of the log into the trash."""
        for segment in segments:
            segment.retire()
            paths = segment.paths()
            if segment.base_offset in self.snapshots and segment.base_offset < self.start_offset:
                self.snapshots.forget(segment.base_offset)
                paths.append(self.snapshots.path(segment.base_offset))
            self.trash(paths)

    def trash(self, paths: list[str]) -> None:
        """Rename files out of the way and remove them after file.delete.delay.ms."""
        self._around.trash.put_files(paths, self._config.file_delete_delay_ms)

    # Failing and ending

    def fail(self, error: OSError) -> KafkaStorageError:
        """Take no more writes, and say that the log dir has failed; what a client is told."""
        if self.failure is None:
            self.failure = f"the log dir of {self.partition} has failed: {error}"
            self._around.on_failure(error)
        return KafkaStorageError(self.failure)

    def storage_error(self, error: OSError) -> KafkaStorageError:
        """What a client is told of a write that did not happen. A full disk is not a failed one."""
        if is_temporary(error):
            if is_without_room(error):
                self._around.on_no_room(error)
            return KafkaStorageError(f"{self.partition} cannot be written now: {error}")
        return self.fail(error)

    def close(self, *, is_clean: bool = True) -> None:
        """Let go of the files; before that make all durable, with a producer snapshot, if `is_clean`.

        KafkaStorageError if that was not possible: the log is closed, and will have to be recovered.
        """
        try:
            if is_clean and self.failure is None:
                self.abandon_swap()
                self._write_down()
        except OSError as error:
            raise self.storage_error(error) from error
        finally:
            self._flusher.close()
            self.swap = None  # its folder may be another log's soon
            self.failure = self.failure or f"{self.partition} is closed"
            for segment in self.segments:
                segment.retire()

    def _write_down(self) -> None:
        """Leave nothing that only memory knows. Nothing to do for a log that has not changed."""
        active = self.segments.active
        is_changed = active.size > 0 and (not active.is_spilled or self.recovery_point < self.end_offset)
        if is_changed:
            active.spill()
            self._flusher.name_changed()
        has_snapshots = self.snapshots or len(self.producers) or len(self.segments) > 1
        if has_snapshots and self.end_offset not in self.snapshots:
            self.snapshots.take(self.producers, self.end_offset)
            self._flusher.name_changed()
        self._flusher.flush(is_last=is_changed)
