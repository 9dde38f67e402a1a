"""Which partition a record goes to.

Sticky, the default: records with a key go where Java's client puts them (murmur2), those without stay with
one partition until its batch is full, then move on to another, so that batches are large. Round robin takes
the partitions in turn, whatever the key. A function of one's own gets topic, key and number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from millstream.protocol.client_kernel import partition_of

PartitionFunction: TypeAlias = Callable[[str, bytes | None, int], int]
"""From topic, key and number of partitions to a partition's index."""
Partitioner: TypeAlias = Literal["sticky", "round_robin"] | PartitionFunction


def murmur2_partition(_topic: str, key: bytes | None, partitions: int) -> int:
    """Java's choice for a key; records without a key all go to partition 0."""
    return 0 if key is None else partition_of(key, partitions)


class RoundRobin:
    """The partitions of each topic in turn."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:
        index = self._next.get(topic, 0) % partitions
        self._next[topic] = index + 1
        return index


def function_of(choice: Partitioner) -> PartitionFunction | None:
    """The function that chooses; None for sticky, which the producer does itself."""
    if callable(choice):
        return choice
    if choice == "sticky":
        return None
    if choice == "round_robin":
        return RoundRobin()
    raise ValueError(f"{choice!r} is not sticky or round_robin, nor a function")
