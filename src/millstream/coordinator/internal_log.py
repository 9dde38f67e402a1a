"""A partition of an internal topic as coordinators see it: entries in, and batches of entries back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.coordinator.shard import Entry, Producer, Shard

ENTRIES_A_STEP = 256


@dataclass(slots=True)
class LoadedBatch:
    """A batch of an internal topic, decoded: entries with their offsets.

    A marker that ends a transaction has no entries, and says by `is_commit` how it ended.
    """

    entries: list[tuple[int, Entry]]
    producer: Producer | None = None
    is_commit: bool | None = None


class InternalLog(Protocol):
    """A partition of an internal topic that this broker leads."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def append(self, entries: Sequence[Entry], producer: Producer | None) -> int:
        """Append one batch, at once; the offset after it. Raises KafkaError and appends nothing."""
        ...

    def when_committed(self, next_offset: int) -> asyncio.Future[None] | None:
        """A future that ends when everything below the offset is committed; None if it is.

        NotCoordinator if another broker may lead by now.
        """
        ...

    async def read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        """Batches from `offset` on, some megabytes at most, and where to go on; none at the end."""
        ...


def replay_steps(shard: Shard, batches: Iterable[LoadedBatch]) -> Iterator[None]:
    """Replay batches that were read from the log, some entries a step."""
    for batch in batches:
        producer = batch.producer
        if batch.is_commit is not None and producer is not None:
            shard.replay_end(producer, batch.is_commit)
        entries = batch.entries
        for start in range(0, len(entries), ENTRIES_A_STEP):
            for at, entry in entries[start : start + ENTRIES_A_STEP]:
                shard.replay(entry, producer, at)
            yield
