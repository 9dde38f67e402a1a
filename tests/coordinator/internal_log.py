"""A log of an internal topic in memory, whose high watermark the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.coordinator.internal_log import LoadedBatch
from millstream.coordinator.shard import Entry, Producer
from millstream.errors import KafkaError, NotCoordinator

PAGE = 100
"""How many entries one read gives."""


class ScriptedLog:
    """What is appended is committed at once, or when `commit` says so."""

    def __init__(self) -> None:
        self.batches: list[LoadedBatch] = []
        self.end_offset = 0
        self.committed = 0
        self.commits_at_once = True
        self.refuses: KafkaError | None = None
        self.is_led = True
        """Whether it is certain that no other broker leads."""
        self.read_failures: list[Exception] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def append(self, entries: Sequence[Entry], producer: Producer | None) -> int:
        if self.refuses is not None:
            raise self.refuses
        start = self.end_offset
        self.batches.append(LoadedBatch([(start + i, entry) for i, entry in enumerate(entries)], producer))
        self.end_offset += len(entries)
        if self.commits_at_once:
            self.committed = self.end_offset
        return self.end_offset

    def append_marker(self, producer: Producer, *, is_commit: bool) -> None:
        self.batches.append(LoadedBatch([], producer, is_commit))
        self.end_offset += 1
        self.committed = self.end_offset

    def when_committed(self, next_offset: int) -> asyncio.Future[None] | None:
        if not self.is_led:
            raise NotCoordinator
        if next_offset <= self.committed:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((next_offset, future))
        return future

    def commit(self) -> None:
        """Let everything be committed."""
        self.committed = self.end_offset
        for _, future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def fail(self, error: KafkaError) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        await asyncio.sleep(0)
        if self.read_failures:
            raise self.read_failures.pop()
        found: list[LoadedBatch] = []
        position = 0
        for batch in self.batches:
            size = len(batch.entries) or 1
            if position >= offset and sum(len(each.entries) for each in found) < PAGE:
                found.append(batch)
                offset = position + size
            position += size
        return found, offset
