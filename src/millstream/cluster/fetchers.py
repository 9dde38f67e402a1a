"""Who copies what: each partition that this broker follows is with the fetcher of its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.clock import Clock
from millstream.cluster.fetcher import Fetcher
from millstream.cluster.metadata import NO_LEADER
from millstream.cluster.peers import Peers
from millstream.cluster.replication_metrics import ReplicationCounters
from millstream.cluster.throttle import Throttle
from millstream.config.broker import BrokerConfig

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition


class Fetchers:
    """The fetchers of one broker, by the leader that they copy from."""

    def __init__(
        self,
        peers: Peers,
        config: BrokerConfig,
        clock: Clock,
        broker_epoch: Callable[[], int],
        counters: ReplicationCounters,
    ) -> None:
        self._peers = peers
        self._config = config
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._counters = counters
        self._throttle = Throttle(lambda: config["follower.replication.throttled.rate"], clock)
        self._fetchers: dict[int, Fetcher] = {}
        self._places: dict[Partition, tuple[int, int]] = {}
        """The leader and the leader epoch in which each partition is copied."""
        self._is_stopped = False

    def follow(self, partition: Partition) -> None:
        """Copy a partition from its leader, in its present epoch; from nobody if it has none."""
        leader = partition.state.leader
        place = (leader, partition.leader_epoch)
        if self._places.get(partition) == place:
            return
        self.remove(partition)
        if leader == NO_LEADER or partition.failure is not None or self._is_stopped:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                self._peers,
                self._config,
                self._clock,
                self._broker_epoch,
                self._throttle,
                self._counters,
            )
        self._places[partition] = place
        fetcher.add(partition)

    def is_following(self, partition: Partition) -> bool:
        """Whether a partition is being copied."""
        return partition in self._places

    def remove(self, partition: Partition) -> None:
        """Copy a partition no more."""
        place = self._places.pop(partition, None)
        if place is not None:
            self._fetchers[place[0]].remove(partition)

    def brokers_changed(self) -> None:
        """Brokers came, went or moved, perhaps this one."""
        for fetcher in self._fetchers.values():
            fetcher.brokers_changed()

    async def stop(self) -> None:
        self._is_stopped = True
        await asyncio.gather(*[fetcher.stop() for fetcher in self._fetchers.values()])
