"""Records with the batch that they came in."""

from __future__ import annotations

from typing import NamedTuple

from millstream.model import TopicPartition
from millstream.protocol.consumer_kernel import Record
from millstream.protocol.header import BatchHeader


class ReadBatch(NamedTuple):
    """Records of one batch, from the position on, and its header: leader epoch, compression, producer."""

    partition: TopicPartition
    header: BatchHeader
    records: list[Record]
