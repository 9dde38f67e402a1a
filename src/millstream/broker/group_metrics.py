"""What the metrics tell of groups: how many there are in which state, and how far behind each is."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from millstream.broker.remote_ends import RemoteEnds
from millstream.coordinator.groups.shard import GroupShard
from millstream.model import TopicPartition

if TYPE_CHECKING:
    from millstream.broker.server import Broker

MAX_LAGS = 20_000
"""How many lags are exported at most; beyond that a scrape would take seconds."""


class GroupMetrics:
    """Reads the shards when somebody asks, from the thread that the metrics are read in."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.remote_ends = RemoteEnds(broker)
        reading = broker.metrics.reading
        reading(
            "groups", "Groups that this broker coordinates, by type and state.", self._states, "type", "state"
        )
        reading(
            "group_lag",
            "Records between what a group coordinated here has committed and the partition's end.",
            self._lags,
            "group",
            "topic",
            "partition",
        )

    def _states(self) -> dict[tuple[str, ...], float]:
        counts: Counter[tuple[str, ...]] = Counter()
        for shard in list(self._broker.groups):
            for group in shard.snapshot():
                counts[group.kind, group.state.value] += 1
        return dict(counts)

    def _lags(self) -> dict[tuple[str, ...], float]:
        lags: dict[tuple[str, ...], float] = {}
        for shard in list(self._broker.groups):
            self._add_lags(shard, lags)
        return lags

    def _add_lags(self, shard: GroupShard, lags: dict[tuple[str, ...], float]) -> None:
        topics = self._broker.replicas.topic
        for group_id in shard.offsets.groups():
            room = MAX_LAGS - len(lags)
            if room <= 0:
                return
            for (topic, index), committed in islice(shard.offsets.of(group_id), room):
                partition = topics(topic).get(index)
                end = (
                    partition.high_watermark
                    if partition is not None and partition.is_leader
                    else self.remote_ends.get(TopicPartition(topic, index))
                )
                if end is not None and committed.offset >= 0:
                    lags[group_id, topic, str(index)] = max(end - committed.offset, 0)
