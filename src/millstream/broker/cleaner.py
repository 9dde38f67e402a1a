"""Compaction in the background: the dirtiest log first, without holding up clients."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.broker.background import Background
from millstream.broker.cleaning_work import ProcessWork, ThreadWork, Work, in_thread
from millstream.broker.housekeeping import in_service
from millstream.errors import KafkaStorageError
from millstream.storage.batch_walk import Uncleanable
from millstream.storage.cleanable import Cleanable, find_cleanable
from millstream.storage.cleaning_job import CleaningJob
from millstream.storage.cleaning_process import CleaningProcess, CleaningProcessDied
from millstream.storage.compaction import Compaction, Interrupted
from millstream.storage.damage import meet_damage
from millstream.storage.log import Log
from millstream.storage.os_disk import OsDisk

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

THREAD_BYTES = 16 << 20
"""How much a thread reads; for more there is a process."""
LEAST_CHUNK_BYTES = 16 * 1024


class Cleaner:
    """The compaction of one broker's logs: what its workers share."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.busy: set[Log] = set()
        self.uncleanable: dict[Log, int] = {}
        """The logs that are damaged, with how often their ends had been cut off then. They are tried again
        after the next time, which may have mended them, and after a restart."""
        self._max_dirty_ratio = 0.0
        self._workers = 0
        self._background: Background | None = None
        metrics = broker.metrics
        self.runs = metrics.counters("compaction_runs", "Logs that were compacted.").labels()
        self.failures = metrics.counters("compaction_failures", "Compactions that failed.").labels()
        self.read_bytes = metrics.counters("compaction_read_bytes", "Bytes that compaction read.").labels()
        self.kept_bytes = metrics.counters(
            "compaction_written_bytes", "Bytes of segments that compaction wrote."
        ).labels()
        metrics.reading(
            "compaction_max_dirty_ratio",
            "The dirty part of the dirtiest log when compaction last looked.",
            lambda: self._max_dirty_ratio,
        )
        metrics.reading(
            "compaction_uncleanable_partitions",
            "Compacted partitions that cannot be compacted because they are damaged.",
            lambda: len(self.uncleanable),
        )

    def begin(self, background: Background) -> None:
        if self.broker.config["log.cleaner.enable"]:
            self._background = background
            self.configure()

    @property
    def threads(self) -> int:
        """How many logs may be compacted at a time, as it is set now."""
        threads: int = self.broker.config["log.cleaner.threads"]
        return threads

    def rate(self) -> float:
        """How many bytes a second a compaction may read and write, as it is set now."""
        rate: float = self.broker.config["log.cleaner.io.max.bytes.per.second"]
        return max(1.0, rate)

    def configure(self) -> None:
        """Start the workers that are missing, where more are allowed now. Where fewer are, the last rest."""
        if self._background is not None:
            for number in range(self._workers, self.threads):
                worker = Worker(self, number)
                self._background.every("compaction", worker.pause_ms, worker.work)
                self._workers += 1

    async def dirtiest(self) -> Cleanable | None:
        """The log that needs compaction most, None if none does."""
        logs: list[tuple[Log, int]] = []
        known: set[Log] = set()
        async for partition in in_service(self.broker):
            one = partition.log
            if one.config.is_compacted and len(one.segments) > 1:
                if self.uncleanable.get(one, one.cuts) == one.cuts:
                    known.add(one)
                if one not in self.busy and one not in self.uncleanable:
                    logs.append((one, partition.last_stable_offset))
        for gone in self.uncleanable.keys() - known:
            del self.uncleanable[gone]
        found = await in_thread(_look_at, logs, self.broker.clock.now_ms()) if logs else []
        self._max_dirty_ratio = max([one.dirty_ratio for one in found], default=0.0)
        due = [one for one in found if one.is_due and one.log not in self.busy]
        return max(due, key=lambda one: one.dirty_ratio, default=None)


class Worker:
    """One of log.cleaner.threads: compacts one log after another, and rests when none needs it."""

    def __init__(self, cleaner: Cleaner, number: int = 0) -> None:
        self._cleaner = cleaner
        self._number = number
        self._config = cleaner.broker.config
        self._process: CleaningProcess | None = None
        self._has_looked = False

    def pause_ms(self) -> int:
        backoff_ms: int = self._config["log.cleaner.backoff.ms"]
        return backoff_ms if self._has_looked else 0

    async def work(self) -> None:
        """Compact whatever needs it."""
        self._has_looked = True
        cleaner, busy = self._cleaner, self._cleaner.busy
        try:
            while self._number < cleaner.threads:
                found = await cleaner.dirtiest()
                if found is None:
                    return
                busy.add(found.log)
                try:
                    if not await self._clean(found):
                        return
                finally:
                    busy.discard(found.log)
        finally:
            if self._process is not None:
                process, self._process = self._process, None
                await in_thread(process.close)

    async def _clean(self, cleanable: Cleanable) -> bool:
        """Compact one log; false if it is better to wait before the next."""
        cleaner, partition = self._cleaner, cleanable.log.partition
        compaction = Compaction(cleanable, cleaner.broker.clock.now_ms())
        try:
            await self._compact(compaction)
        except Interrupted as error:
            log.info("compaction ended early: %s", error)
            return False
        except Uncleanable as error:
            cleaner.failures.value += 1
            cleaner.uncleanable[cleanable.log] = cleanable.log.cuts
            log.error("%s will not be compacted: %s", partition, error)
            await in_thread(meet_damage, cleanable.log)
        except (KafkaStorageError, CleaningProcessDied) as error:
            if cleanable.log.is_closed:  # deleted, or moved away
                log.info("compaction ended early: %s", error)
                return False
            cleaner.failures.value += 1
            log.error("compacting %s failed: %s", partition, error)
            return False
        else:
            cleaner.runs.value += 1
        return True

    async def _compact(self, compaction: Compaction) -> None:
        cleaner, config = self._cleaner, self._config
        work: Work | None = None
        records_read = records_kept = 0
        try:
            threads = max(1, cleaner.threads)
            job = await in_thread(
                compaction.prepare,
                config["log.cleaner.dedupe.buffer.size"] // threads,
                config["log.cleaner.io.buffer.load.factor"],
                cleaner.broker.random.randbytes(16),
                max(LEAST_CHUNK_BYTES, config["log.cleaner.io.buffer.size"] // threads // 2),
            )
            work = await self._begin(compaction, job)
            scanned = await work.scan()
            cleaner.read_bytes.value += scanned.read_bytes
            for group in scanned.groups:
                rewritten = await work.rewrite(group)
                cleaner.read_bytes.value += rewritten.read_bytes
                cleaner.kept_bytes.value += rewritten.size
                records_read += rewritten.records_read
                records_kept += rewritten.records_kept
                compaction.begin_swap(group, rewritten)
                await in_thread(compaction.make_durable)
                compaction.finish_swap()
            compaction.finish(scanned.cleaned_until)
        except (OSError, Uncleanable) as error:
            raise compaction.explain(error) from error
        finally:
            if work is not None:
                await work.close()
            compaction.abandon()
            await in_thread(compaction.discard)
        await in_thread(cleaner.broker.store.checkpoints.write_cleaned, compaction.log)
        log.info(
            "compacted %s to offset %d: %d of %d records stay",
            compaction.log.partition,
            scanned.cleaned_until,
            records_kept,
            records_read,
        )

    async def _begin(self, compaction: Compaction, job: CleaningJob) -> Work:
        disk = self._cleaner.broker.disk
        if isinstance(disk, OsDisk) and job.read_bytes > THREAD_BYTES:
            if self._process is None:
                await in_thread(self._start_process)
            if self._process is not None:
                return ProcessWork(compaction, job, self._process, self._cleaner.rate)
        return ThreadWork(compaction, job, disk, self._cleaner.rate)

    def _start_process(self) -> None:
        """Start one, unless the machine has none to give, or the interpreter's file is gone by an upgrade."""
        try:
            self._process = CleaningProcess()
        except OSError as error:
            log.warning("no process to compact in can be started, a thread does it: %s", error)


def _look_at(logs: list[tuple[Log, int]], now_ms: int) -> list[Cleanable]:
    found = []
    for one, stable_offset in logs:
        try:
            found.append(find_cleanable(one, stable_offset, now_ms))
        except OSError as error:
            if one.failure is None:
                log.warning("cannot see whether %s needs compaction: %s", one.partition, error)
    return found
