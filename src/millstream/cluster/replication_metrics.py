"""What is exported of replication: read when somebody asks, and counted where it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from millstream.metrics import Counter, Metrics

if TYPE_CHECKING:
    from millstream.cluster.leadership import Leadership
    from millstream.cluster.partition import Partition


class ReplicationCounters:
    """Counted by fetchers, sessions and ISR changes."""

    __slots__ = ("bytes_in", "bytes_out", "expansions", "shrinks", "truncations")

    def __init__(self) -> None:
        self.bytes_in = Counter()
        self.bytes_out = Counter()
        self.expansions = Counter()
        self.shrinks = Counter()
        self.truncations = Counter()


def export(
    metrics: Metrics, counters: ReplicationCounters, partitions: Callable[[], Iterable[Partition]]
) -> None:
    """Let the metrics tell how the replicas of one broker are."""
    reading = metrics.reading

    def leaderships() -> Iterator[Leadership]:
        for partition in partitions():
            leadership = partition.leadership  # the loop may take it away meanwhile
            if leadership is not None:
                yield leadership

    reading(
        "leaders", "Partitions that this broker leads.", lambda: sum(one.is_leader for one in partitions())
    )
    reading(
        "under_replicated_partitions",
        "Partitions led here that have replicas out of sync.",
        lambda: sum(one.is_under_replicated for one in leaderships()),
    )
    reading(
        "under_min_isr_partitions",
        "Partitions led here that take no writes with acks=all, for want of replicas in sync.",
        lambda: sum(not one.has_enough for one in leaderships()),
    )
    for name, doc, counter in (
        ("replicated_bytes_in", "Bytes copied from leaders.", counters.bytes_in),
        ("replicated_bytes_out", "Bytes given to followers.", counters.bytes_out),
        ("isr_expansions", "Replicas that came to be in sync, of partitions led here.", counters.expansions),
        ("isr_shrinks", "Replicas that fell out of sync, of partitions led here.", counters.shrinks),
        ("truncations", "Logs cut off to be like their leader's.", counters.truncations),
    ):
        reading(name, doc, _value_of(counter), kind="counter")


def _value_of(counter: Counter) -> Callable[[], float]:
    return lambda: counter.value
