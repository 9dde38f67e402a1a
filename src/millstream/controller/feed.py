"""What changed lately, numbered, for brokers that follow the controller.

A change notes only what was changed; a broker that asks is told how that is now. So a broker that was away
for several changes hears of each thing once. Changes further back than the last ones are forgotten, and a
broker that asks from there is told everything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

KEPT = 1000
MAX_KEPT_PARTITIONS = 100_000
"""How many changed partitions are remembered at most, counted once for each change."""


@dataclass(slots=True)
class Change:
    """Topics with the partitions that changed, and topics that were deleted."""

    topics: dict[str, set[int]] = field(default_factory=dict)
    deleted: dict[UUID, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.topics.values()))


class Feed:
    """The changes of one controller in one term of office."""

    def __init__(self) -> None:
        self.sequence = 0
        """The number of the last change."""
        self._changes: deque[Change] = deque()
        """The last ones, up to `sequence`."""
        self._kept = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._applied: dict[int, tuple[int, int]] = {}
        """How far each broker is: the epoch in which it said so, and the sequence."""

    def publish(
        self, topics: Mapping[str, Iterable[int]] | None = None, deleted: Mapping[UUID, str] | None = None
    ) -> None:
        """Tell of changed partitions and deleted topics; without either, of brokers or configs."""
        changed = {name: set(indexes) for name, indexes in (topics or {}).items()}
        change = Change(changed, dict(deleted or {}))
        self._changes.append(change)
        self._kept += change.size
        while len(self._changes) > KEPT or self._kept > MAX_KEPT_PARTITIONS:
            self._kept -= self._changes.popleft().size
        self.sequence += 1
        self._wake()

    def restart(self) -> None:
        """Let everybody ask for everything."""
        self._changes.clear()
        self._kept = 0
        self.sequence += 1
        self._wake()

    def since(self, sequence: int) -> Change | None:
        """All that changed after `sequence`; None if that is not known."""
        missed = self.sequence - sequence
        if not 0 <= missed <= len(self._changes):
            return None
        together = Change()
        for number in range(len(self._changes) - missed, len(self._changes)):
            change = self._changes[number]
            for name, indexes in change.topics.items():
                together.topics.setdefault(name, set()).update(indexes)
            together.deleted.update(change.deleted)
        return together

    def recently_deleted(self) -> dict[UUID, str]:
        return {topic_id: name for change in self._changes for topic_id, name in change.deleted.items()}

    async def wait(self, sequence: int, timeout_s: float) -> None:
        """Wait until there is a change after `sequence`, or for so long."""
        loop = asyncio.get_running_loop()
        await self._until(lambda: self.sequence != sequence, loop.time() + timeout_s)

    def note_applied(self, broker_id: int, epoch: int, sequence: int) -> None:
        """A broker has applied what came up to `sequence`."""
        if self._applied.get(broker_id) != (epoch, sequence):
            self._applied[broker_id] = epoch, sequence
            self._wake()

    def has_applied(self, broker_id: int, epoch: int) -> bool:
        """Whether a broker has applied anything since it registered."""
        return self._applied.get(broker_id, (-1, -1))[0] == epoch

    def is_applied(self, sequence: int, epochs: Mapping[int, int]) -> bool:
        """Whether all live brokers have applied what came up to `sequence`."""
        applied = self._applied
        return all(
            broker_id in applied and applied[broker_id][0] == epoch and applied[broker_id][1] >= sequence
            for broker_id, epoch in epochs.items()
        )

    async def until_applied(
        self, sequence: int, epochs: Callable[[], Mapping[int, int]], timeout_s: float
    ) -> bool:
        """Wait until all live brokers, by `epochs`, have applied what came up to `sequence`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        return await self._until(lambda: self.is_applied(sequence, epochs()), deadline)

    def close(self) -> None:
        """Let nobody wait any longer than it takes to see that this is over."""
        self._wake()

    async def _until(self, is_met: Callable[[], bool], deadline: float) -> bool:
        loop = asyncio.get_running_loop()
        while not is_met():
            left = deadline - loop.time()
            if left <= 0:
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiter)
            timer = loop.call_later(left, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        return True

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
