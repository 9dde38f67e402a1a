"""Records as a client reads them: with the place and the batch that they came from."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from millstream.model import TopicPartition
from millstream.protocol.header import BatchHeader
from millstream.protocol.record import Record

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class ReadBatch(NamedTuple):
    """Records of one batch, from the position that was asked for on."""

    partition: TopicPartition
    header: BatchHeader
    records: list[Record]
