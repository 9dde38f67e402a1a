"""Compaction of one log: of each key only the last record stays, at its offset.

What stays besides: tombstones until delete.retention.ms after they were first met (KIP-534); the last
batch of each producer, if need be without records, because it carries the last sequence; the first batch of
each leader epoch, if need be without records and producer, because whoever copies the log learns from it
where that epoch began; markers as long as something is left of their transaction; the last batch before
the part that is left alone.

`Cleaning` does the work, in a thread or in another process. Here is what concerns the log: whether it is
still the one that the round began with, and how cleaned segments take the place of old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from millstream.errors import KafkaStorageError, MillstreamError
from millstream.storage import names
from millstream.storage.batch_walk import Piece, Uncleanable
from millstream.storage.cleanable import Cleanable
from millstream.storage.cleaned_transactions import aborted_between
from millstream.storage.cleaning import Cleaning
from millstream.storage.cleaning_job import CleaningJob, Rewritten, Scanned
from millstream.storage.epoch_check import epoch_beginnings
from millstream.storage.files import is_without_room
from millstream.storage.segment import Segment
from millstream.storage.swap import Swap

_log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
T = TypeVar("T", Scanned, Rewritten)


class Interrupted(MillstreamError):
    """The log was closed, cut off or lost segments while it was compacted. It can be tried again."""


class Compaction:
    """One round of compaction of one log.

    `prepare` gives the job; for each group that was written anew: `begin_swap`, `make_durable`,
    `finish_swap`; then `finish`. In the end, whatever happened, `abandon` and `discard`. `prepare`,
    `make_durable` and `discard` may run in any thread, all else is the loop's.
    """

    def __init__(self, cleanable: Cleanable, now_ms: int) -> None:
        self.log = log = cleanable.log
        self._cleanable = cleanable
        self._now_ms = now_ms
        self._watched = [one for one in log.segments if one.base_offset < cleanable.end_offset]
        self._cuts = log.cuts
        self._producers = [
            (one.producer_id, one.epoch, one.last_offset if one.batches else None) for one in log.producers
        ]
        self._swap: Swap | None = None

    def prepare(
        self, map_bytes: int, load_factor: float, secret: bytes, chunk_bytes: int = CHUNK_BYTES
    ) -> CleaningJob:
        """Make what is to be compacted durable, so that it can be replaced; what is to be done.

        Recovery must never judge a compacted segment, whose gaps it would take for losses. So the
        recovery point is written down first: it is above all of them.
        """
        log, cleanable, config = self.log, self._cleanable, self.log.config
        log.flush(rolled_only=True)
        log.save_recovery_point()
        start_offset = self._watched[0].base_offset
        aborted = aborted_between(log, start_offset, cleanable.end_offset)
        begun = epoch_beginnings(log.epochs, log.segments, start_offset, cleanable.end_offset)
        self.check()  # a segment that was retired meanwhile may have had no index to read
        return CleaningJob(
            folder=log.folder,
            segments=[(one.base_offset, one.size) for one in self._watched],
            first_dirty_offset=cleanable.first_dirty_offset,
            end_offset=cleanable.end_offset,
            aborted=aborted,
            last_offsets=[offset for _, _, offset in self._producers if offset is not None],
            begun_offsets=begun,
            marker_epochs={one: epoch for one, epoch, offset in self._producers if offset is None},
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=map_bytes,
            load_factor=load_factor,
            secret=secret,
            chunk_bytes=chunk_bytes,
        )

    def begin_swap(self, group: list[int], rewritten: Rewritten) -> None:
        """Begin to put what was written anew in place of the old segments, given by base offset."""
        self.check()
        old = [one for one in self._watched if one.base_offset in group]
        self._swap = Swap(self.log, old, rewritten)
        try:
            self._swap.begin()
        except OSError as error:
            raise self.log.fail(error) from error

    def make_durable(self) -> None:
        """Let the new segment outlive a power loss before the old ones go."""
        assert self._swap is not None
        try:
            self._swap.make_durable()
        except OSError as error:
            self.check()
            raise self.log.fail(error) from error

    def finish_swap(self) -> None:
        """Put the new segment in place of the old ones."""
        assert self._swap is not None
        old: list[Segment] = list(self._swap.old)
        self._watched = [one for one in self._watched if one not in old]
        try:
            is_done = self._swap.finish()
        except OSError as error:
            raise self.log.fail(error) from error
        if not is_done:
            raise Interrupted(f"{self.log.partition} dropped records while it was compacted")

    def finish(self, cleaned_until: int) -> None:
        """Note how far the log is clean now."""
        self.check()
        self.log.cleaned_until = max(self.log.cleaned_until, cleaned_until)

    def abandon(self) -> None:
        """Undo a swap that was begun. If that cannot be done the log has failed."""
        if self._swap is not None and self.log.swap is self._swap:
            try:
                self._swap.undo()
            except OSError as error:
                self.log.fail(error)

    def discard(self) -> None:
        """Remove what is half written, when the work on it has ended; else the next start does."""
        log = self.log
        if log.is_closed:  # and its folder perhaps another log's by now
            return
        try:
            for name in log.disk.listdir(log.folder):
                if name.endswith(names.CLEANED):
                    log.disk.remove(f"{log.folder}/{name}")
        except OSError as error:
            _log.warning("what compaction left in %s cannot be removed now: %s", log.folder, error)

    def check(self) -> None:
        """Raise Interrupted unless the log is still the one that the round began with."""
        log = self.log
        if log.failure is not None:
            raise Interrupted(log.failure)
        if log.cuts != self._cuts:
            raise Interrupted(f"{log.partition} was cut off while it was compacted")
        if any(segment.is_retired for segment in self._watched):
            raise Interrupted(f"{log.partition} lost segments while it was compacted")

    def explain(self, error: OSError | Uncleanable) -> Exception:
        """What an error of the work means for the log."""
        try:
            self.check()
        except Interrupted as interrupted:
            return interrupted
        if isinstance(error, OSError) and is_without_room(error):  # for a copy of the log, not for records
            return KafkaStorageError(f"there is no room to compact {self.log.partition}: {error}")
        return self.log.storage_error(error) if isinstance(error, OSError) else error


def compact(cleanable: Cleanable, now_ms: int, map_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> Scanned:
    """A whole round at once, for where nothing else has to go on meanwhile."""
    compaction = Compaction(cleanable, now_ms)
    cleaning = None
    try:
        job = compaction.prepare(map_bytes, 0.9, bytes(16), chunk_bytes)
        cleaning = Cleaning(cleanable.log.disk, job)
        scanned = _result(cleaning.scan_keys(), Scanned)
        for group in scanned.groups:
            compaction.begin_swap(group, _result(cleaning.rewrite(group), Rewritten))
            compaction.make_durable()
            compaction.finish_swap()
        compaction.finish(scanned.cleaned_until)
    except (OSError, Uncleanable) as error:
        raise compaction.explain(error) from error
    finally:
        if cleaning is not None:
            cleaning.close()
        compaction.abandon()
        compaction.discard()
    return scanned


def _result(pieces: Iterable[Piece | T], kind: type[T]) -> T:
    """What some work ends with."""
    for piece in pieces:
        if isinstance(piece, kind):
            return piece
    raise AssertionError(f"the work ended without a {kind.__name__}")
