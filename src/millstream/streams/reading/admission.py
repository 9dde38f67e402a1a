"""How far one micro-batch of a stream goes. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.model import TopicPartition
from millstream.streams.offsets import Offsets


def available(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between two places."""
    return sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items())


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """An end at most `limit` offsets behind `start`, shared out in proportion to what each partition has.

    Where `limit` allows it, each partition that has anything gets at least one; where not, those with most
    come first. So none waits for ever.
    Partitions that end before they start (a topic that is another now) stay as they are.
    """
    sizes = {
        partition: offset - start.get(partition, 0)
        for partition, offset in end.items()
        if offset > start.get(partition, 0)
    }
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    least = 1 if limit >= len(sizes) else 0
    spare, rest = limit - least * len(sizes), total - least * len(sizes)
    shares = {partition: least + spare * (size - least) // rest for partition, size in sizes.items()}
    left = limit - sum(shares.values())
    # What rounding left over goes to those who got least of what is theirs.
    for partition in sorted(sizes, key=lambda each: (shares[each] / sizes[each], -sizes[each], each)):
        if not left:
            break
        shares[partition] += 1
        left -= 1
    return {
        partition: start.get(partition, 0) + shares[partition] if partition in shares else offset
        for partition, offset in end.items()
    }
