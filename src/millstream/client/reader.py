"""Reads partitions from given offsets on, wherever their leaders are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType

from millstream.client.cluster import BACKOFF_MS, MAX_BACKOFF_MS, Cluster
from millstream.client.deadline import Deadline
from millstream.client.fetching import Fetched, FetchLimits, fetch
from millstream.client.offsets import (
    EARLIEST,
    READ_UNCOMMITTED,
    list_offsets,
    partitions_by_leader,
)
from millstream.client.record import ReadBatch
from millstream.errors import CorruptMessage, KafkaError, OffsetOutOfRange, RequestTimedOut
from millstream.model import TopicPartition
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of, readable_batches
from millstream.protocol.header import GOOD, REASONS, TRUNCATED
from millstream.protocol.kernel import append_records, scan_batches


class Reader:
    """Reads the records of partitions in order, one Fetch in flight to each leader.

    `positions` holds for each partition the next offset to be read; it may be changed between two
    calls of `poll`. While the caller works on what it got, the next records are on their way.
    Errors that pass (a leader that moves, a broker that restarts) are survived for `timeout_ms`.
    Where records were deleted before they were read, `on_gap(partition, position, start)` is
    called and reading goes on at the new start.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        isolation_level: int = READ_UNCOMMITTED,
        limits: FetchLimits | None = None,
        timeout_ms: float = 30_000,
        on_gap: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        self.positions = dict(positions)
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._limits = limits or FetchLimits()
        self._timeout_ms = timeout_ms
        self._on_gap = on_gap
        self._fetches: dict[asyncio.Task[list[Fetched]], frozenset[TopicPartition]] = {}
        self._give_up_at: Deadline | None = None
        self._pause_ms = float(BACKOFF_MS)
        self._failure: KafkaError | None = None

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading; the fetches in flight are given up."""
        tasks = list(self._fetches)
        self._fetches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop(self, partition: TopicPartition) -> None:
        """Stop reading one partition."""
        self.positions.pop(partition, None)

    async def poll(self, timeout_ms: float) -> list[ReadBatch]:
        """The next records, batch by batch; nothing if none come in time."""
        deadline = Deadline(timeout_ms)
        while True:
            batches = await self._poll_once(deadline)
            if batches or deadline.has_passed or not self.positions:
                return batches

    async def _poll_once(self, deadline: Deadline) -> list[ReadBatch]:
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                await self._pause_after(failure)
            await self._start_fetches()
        except KafkaError as error:
            if not error.retriable:
                raise
            self._failure = error
            return []
        if not self._fetches:
            return []
        done, _ = await asyncio.wait(
            self._fetches, timeout=deadline.remaining_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        batches: list[ReadBatch] = []
        for task in done:
            batches += await self._take_all(task, self._fetches.pop(task))
        if done and self._failure is None:
            self._give_up_at, self._pause_ms = None, float(BACKOFF_MS)
        if batches and self._failure is None:
            try:
                await self._start_fetches()
            except KafkaError as error:
                self._failure = error
        return batches

    async def _take_all(
        self, task: asyncio.Task[list[Fetched]], partitions: frozenset[TopicPartition]
    ) -> list[ReadBatch]:
        """What a Fetch brought. An error of one partition does not keep back the records of others."""
        try:
            results = task.result()
        except KafkaError as error:
            for partition in partitions:
                self._cluster.forget(partition.topic)
            self._failure = error
            return []
        batches: list[ReadBatch] = []
        for fetched in results:
            try:
                batches += await self._take(fetched)
            except KafkaError as error:
                self._cluster.forget(fetched.partition.topic)
                self._failure = error
        return batches

    async def _start_fetches(self) -> None:
        """One Fetch for each leader that has partitions which no Fetch is out for."""
        in_flight = frozenset[TopicPartition]().union(*self._fetches.values())
        idle = [partition for partition in self.positions if partition not in in_flight]
        if not idle:
            return
        deadline = Deadline(self._timeout_ms)
        for leader, partitions in (await partitions_by_leader(self._cluster, idle, deadline)).items():
            positions = {partition: self.positions[partition] for partition in partitions}
            task = asyncio.ensure_future(
                fetch(
                    self._cluster,
                    leader,
                    positions,
                    deadline,
                    limits=self._limits,
                    isolation_level=self._isolation_level,
                )
            )
            self._fetches[task] = frozenset(partitions)

    async def _take(self, fetched: Fetched) -> list[ReadBatch]:
        partition = fetched.partition
        position = self.positions.get(partition)
        if position is None:
            return []
        if isinstance(fetched.error, OffsetOutOfRange):
            await self._skip_gap(partition, position)
            return []
        if fetched.error is not None:
            raise fetched.error
        view = memoryview(fetched.records)
        scan = scan_batches(view, 0, len(view), True)
        if scan.batches == 0:
            if scan.error not in (GOOD, TRUNCATED):
                raise _Corrupt(f"partition {partition} at offset {position}: {REASONS[scan.error]}")
            return []
        batches: list[ReadBatch] = []
        next_position = max(position, scan.last_offset + 1)
        aborted = fetched.aborted if self._isolation_level != READ_UNCOMMITTED else None
        for header, at in readable_batches(view[: scan.position], position, aborted, False, False):
            payload, start = payload_of(view, header, at, MAX_DECOMPRESSED_BYTES)
            read = ReadBatch(partition, header, [])
            error = append_records(read.records, payload, header, position, start)
            if error != GOOD and not batches:
                raise _Corrupt(f"partition {partition} at offset {header.base_offset}: {REASONS[error]}")
            if error != GOOD:
                next_position = header.base_offset  # what is good comes first; the next Fetch meets the bad
                break
            if read.records:
                batches.append(read)
        # To the end of the line: else those before it would be served first for as long as they have records.
        del self.positions[partition]
        self.positions[partition] = next_position
        return batches

    async def _skip_gap(self, partition: TopicPartition, position: int) -> None:
        found = await list_offsets(self._cluster, {partition: EARLIEST}, Deadline(self._timeout_ms))
        start = found[partition].offset
        if position >= start:
            raise OffsetOutOfRange(
                f"partition {partition} has become shorter: it ends before offset {position}"
            )
        self.positions[partition] = start
        if self._on_gap is not None:
            self._on_gap(partition, position, start)

    async def _pause_after(self, error: KafkaError) -> None:
        """Pause before the next try; raise what lasts longer than the time-out or never passes."""
        if not error.retriable:
            raise error
        if self._give_up_at is None:
            self._give_up_at = Deadline(self._timeout_ms)
        if self._give_up_at.has_passed:
            raise _GaveUp(
                f"nothing could be read for {self._timeout_ms:.0f} ms; the last error was: {error}"
            ) from error
        await asyncio.sleep(self._pause_ms / 1000)
        self._pause_ms = min(self._pause_ms * 2, MAX_BACKOFF_MS)


class _Corrupt(CorruptMessage):
    """The broker's own check lets no such bytes out, so trying again gives the same ones."""

    retriable = False


class _GaveUp(RequestTimedOut):
    """Every try failed for as long as the caller allowed."""

    retriable = False
