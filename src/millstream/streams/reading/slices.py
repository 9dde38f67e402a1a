"""Slices: which task reads which offsets. Pure functions: the same offsets give the same slices."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from millstream.model import TopicPartition


class Slice(InputPartition):
    """The records of one partition from `start` up to, not including, `end`: what one task reads.

    `is_new` says that the query came upon the partition while it ran and reads it from its first record,
    wherever that is; elsewhere a missing `start` means that records were lost. `topic_id`, where it is known,
    is the topic that the offsets are of: another one of that name has none of these records.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        is_new: bool = False,
        topic_id: str | None = None,
    ) -> None:
        super().__init__((topic, partition, start, end, is_new, topic_id))
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.is_new = is_new
        self.topic_id = topic_id


def slices(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    *,
    known: Container[TopicPartition] | None = None,
    ids: Mapping[str, str] | None = None,
    min_partitions: int = 0,
    max_records: int | None = None,
) -> list[InputPartition]:
    """The offsets between `start` and `end` cut into slices, in order of topic, partition and offset.

    A slice holds at most `max_records` offsets; if there would be fewer than `min_partitions`, the large
    ranges are cut, in proportion to their size. A partition that `start` or `known` lacks is new. `ids` are
    those of the topics, as far as they are known.
    """
    known = start if known is None else known
    ranges = [
        (partition, start.get(partition, 0), end[partition], partition not in start or partition not in known)
        for partition in sorted(end)
        if end[partition] > start.get(partition, 0)
    ]
    pieces = [-(-(last - first) // max_records) if max_records else 1 for _, first, last, _ in ranges]
    if sum(pieces) < min_partitions:
        total = sum(last - first for _, first, last, _ in ranges)
        wanted = [max(1, round(min_partitions * (last - first) / total)) for _, first, last, _ in ranges]
        pieces = [max(one, other) for one, other in zip(pieces, wanted, strict=True)]
    found: list[InputPartition] = []
    for (partition, first, last, is_new), count in zip(ranges, pieces, strict=True):
        size, count = last - first, min(count, last - first)
        edges = [first + size * i // count for i in range(count + 1)]
        found += [
            Slice(*partition, low, high, is_new, (ids or {}).get(partition.topic))
            for low, high in pairwise(edges)
        ]
    return found
