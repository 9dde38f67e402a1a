"""The work of compaction: reading, choosing, writing. It knows files, not the log that they belong to.

The keys of the dirty part are put into an OffsetMap until it is full. Then every segment up to there is
written anew, several small ones into one, without the records that the map knows a later one for. What
the map did not reach stays dirty for the next time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from millstream.protocol.filter_kernel import BatchFilter
from millstream.protocol.offset_map_kernel import OffsetMap
from millstream.storage.batch_walk import Piece, walk
from millstream.storage.cleanable import group_segments
from millstream.storage.cleaned_segment import CleanedSegment
from millstream.storage.cleaned_transactions import CleanedTransactions
from millstream.storage.cleaning_job import CleaningJob, Rewritten, Scanned
from millstream.storage.disk import Disk
from millstream.storage.key_scan import KeyScan
from millstream.storage.payloads import Payloads
from millstream.storage.recovery import position_of
from millstream.storage.rewriting import Rewriting
from millstream.storage.segment import Segment

_OUT_FACTOR: Final = 2


class Cleaning:
    """The work of one job: `scan_keys`, then `rewrite` for each of the groups that it found, in order.

    Both work between two `next`, yield what they did, and end with their result.
    """

    def __init__(self, disk: Disk, job: CleaningJob) -> None:
        self._disk = disk
        self._job = job
        self._segments = [Segment(disk, job.folder, base, size, 0) for base, size in job.segments]
        self._offsets = OffsetMap(job.map_bytes, job.load_factor, job.secret)
        self._payloads = Payloads()
        self._transactions = CleanedTransactions(job.aborted)
        self._batches = BatchFilter(
            self._offsets,
            self._transactions.open,
            memoryview(array("q", sorted(job.last_offsets))),
            memoryview(array("q", sorted(job.begun_offsets))),
            job.end_offset,
            job.now_ms,
            job.delete_retention_ms,
            job.chunk_bytes * _OUT_FACTOR,
        )

    def scan_keys(self) -> Iterator[Piece | Scanned]:
        """Find the last offset of each key of the dirty part, as far as the map has room."""
        job, offsets, start, read_bytes = self._job, self._offsets, self._job.first_dirty_offset, 0
        offsets.clear(start)
        aborted = [entry for entry in job.aborted if entry.last_offset >= start]
        scan = KeyScan(offsets, CleanedTransactions(aborted), self._payloads)
        for number, segment in enumerate(self._segments):
            end_offset = self._end_of(number)
            if end_offset <= start:
                continue
            offsets.begin(segment.base_offset)
            for piece in walk(segment, position_of(segment, start), scan, job.chunk_bytes):
                read_bytes += piece.moved_bytes
                yield piece
            if scan.is_full:
                break
            offsets.reach(end_offset - 1)
        groups = [[segment.base_offset for segment in group] for group in self._groups()]
        yield Scanned(offsets.latest_offset + 1, groups, read_bytes)

    def rewrite(self, group: list[int]) -> Iterator[Piece | Rewritten]:
        """Write what stays of a run of segments to a new one."""
        job, batches, read_bytes = self._job, self._batches, 0
        cleaned = CleanedSegment(self._disk, job.folder, group[0])
        cleaned.create()
        batches.begin_segment(group[0], job.index_interval_bytes)
        rewriting = Rewriting(
            cleaned, batches, self._transactions, self._payloads, job.marker_epochs, job.now_ms
        )
        records_read, records_kept = batches.records_read, batches.records_kept
        try:
            for segment in [one for one in self._segments if one.base_offset in group]:
                batches.begin(segment.base_offset)
                for piece in walk(segment, 0, rewriting, job.chunk_bytes):
                    written, rewriting.written_bytes = rewriting.written_bytes, 0
                    read_bytes += piece.moved_bytes
                    yield Piece(piece.moved_bytes + written, piece.locked)
                segment.retire()
            cleaned.finish(batches)
        finally:
            cleaned.close()
        yield Rewritten(
            group[0],
            batches.size,
            batches.max_timestamp,
            batches.max_timestamp_offset,
            batches.records_read - records_read,
            batches.records_kept - records_kept,
            read_bytes,
        )

    def close(self) -> None:
        """Let go of the files and of the memory."""
        self._offsets.clear(0)
        for segment in self._segments:
            segment.retire()

    def _groups(self) -> list[list[Segment]]:
        reached = [one for one in self._segments if one.base_offset <= self._offsets.latest_offset]
        if not reached:
            return []
        job = self._job
        end_offset = self._end_of(len(reached) - 1)
        return group_segments(reached, end_offset, job.segment_bytes, job.segment_index_bytes)

    def _end_of(self, number: int) -> int:
        """The base offset of what follows a segment."""
        following = number + 1
        return (
            self._segments[following].base_offset if following < len(self._segments) else self._job.end_offset
        )
