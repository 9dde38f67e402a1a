"""`transaction-index-checkpoint`: what the transaction indexes of a log dir's logs hold, in short.

A file of our own, which Apache Kafka does not look at: text, a line with the version (0), a line with the
CRC-32C of all that follows in hexadecimal digits, then one line for each log: `topic partition from until`,
and `base:count:crc` for each segment between these two offsets whose transaction index has entries. All other
segments there have none, and nothing is said of those outside.

It is written before the recovery points are: an index that they let a start believe is the one it speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.model import TopicPartition
from millstream.storage.checkpoints import BadCheckpoint
from millstream.storage.transaction_index import NO_ENTRIES, Checksum

TRANSACTION_INDEXES: Final = "transaction-index-checkpoint"

_VERSION: Final = "0"


class KnownIndexes(NamedTuple):
    """The transaction indexes of a log's segments between two offsets."""

    start_offset: int
    end_offset: int
    checksums: Mapping[int, Checksum]
    """By the segment's base offset; a segment that is not among them has no entries."""

    def of(self, base_offset: int, end_offset: int) -> Checksum | None:
        """The checksum of a segment that reaches from one offset to another; None if it is not known."""
        if self.start_offset <= base_offset and end_offset <= self.end_offset:
            return self.checksums.get(base_offset, NO_ENTRIES)
        return None


def encode_known(known: Mapping[TopicPartition, KnownIndexes]) -> bytes:
    """The bytes of the file."""
    lines = []
    for (topic, partition), (start, end, checksums) in known.items():
        segments = [f"{base}:{one.entry_count}:{one.crc:08x}" for base, one in checksums.items()]
        lines.append(" ".join((topic, str(partition), str(start), str(end), *segments)))
    body = "\n".join((*lines, "")).encode()
    return f"{_VERSION}\n{crc32c(body):08x}\n".encode() + body


def parse_known(data: bytes) -> dict[TopicPartition, KnownIndexes]:
    """What the file says; BadCheckpoint if it is not whole."""
    version, _, rest = data.partition(b"\n")
    crc, _, body = rest.partition(b"\n")
    if version != _VERSION.encode() or crc != f"{crc32c(body):08x}".encode():
        raise BadCheckpoint("its checksum is wrong")
    found: dict[TopicPartition, KnownIndexes] = {}
    for line in body.decode().splitlines():
        topic, partition, start, end, *segments = line.split(" ")
        checksums = {}
        for segment in segments:
            base, count, segment_crc = segment.split(":")
            checksums[int(base)] = Checksum(int(count), int(segment_crc, 16))
        found[TopicPartition(topic, int(partition))] = KnownIndexes(int(start), int(end), checksums)
    return found
