"""One partition that is copied from its leader: what an answer to a fetch does to its log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.cluster import rules
from millstream.errors import CorruptMessage, KafkaError, OffsetOutOfRange, error_for
from millstream.protocol.batch import read_header, scan_batches
from millstream.protocol.header import GOOD, HEADER_SIZE
from millstream.protocol.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)

Key = tuple[UUID, int]

FIRST_PAUSE_S = 0.02


class Following:
    """A follower's partition, in one leader epoch."""

    __slots__ = ("_pause_s", "key", "leader_epoch", "not_before", "partition", "sent_offset")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: Key = (partition.topic_id, partition.name.partition)
        self.leader_epoch = partition.leader_epoch
        self.sent_offset = -1
        """Where the fetch that is under way reads from, -1 if none is."""
        self.not_before = 0.0
        """Until when nothing is asked for, after an error."""
        self._pause_s = FIRST_PAUSE_S

    def wanted(self, max_bytes: int) -> FetchRequest.FetchPartition:
        """What to ask the leader for."""
        partition = self.partition
        found = partition.log
        self.sent_offset = found.end_offset
        return FetchRequest.FetchPartition(
            partition=partition.name.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=found.end_offset,
            last_fetched_epoch=found.epochs.latest,
            log_start_offset=found.start_offset,
            partition_max_bytes=max_bytes,
            high_watermark=partition.high_watermark,
        )

    def take(self, data: FetchResponse.PartitionData) -> bool:
        """Do what the leader's answer says; whether the next fetch has to say something new.

        Raises KafkaError if the answer is one, or cannot be followed.
        """
        partition, held = self.partition, self.partition.log
        if data.error_code:
            if data.error_code == OffsetOutOfRange.code and self._may_restart(data.log_start_offset):
                log.info("%s begins anew at its leader's start, %d", partition.name, data.log_start_offset)
                partition.restart(data.log_start_offset)
                return True
            raise error_for(data.error_code)(f"the leader refused a fetch of {partition.name}")
        if data.diverging_epoch is not None:
            told = data.diverging_epoch
            offset = rules.truncation(held.epochs.entries, held.end_offset, told.epoch, told.end_offset)
            log.info(
                "%s is cut off at %d (it ended at %d): the leader's epoch %d ends at %d",
                partition.name,
                offset,
                held.end_offset,
                told.epoch,
                told.end_offset,
            )
            if self._is_compacted_from(offset):
                log.warning("%s is copied anew: it was compacted beyond %d", partition.name, offset)
                partition.restart(0)
            else:
                partition.truncate(offset)
            return True
        before, records = (held.start_offset, partition.high_watermark), data.records
        if records:
            batches = memoryview(records)
            self._check(batches, first := self._first_offset(batches))
            if first < held.end_offset:
                log.info("%s begins anew at %d, with the batch that holds its start", partition.name, first)
                partition.restart(first)
            partition.copy(batches, data.high_watermark, data.log_start_offset)
        else:
            partition.copy(memoryview(b""), data.high_watermark, data.log_start_offset)
        self._pause_s = FIRST_PAUSE_S
        return bool(records) or before != (held.start_offset, partition.high_watermark)

    def _is_compacted_from(self, offset: int) -> bool:
        """Whether records may be gone from below an offset because of later ones that are to be cut off.

        Only what is committed is compacted, and only an unclean election cuts that off.
        """
        held = self.partition.log
        committed = self.partition.high_watermark if held.config.is_compacted else 0
        return offset < max(held.cleaned_until, committed)

    def _may_restart(self, leader_start: int) -> bool:
        """Whether this log lies before all that the leader has, or holds nothing at all.

        One that reaches beyond the leader's is cut off by epochs, never like this.
        """
        held = self.partition.log
        return leader_start > held.end_offset or (leader_start >= 0 and held.start_offset == held.end_offset)

    def _first_offset(self, batches: memoryview) -> int:
        """Where what was sent may begin: where this log ends, or before that if it holds nothing yet.

        Records were deleted up to the middle of a batch, and whoever begins there is sent the whole of it.
        """
        held = self.partition.log
        if held.start_offset == held.end_offset and len(batches) >= HEADER_SIZE:
            first = read_header(batches)
            if first.base_offset < held.end_offset <= first.last_offset:
                return first.base_offset
        return held.end_offset

    def _check(self, batches: memoryview, first_offset: int) -> None:
        scan = scan_batches(batches, 0, len(batches), True, first_offset)
        if scan.error != GOOD:
            raise CorruptMessage(
                f"the leader of {self.partition.name} sent a bad batch after offset {scan.last_offset}: "
                f"{scan.reason}"
            )

    def failed(self, error: KafkaError, now: float, max_pause_s: float) -> None:
        """Ask for nothing until a moment has passed, which grows from one failure to the next."""
        log.log(
            logging.DEBUG if error.retriable else logging.WARNING,
            "%s is not copied for %.2f s: %s",
            self.partition.name,
            self._pause_s,
            error.message,
        )
        self.postponed(now, max_pause_s)

    def postponed(self, now: float, max_pause_s: float) -> float:
        """Ask for nothing for a moment, which grows from one time to the next; how long."""
        pause_s = self._pause_s
        self.not_before = now + pause_s
        self._pause_s = min(pause_s * 2, max_pause_s)
        return pause_s
