"""Damaged logs: what cannot be read any more is cut off, with all that comes after it, and copied anew.

That may happen only when nobody counts on the replica. A leader counts on what a follower fetched in its own
epoch, so the order is: nothing more is fetched; the controller is told; it lets others go on without this
replica, in a new leader epoch (`elections.without_damaged`); only then is the log cut, and fetched again in
that epoch. Where nobody else is in sync the replica stays as it is: the rest of it can be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from millstream.cluster.metadata import NO_LEADER
from millstream.errors import KafkaError

if TYPE_CHECKING:
    from millstream.cluster.fetchers import Fetchers
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)


class Mending:
    """The damaged logs of one broker. Only the loop uses it."""

    def __init__(
        self,
        broker_id: int,
        partitions: Iterable[Partition],
        fetchers: Fetchers,
        save_watermarks: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._fetchers = fetchers
        self._save_watermarks = save_watermarks
        self._epochs: dict[Partition, int] = {}
        """The last leader epoch in which each damaged partition may have been fetched, or led."""

    def report(self) -> list[Partition]:
        """The partitions that are damaged and have other replicas. From now on nothing is copied to them."""
        found = [each for each in self._partitions if self._is_damaged(each)]
        for partition in found:
            if not partition.is_leader:
                self._fetchers.remove(partition)
            self._epochs.setdefault(partition, partition.leader_epoch)
        for gone in self._epochs.keys() - found:  # deleted, or cut off otherwise
            del self._epochs[gone]
            self._copy(gone)
        return found

    def _is_damaged(self, partition: Partition) -> bool:
        has_others = len(partition.state.replicas) > 1
        return has_others and partition.log.damage is not None and partition.failure is None

    def _copy(self, partition: Partition) -> None:
        if not partition.is_leader and partition.failure is None:
            self._fetchers.follow(partition)

    async def mend(self) -> None:
        """Cut off what nobody counts on."""
        for partition in list(self._epochs):
            try:
                await self._mend(partition)
            except KafkaError as error:
                log.error("the damage in %s cannot be cut off: %s", partition.name, error.message)

    async def _mend(self, partition: Partition) -> None:
        loop, damage = asyncio.get_running_loop(), partition.log.damage
        if not self._is_free(partition):
            return
        sound = await loop.run_in_executor(partition.cold_reads, partition.log.find_sound)
        if sound is None or not self._is_free(partition):
            return
        partition.hide_from(sound.end_offset)
        await self._save_watermarks()  # a start that finds less than was committed takes it for a loss
        if not self._is_free(partition) or partition.log.damage is not damage:
            return
        log.warning(
            "%s is cut off at %d, where it is damaged (it ended at %d), and copied anew from broker %d",
            partition.name,
            sound.end_offset,
            partition.log.end_offset,
            partition.state.leader,
        )
        partition.cut_damage(sound)
        self._epochs.pop(partition, None)
        self._copy(partition)

    def _is_free(self, partition: Partition) -> bool:
        """Whether no leader counts on what this replica has, nor can before it fetches again."""
        state, broker_id = partition.state, self._broker_id
        return (
            partition.failure is None
            and state.leader not in (NO_LEADER, broker_id)
            and broker_id not in (*state.isr, *state.eligible, state.last_leader)
            and state.leader_epoch > self._epochs.get(partition, state.leader_epoch)
        )
