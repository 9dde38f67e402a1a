"""Finding out whether a segment's transaction index is what it was, and making it anew if not.

A log dir's `transaction-index-checkpoint` has a checksum of each index that has entries, see `known_indexes`;
that is all that has to be looked at, as a rule. An index that it does not know, as Apache Kafka or an
earlier version wrote it, or if the checkpoint is lost, is held against the segment's batches, once. Only if
it is empty, and the producer snapshot at the segment's end knows of no transaction, this is left out: else
the first reader of committed records would have to wait until logs without any transaction are read whole.
(Such a snapshot has forgotten those who have been silent for a day by then. So what is not found is the loss
of an index of which no checksum was written, with transactions that were aborted long before its segment's
end.)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.protocol.batch import read_header
from millstream.storage.producer_snapshot import BadSnapshot, decode_snapshot
from millstream.storage.producer_state import NONE
from millstream.storage.recovery import good_chunks, replay_producers
from millstream.storage.replay import note_batch
from millstream.storage.segment import Segment
from millstream.storage.transaction_checkpoint import KnownIndexes
from millstream.storage.transaction_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    Checksum,
    decode_entries,
    encode_entry,
)

if TYPE_CHECKING:
    from millstream.storage.log import Log

_log = logging.getLogger(__name__)


class TransactionCheck:
    """Checks the transaction index that an earlier process left, when it is first used. In any thread."""

    __slots__ = ("_end_offset", "_expected", "_of", "_segment")

    def __init__(self, log: Log, segment: Segment, end_offset: int, expected: Checksum | None) -> None:
        """`end_offset` is what follows the segment's last record when the log is opened."""
        self._of = log
        self._segment = segment
        self._end_offset = end_offset
        self._expected = expected

    def __call__(self, data: bytes) -> bytes | None:
        """What the file should hold instead of `data`; None if that is right."""
        if self._expected is not None:
            if len(data) == self._expected.entry_count * ENTRY_BYTES and crc32c(data) == self._expected.crc:
                return None
        elif not data and not self._may_have_markers():
            return None
        right = self._derive(data)
        if right == data:
            return None
        if not set(decode_entries(right)) <= set(
            decode_entries(data)
        ):  # compaction leaves some without records
            path = self._segment.transaction_index.path
            _log.warning("%s does not agree with the log: it is built again", path)
        return right

    def _may_have_markers(self) -> bool:
        """Whether a producer of a transaction is known at the segment's end."""
        log = self._of
        try:
            producers = decode_snapshot(log.disk.read_file(log.snapshots.path(self._end_offset)))
        except (FileNotFoundError, BadSnapshot):
            return True
        return any(one.coordinator_epoch != NONE or one.transaction_start != NONE for one in producers)

    def _derive(self, data: bytes) -> bytes:
        """The entries by the batches; if these cannot be read to the end, those of the file as well."""
        log, segment = self._of, self._segment
        first_offset = log.segments.first.base_offset
        state = log.snapshots.load(segment.base_offset, first_offset)
        replay_producers(state, log.segments, segment.base_offset)
        entries: list[AbortedTransaction] = []
        size, reached = segment.size, 0
        for chunk in good_chunks(segment, 0, -1, verify_crc=False):
            at, end = 0, len(chunk.data)
            while at < end:
                header = read_header(chunk.data, at)
                if header.producer_id >= 0 and header.base_offset < self._end_offset:
                    aborted = note_batch(state, header, chunk.data[at : at + header.size])
                    if aborted is not None:
                        entries.append(aborted)
                at += header.size
            reached = chunk.position + end
        if reached < size:
            entries = sorted({*entries, *decode_entries(data)}, key=lambda one: one.last_offset)
        return b"".join(map(encode_entry, entries))


def known_indexes(log: Log) -> KnownIndexes:
    """What can be written down of a log's transaction indexes.

    That of the active segment is left out while it may change: it is derived anew if it was not closed.
    """
    segments = log.segments
    until = log.end_offset if log.is_closed else segments.active.base_offset
    start = until
    checksums: dict[int, Checksum] = {}
    for segment in reversed(segments):
        if log.is_closed or segment is not segments.active:
            checksum = segment.transaction_index.checksum()
            if checksum is None:
                break
            start = segment.base_offset
            if checksum.entry_count:
                checksums[segment.base_offset] = checksum
    return KnownIndexes(start, until, checksums)
