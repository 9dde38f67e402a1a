"""Compaction in the background: the dirtiest log first, without holding up clients.

The work is done in a thread, in pieces of a few milliseconds, nearly all of it by the kernel without the
interpreter's lock. A thread that held the lock would cost the loop far more than its share of it: at
each of its system calls the loop lets the lock go, and waits until it has it back. So batches that need
Python (compressed ones, mostly) are taken a few at a time, with rests. Only the moment in which segments
are replaced is the loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from millstream.broker.background import Background
from millstream.broker.housekeeping import in_service
from millstream.errors import KafkaStorageError
from millstream.protocol.kernel import OffsetMap
from millstream.storage.batch_walk import Piece, Uncleanable
from millstream.storage.cleanable import Cleanable, find_cleanable
from millstream.storage.compaction import Compaction, Interrupted
from millstream.storage.log import Log

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)
T = TypeVar("T")

PIECE_BYTES = 4 << 20
"""How many bytes are moved between two looks at the throttle."""
LOCKED_BATCHES = 32
"""How many batches are taken one by one, under the interpreter's lock, before the loop gets a rest of it."""
REST_SECONDS = 0.001
LEAST_CHUNK_BYTES = 16 * 1024


class Cleaner:
    """The compaction of one broker's logs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._busy: set[Log] = set()
        self._uncleanable: dict[Log, str] = {}
        self._max_dirty_ratio = 0.0
        metrics = broker.metrics
        self._runs = metrics.counters("compaction_runs", "Logs that were compacted.").labels()
        self._failures = metrics.counters("compaction_failures", "Compactions that failed.").labels()
        self._read = metrics.counters("compaction_read_bytes", "Bytes that compaction read.").labels()
        self._written = metrics.counters("compaction_written_bytes", "Bytes that compaction wrote.").labels()
        metrics.reading(
            "compaction_max_dirty_ratio",
            "The dirty part of the dirtiest log when compaction last looked.",
            lambda: self._max_dirty_ratio,
        )
        metrics.reading(
            "compaction_uncleanable_partitions",
            "Compacted partitions that cannot be compacted because they are damaged.",
            lambda: len(self._uncleanable),
        )

    def begin(self, background: Background) -> None:
        config = self._broker.config
        if config["log.cleaner.enable"]:
            for _ in range(config["log.cleaner.threads"]):
                worker = _Worker(self, lambda: config["log.cleaner.backoff.ms"])
                background.every("compaction", worker.pause_ms, worker.work)

    async def clean_dirtiest(self) -> bool:
        """Compact the log that needs it most; false if none does, or if it ended early."""
        found = await self._dirtiest()
        if found is None:
            return False
        self._busy.add(found.log)
        try:
            return await self._clean(found)
        finally:
            self._busy.discard(found.log)

    async def _dirtiest(self) -> Cleanable | None:
        logs: list[tuple[Log, int]] = []
        known: set[Log] = set()
        async for partition in in_service(self._broker):
            one = partition.log
            if one.config.is_compacted and len(one.segments) > 1:
                known.add(one)
                if one not in self._busy and one not in self._uncleanable:
                    logs.append((one, partition.last_stable_offset))
        for gone in self._uncleanable.keys() - known:
            del self._uncleanable[gone]
        if not logs:
            self._max_dirty_ratio = 0.0
            return None
        found = await self._in_thread(_look_at, logs, self._broker.clock.now_ms())
        self._max_dirty_ratio = max([one.dirty_ratio for one in found], default=0.0)
        due = [one for one in found if one.is_due and one.log not in self._busy]
        return max(due, key=lambda one: one.dirty_ratio, default=None)

    async def _clean(self, cleanable: Cleanable) -> bool:
        broker, partition = self._broker, cleanable.log.partition
        config = broker.config
        threads = max(1, config["log.cleaner.threads"])
        offsets = OffsetMap(
            config["log.cleaner.dedupe.buffer.size"] // threads,
            config["log.cleaner.io.buffer.load.factor"],
            broker.random.randbytes(16),
        )
        chunk_bytes = max(LEAST_CHUNK_BYTES, config["log.cleaner.io.buffer.size"] // threads // 2)
        compaction = Compaction(cleanable, offsets, broker.clock.now_ms(), chunk_bytes)
        try:
            await self._compact(compaction)
        except Interrupted as error:
            log.info("compaction ended early: %s", error)
            return False
        except Uncleanable as error:
            self._failures.value += 1
            self._uncleanable[cleanable.log] = str(error)
            log.error("%s will not be compacted: %s", partition, error)
        except KafkaStorageError as error:
            self._failures.value += 1
            log.error("compacting %s failed: %s", partition, error)
            raise
        else:
            self._runs.value += 1
            log.info(
                "compacted %s to offset %d: %d of %d records stay",
                partition,
                cleanable.log.cleaned_until,
                *reversed(compaction.records),
            )
        finally:
            self._read.value += compaction.read_bytes
            self._written.value += compaction.written_bytes
        return True

    async def _compact(self, compaction: Compaction) -> None:
        try:
            await self._run(compaction.scan_keys())
            for group in compaction.groups:
                await self._run(compaction.rewrite(group))
                compaction.begin_swap(group)
                await self._in_thread(compaction.make_durable)
                compaction.finish_swap(group)
            compaction.finish()
        finally:
            compaction.abandon()
            await self._in_thread(compaction.discard)
        await self._in_thread(self._broker.store.checkpoint_cleaned, compaction.log)

    async def _run(self, pieces: Iterator[Piece]) -> None:
        """Do work that comes in pieces in a thread, no faster than log.cleaner.io.max.bytes.per.second."""
        loop = asyncio.get_running_loop()
        is_done = False
        while not is_done:
            rate: float = max(1.0, self._broker.config["log.cleaner.io.max.bytes.per.second"])
            began = loop.time()
            done, is_done = await self._in_thread(_advance, pieces, min(PIECE_BYTES, rate / 10))
            rest_s = done.moved_bytes / rate - (loop.time() - began)
            if done.locked >= LOCKED_BATCHES:
                rest_s = max(rest_s, REST_SECONDS)
            if rest_s > 0:
                await asyncio.sleep(rest_s)

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in a thread; even a cancellation waits for its end."""
        future = asyncio.get_running_loop().run_in_executor(None, function, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise


class _Worker:
    """One of log.cleaner.threads: rests when there is nothing to do, or when it failed."""

    def __init__(self, cleaner: Cleaner, backoff_ms: Callable[[], int]) -> None:
        self._cleaner = cleaner
        self._backoff_ms = backoff_ms
        self._is_idle = False

    def pause_ms(self) -> int:
        return self._backoff_ms() if self._is_idle else 0

    async def work(self) -> None:
        self._is_idle = True
        self._is_idle = not await self._cleaner.clean_dirtiest()


def _look_at(logs: list[tuple[Log, int]], now_ms: int) -> list[Cleanable]:
    found = []
    for one, stable_offset in logs:
        try:
            found.append(find_cleanable(one, stable_offset, now_ms))
        except OSError as error:
            if one.failure is None:
                log.warning("cannot see whether %s needs compaction: %s", one.partition, error)
    return found


def _advance(pieces: Iterator[Piece], max_bytes: float) -> tuple[Piece, bool]:
    """Do pieces of work until it is time for a rest; what was done, and whether that was all."""
    moved_bytes = locked = 0
    for piece in pieces:
        moved_bytes += piece.moved_bytes
        locked += piece.locked
        if moved_bytes >= max_bytes or locked >= LOCKED_BATCHES:
            return Piece(moved_bytes, locked), False
    return Piece(moved_bytes, locked), True
