"""Errors that only consumers meet."""

from __future__ import annotations

from millstream.errors import BadRecords as BadRecords
from millstream.errors import MillstreamError, OffsetOutOfRange
from millstream.model import TopicPartition


class NoOffset(OffsetOutOfRange):
    """There is no offset to begin at, and `offset_reset="none"` forbids to choose one."""

    def __init__(self, message: str, partitions: tuple[TopicPartition, ...] = ()) -> None:
        super().__init__(message)
        self.partitions = partitions


class LogTruncated(OffsetOutOfRange):
    """Records that were read are gone: a new leader never had them (KIP-320)."""

    def __init__(self, message: str, partition: TopicPartition, diverging_offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.diverging_offset = diverging_offset


class NotSubscribed(MillstreamError):
    """The call needs a subscription, an assignment or a group that is not there."""
