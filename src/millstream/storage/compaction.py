"""Compaction of one log: of each key only the last record stays, at its offset.

The keys of the dirty part are put into an OffsetMap until it is full. Then every segment up to there is
written anew, several small ones into one, without the records that the map knows a later one for, and
takes the place of the old ones. What the map did not reach stays dirty for the next time.

What stays besides: tombstones until delete.retention.ms after they were first met (KIP-534); the last
batch of each producer, if need be without records, because it carries the last sequence; markers as
long as something is left of their transaction; the last batch before the part that is left alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from millstream.errors import KafkaStorageError, MillstreamError
from millstream.protocol.kernel import BatchFilter, OffsetMap
from millstream.storage.batch_walk import Piece, Uncleanable, walk
from millstream.storage.cleanable import Cleanable, group_segments
from millstream.storage.cleaned_segment import CleanedSegment
from millstream.storage.cleaned_transactions import CleanedTransactions, aborted_between
from millstream.storage.key_scan import KeyScan
from millstream.storage.payloads import Payloads
from millstream.storage.rewriting import Rewriting
from millstream.storage.segment import Segment
from millstream.storage.swap import Swap

CHUNK_BYTES: Final = 256 * 1024
"""How much is read at a time, unless the caller says otherwise."""
_OUT_FACTOR: Final = 2


class Interrupted(MillstreamError):
    """The log was closed, cut off or lost segments while it was compacted. It can be tried again."""


class Compaction:
    """One round of compaction of one log.

    `scan_keys`, then for each of `groups`: `rewrite`, `begin_swap`, `make_durable`, `finish_swap`; then
    `finish`. In the end, whatever happened, `abandon` and `discard`. The iterators work between two
    `next` and yield what they did; they, `make_durable` and `discard` may run in any thread,
    all else is the loop's.
    """

    def __init__(
        self, cleanable: Cleanable, offsets: OffsetMap, now_ms: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.log = log = cleanable.log
        self.read_bytes = 0
        self.written_bytes = 0
        self._cleanable = cleanable
        self._offsets = offsets
        self._now_ms = now_ms
        self._chunk_bytes = chunk_bytes
        self._segments = [one for one in log.segments if one.base_offset < cleanable.end_offset]
        self._cuts = log.cuts
        last_offsets: list[int] = []
        self._marker_epochs: dict[int, int] = {}
        for producer in log.producers:
            if producer.batches:
                last_offsets.append(producer.last_offset)
            else:
                self._marker_epochs[producer.producer_id] = producer.epoch
        self._last_offsets = array("q", sorted(last_offsets))
        self.groups: list[list[Segment]] = []
        """The segments to write anew, in runs that become one each; known after `scan_keys`."""
        self._watched = self._segments
        self._payloads = Payloads()
        self._swap: Swap | None = None
        self._transactions: CleanedTransactions | None = None
        self._batches: BatchFilter | None = None
        self._cleaned: CleanedSegment | None = None

    @property
    def records(self) -> tuple[int, int]:
        """How many records the rewritten segments had, and how many of them they kept."""
        return (self._batches.records_read, self._batches.records_kept) if self._batches else (0, 0)

    def scan_keys(self) -> Iterator[Piece]:
        """Find the last offset of each key of the dirty part, as far as the map has room."""
        return self._guarded(self._scan_keys())

    def _scan_keys(self) -> Iterator[Piece]:
        log, offsets, start = self.log, self._offsets, self._cleanable.first_dirty_offset
        log.flush(rolled_only=True)
        log.save_recovery_point()
        offsets.clear(start)
        scan = KeyScan(offsets, self._collect_aborted(start), self._payloads)
        for number, segment in enumerate(self._segments):
            end_offset = self._end_of(number)
            if end_offset <= start:
                continue
            offsets.begin(segment.base_offset)
            position = segment.lookup(start)[1] if start > segment.base_offset else 0
            for piece in walk(segment, position, scan, self._chunk_bytes):
                self.read_bytes += piece.moved_bytes
                yield piece
            if scan.is_full:
                break
            offsets.reach(end_offset - 1)
        self._plan()

    def _plan(self) -> None:
        reached = [one for one in self._segments if one.base_offset <= self._offsets.latest_offset]
        if not reached:
            return
        end_offset = self._end_of(len(reached) - 1)
        self._transactions = self._collect_aborted(reached[0].base_offset)
        self._batches = BatchFilter(
            self._offsets,
            self._transactions.open,
            memoryview(self._last_offsets),
            self._cleanable.end_offset,
            self._now_ms,
            self.log.config.delete_retention_ms,
            self._chunk_bytes * _OUT_FACTOR,
        )
        self.groups = group_segments(reached, end_offset, self.log)

    def rewrite(self, group: list[Segment]) -> Iterator[Piece]:
        """Write what stays of a run of segments to a new one."""
        return self._guarded(self._rewrite(group))

    def _rewrite(self, group: list[Segment]) -> Iterator[Piece]:
        batches, transactions, log = self._batches, self._transactions, self.log
        assert batches is not None
        assert transactions is not None
        cleaned = self._cleaned = CleanedSegment(log.disk, log.folder, group[0].base_offset)
        cleaned.create()
        batches.begin_segment(cleaned.base_offset, log.config.index_interval_bytes)
        rewriting = Rewriting(
            cleaned, batches, transactions, self._payloads, self._marker_epochs, self._now_ms
        )
        for segment in group:
            batches.begin(segment.base_offset)
            for piece in walk(segment, 0, rewriting, self._chunk_bytes):
                written, rewriting.written_bytes = rewriting.written_bytes, 0
                self.read_bytes += piece.moved_bytes
                self.written_bytes += written
                yield Piece(piece.moved_bytes + written, piece.locked)
        self.written_bytes += batches.out_size
        cleaned.finish(batches)

    def begin_swap(self, group: list[Segment]) -> None:
        """Begin to put what `rewrite` wrote in place of the old segments."""
        self.check()
        assert self._cleaned is not None
        self._swap = Swap(self.log, group, self._cleaned)
        try:
            self._swap.begin()
        except OSError as error:
            raise self.log.fail(error) from error
        self._cleaned = None

    def make_durable(self) -> None:
        """Let the new segment outlive a power loss before the old ones go."""
        assert self._swap is not None
        try:
            self._swap.make_durable()
        except OSError as error:
            self.check()
            raise self.log.fail(error) from error

    def finish_swap(self, group: list[Segment]) -> None:
        """Put the new segment in place of the old ones."""
        assert self._swap is not None
        self._watched = [one for one in self._watched if one not in group]
        try:
            is_done = self._swap.finish()
        except OSError as error:
            raise self.log.fail(error) from error
        if not is_done:
            raise Interrupted(f"{self.log.partition} dropped records while it was compacted")

    def finish(self) -> None:
        """Note how far the log is clean now."""
        self.check()
        self.log.cleaned_until = max(self.log.cleaned_until, self._offsets.latest_offset + 1)

    def abandon(self) -> None:
        """Undo a swap that was begun."""
        if self._swap is not None and self.log.swap is self._swap:
            self._swap.undo()

    def discard(self) -> None:
        """Remove what is half done. In any thread, when the round is over."""
        self._offsets.clear(0)
        if self._cleaned is not None:
            self._cleaned.close()
            if not self.log.is_closed:  # else its folder may be another log's by now
                self._cleaned.remove()
            self._cleaned = None

    def check(self) -> None:
        """Raise Interrupted unless the log is still the one that the round began with."""
        self._check_quickly()
        log = self.log
        if any(segment.is_retired for segment in self._watched):
            raise Interrupted(f"{log.partition} lost segments while it was compacted")

    def _check_quickly(self) -> None:
        if self.log.failure is not None:
            raise Interrupted(self.log.failure)
        if self.log.cuts != self._cuts:
            raise Interrupted(f"{self.log.partition} was cut off while it was compacted")

    def _guarded(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces of some work, as long as the log is there for it."""
        while True:
            self._check_quickly()
            try:
                piece = next(pieces)
            except StopIteration:
                return
            except (OSError, Uncleanable, KafkaStorageError) as error:
                self.check()
                if isinstance(error, OSError):
                    raise self.log.storage_error(error) from error
                raise
            yield piece

    def _end_of(self, number: int) -> int:
        """The base offset of what follows a segment."""
        if number + 1 < len(self._segments):
            return self._segments[number + 1].base_offset
        return self._cleanable.end_offset

    def _collect_aborted(self, start_offset: int) -> CleanedTransactions:
        aborted = aborted_between(self.log, start_offset, self._cleanable.end_offset)
        self.check()  # a segment that was retired meanwhile may have had no index to read
        return CleanedTransactions(aborted)


def compact(cleanable: Cleanable, offsets: OffsetMap, now_ms: int) -> Compaction:
    """A whole round at once, for where nothing else has to go on meanwhile."""
    compaction = Compaction(cleanable, offsets, now_ms)
    try:
        for _ in compaction.scan_keys():
            pass
        for group in compaction.groups:
            for _ in compaction.rewrite(group):
                pass
            compaction.begin_swap(group)
            compaction.make_durable()
            compaction.finish_swap(group)
        compaction.finish()
    finally:
        compaction.abandon()
        compaction.discard()
    return compaction
