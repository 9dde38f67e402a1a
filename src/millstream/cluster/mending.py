"""Damaged logs: what cannot be read any more is cut off, with all that comes after it, and copied anew.

That may happen only when nobody counts on the replica. A leader counts on what a follower fetched in its own
epoch, so the order is: the controller is told; it lets others go on without this replica, in a new leader
epoch (`elections.without_damaged`); in that one nothing is fetched before the log is cut. So `_epochs` must
never be behind: it has the last leader epoch in which each damaged partition was led or fetched.

While it is in the ISR, eligible or doubted, the replica goes on: it may be needed, and all but a little is
sound. Before the cut the leader is made to read what it is to be copied from: it may be damaged elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.clock import Clock
from millstream.cluster.leader_check import read_leader
from millstream.cluster.metadata import NO_LEADER
from millstream.errors import KafkaError, KafkaStorageError

if TYPE_CHECKING:
    from millstream.cluster.fetchers import Fetchers
    from millstream.cluster.partition import Partition
    from millstream.cluster.peers import Peers

log = logging.getLogger(__name__)

PAUSE_S = 5.0
"""How long after it failed mending is tried again."""


class Mending:
    """The damaged logs of one broker. Only the loop uses it."""

    def __init__(
        self,
        partitions: Iterable[Partition],
        fetchers: Fetchers,
        peers: Peers,
        clock: Clock,
        save_watermarks: Callable[[], Awaitable[bool]],
    ) -> None:
        self._partitions = partitions
        self._fetchers = fetchers
        self._peers = peers
        self._broker_id = peers.broker_id
        self._clock = clock
        self._save_watermarks = save_watermarks
        self._epochs: dict[Partition, int] = {}
        self._not_before: dict[Partition, float] = {}

    def follow(self, partition: Partition) -> None:
        """Copy a partition from its leader, unless it is damaged and nobody counts on it."""
        if partition.log.damage is not None and not self._is_counted(partition):
            self._fetchers.remove(partition)
            return
        if partition in self._epochs:
            self._epochs[partition] = partition.leader_epoch
        self._fetchers.follow(partition)

    def report(self) -> Mapping[Partition, int]:
        """The partitions that are damaged and have other replicas, with their epochs."""
        found = [each for each in self._partitions if self._is_damaged(each)]
        for partition in found:
            if partition.is_leader or self._fetchers.is_following(partition):
                self._epochs[partition] = partition.leader_epoch
            else:
                self._epochs.setdefault(partition, partition.leader_epoch)
            if not partition.is_leader:
                self.follow(partition)
        for gone in self._epochs.keys() - found:  # deleted, or cut off otherwise
            self._forget(gone)
        return dict(self._epochs)

    def _forget(self, partition: Partition) -> None:
        self._epochs.pop(partition, None)
        self._not_before.pop(partition, None)
        if not partition.is_leader and partition.failure is None:
            self._fetchers.follow(partition)

    def _is_damaged(self, partition: Partition) -> bool:
        has_others = len(partition.state.replicas) > 1
        return has_others and partition.log.damage is not None and partition.failure is None

    def _is_counted(self, partition: Partition) -> bool:
        state = partition.state
        return self._broker_id in (*state.isr, *state.eligible, *state.doubted)

    async def mend(self) -> None:
        """Cut off what nobody counts on."""
        for partition in list(self._epochs):
            if self._clock.monotonic() < self._not_before.get(partition, 0.0):
                continue
            try:
                await self._mend(partition)
            except (KafkaError, OSError) as error:
                log.error("the damage in %s is not cut off yet: %s", partition.name, error)
                self._not_before[partition] = self._clock.monotonic() + PAUSE_S

    async def _mend(self, partition: Partition) -> None:
        loop, held = asyncio.get_running_loop(), partition.log
        damage = held.damage
        if not self._is_free(partition):
            return
        sound = await loop.run_in_executor(partition.cold_reads, held.find_sound)
        if sound is None or not self._is_free(partition):
            return
        await read_leader(self._peers, partition, sound.end_offset, held.end_offset)
        if not self._is_free(partition):
            return
        partition.hide_from(sound.end_offset)
        # First of all: a start that finds less than what is noted as committed takes it for a loss.
        if not await self._save_watermarks():
            raise KafkaStorageError("it cannot be written down what is committed")
        if not self._is_free(partition) or held.damage is not damage:
            return
        log.warning(
            "%s is cut off at %d, where it is damaged (it ended at %d), and copied anew from broker %d",
            partition.name,
            sound.end_offset,
            held.end_offset,
            partition.state.leader,
        )
        partition.cut_damage(sound)
        self._forget(partition)

    def _is_free(self, partition: Partition) -> bool:
        """Whether no leader counts on what this replica has, nor can before it fetches again."""
        state = partition.state
        return (
            partition.failure is None
            and state.leader not in (NO_LEADER, self._broker_id)
            and not self._is_counted(partition)
            and not self._fetchers.is_following(partition)
            and state.leader_epoch > self._epochs.get(partition, state.leader_epoch)
        )
