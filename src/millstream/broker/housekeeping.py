"""What a broker does by itself, time and again: retention, flushes by age, checkpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.background import Background
from millstream.errors import KafkaError
from millstream.pauses import Pauses

if TYPE_CHECKING:
    from millstream.broker.server import Broker
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)

FLUSH_CHECK_MS = 1000
HASTY_CHECK_MS = 50
"""How often logs are looked at whose flush.ms is small, at the most."""
DIR_CHECK_MS = 1000
MEND_MS = 500
YIELD_SECONDS = 0.005


class Housekeeping:
    """The repeated work of one broker, none of it holding the loop for long."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._hasty: list[Partition] = []
        """Those whose flush.ms is too small for a look each second; nobody else is looked at more often."""
        self._next_walk = 0.0

    def begin(self, background: Background) -> None:
        config = self._broker.config
        background.every("retention", lambda: config["log.retention.check.interval.ms"], self.retain)
        background.every("flushing by age", self._flush_interval_ms, self.flush_old)
        for folder in self._broker.store.dirs:  # one that hangs does not hold up the others
            background.every(
                f"checkpointing {folder.path}",
                lambda: config["log.flush.offset.checkpoint.interval.ms"],
                partial(self.checkpoint, folder.path),
            )
            background.every(
                f"saving start offsets in {folder.path}",
                lambda: config["log.flush.start.offset.checkpoint.interval.ms"],
                partial(self.checkpoint_starts, folder.path),
            )
            background.every(
                f"looking after {folder.path}",
                lambda: DIR_CHECK_MS,
                partial(self.look_after, folder.path),
            )
            background.every(
                f"removing deleted files of {folder.path}",
                lambda: 1000,
                partial(self.remove_deleted, folder.path),
            )
        background.every("accepting log dirs", lambda: DIR_CHECK_MS, self.accept_dirs)
        background.every(
            "saving high watermarks",
            lambda: config["replica.high.watermark.checkpoint.interval.ms"],
            self._broker.replicas.checkpoint_watermarks,
        )
        background.every(
            "checking followers",
            lambda: max(1, config["replica.lag.time.max.ms"] // 2),
            self._broker.replicas.check_followers,
        )
        background.every("mending damaged logs", lambda: MEND_MS, self._broker.replicas.mend)
        background.every("finishing deletions", lambda: 1000, self._broker.controller.finish_deletions)

    def _flush_interval_ms(self) -> int:
        """Twice within the smallest flush.ms, so that none is missed."""
        interval_ms: int = self._broker.config["log.flush.scheduler.interval.ms"]
        smallest_ms = min([each.log.config.flush_ms for each in self._hasty], default=2 * FLUSH_CHECK_MS)
        return min(interval_ms, FLUSH_CHECK_MS, max(HASTY_CHECK_MS, smallest_ms // 2))

    async def retain(self) -> None:
        """Delete segments that are too old, or too many."""
        now_ms = self._broker.clock.now_ms()
        async for partition in self._healthy():
            expiration_ms = self._broker.config["producer.id.expiration.ms"]
            try:
                if partition.log.needs_confirmed_ages(now_ms):
                    threads = self._broker.threads.reads(partition.log.dir_path)
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(threads, partition.log.confirm_ages, now_ms)
                    if partition.failure is not None or partition.log.is_closed:
                        continue  # it was deleted, or failed, meanwhile
                partition.log.apply_retention(now_ms, partition.high_watermark, expiration_ms)
            except (KafkaError, OSError) as error:  # the others go on: this may be what frees the disk
                log.warning("retention of %s: %s", partition.name, error)

    async def flush_old(self) -> None:
        """Flush the logs that would have older records at the next look than their flush.ms allows."""
        next_ms = self._broker.clock.now_ms() + self._flush_interval_ms()
        for partition in self._hasty:
            if self._is_held(partition) and partition.log.is_flush_due(next_ms):
                partition.start_flush()
        now = self._broker.clock.monotonic()
        if now >= self._next_walk:
            self._next_walk = now + FLUSH_CHECK_MS / 1000
            await self._walk()

    async def _walk(self) -> None:
        """Look at all logs, and note which of them have to be looked at more often."""
        next_ms = self._broker.clock.now_ms() + FLUSH_CHECK_MS
        hasty = []
        async for partition in self._healthy():
            if partition.log.config.flush_ms < 2 * FLUSH_CHECK_MS:
                hasty.append(partition)
            if partition.owes_flush or partition.log.is_flush_due(next_ms):
                partition.start_flush()
        self._hasty = hasty

    def _is_held(self, partition: Partition) -> bool:
        """Whether a partition that was found a moment ago is still in service here."""
        name = partition.name
        found = self._broker.replicas.topic(name.topic).get(name.partition)
        return found is partition and partition.failure is None

    async def checkpoint(self, dir_path: str) -> None:
        """Write down how far recovery may trust each log of a log dir, in a thread."""
        await self._in_thread(self._broker.store.checkpoints.write, dir_path)

    async def checkpoint_starts(self, dir_path: str) -> None:
        """Write down where the logs of a log dir start."""
        await self._in_thread(self._broker.store.checkpoints.write_starts, dir_path)

    async def _in_thread(self, work: Callable[[str], object], dir_path: str) -> None:
        threads = self._broker.threads.flushes(dir_path)
        await asyncio.get_running_loop().run_in_executor(threads, work, dir_path)

    async def look_after(self, dir_path: str) -> None:
        """See whether a log dir is still there, and whether one that was full has room again."""
        await self._in_thread(self._broker.store.dirs.look_after, dir_path)

    async def accept_dirs(self) -> None:
        """Take log dirs for good that were new, once nothing is missing any more."""
        store = self._broker.store
        if store.dirs.has_new:
            await asyncio.get_running_loop().run_in_executor(None, store.accept_new_dirs)

    async def remove_deleted(self, dir_path: str) -> None:
        """Remove what was deleted in a log dir longer than file.delete.delay.ms ago."""
        await self._in_thread(self._broker.store.remove_deleted, dir_path)

    def _healthy(self) -> AsyncIterator[Partition]:
        return in_service(self._broker)


async def in_service(broker: Broker) -> AsyncIterator[Partition]:
    """The partitions that a broker serves, with pauses for other work between them."""
    pauses = Pauses(YIELD_SECONDS)
    for partition in list(broker.replicas):
        if partition.failure is None:
            yield partition
        if pauses.is_due:
            await pauses.take()
