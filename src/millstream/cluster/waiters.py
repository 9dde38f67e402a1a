"""What waits on a partition: producers for an offset to be safe, fetches for bytes to come, followers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

MANY = 1000


class Watcher(Protocol):
    """A follower's place in a leader's partition. Told of everything at once, from within the append."""

    def appended(self) -> None:
        """There are more records."""
        ...

    def committed(self) -> None:
        """The high watermark has moved."""
        ...

    def changed(self) -> None:
        """What the follower was told may not hold any more."""
        ...


class OffsetWaiters:
    """Futures that end when an offset is passed. Offsets are asked for in growing order mostly."""

    __slots__ = ("_many", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._many = MANY

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future that ends when `passed` is called with at least `offset`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= self._many:
            self._sweep()
        waiting = self._waiting
        if waiting and waiting[-1][0] > offset:
            position = next(i for i, (other, _) in enumerate(waiting) if other > offset)
            waiting.insert(position, (offset, future))
        else:
            waiting.append((offset, future))
        return future

    def _sweep(self) -> None:
        """Forget who waits no more: they are many where nothing is safe for long."""
        self._waiting = deque(entry for entry in self._waiting if not entry[1].done())
        self._many = max(2 * len(self._waiting), MANY)

    def passed(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """End every wait with an error: the partition moved, or its disk failed."""
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # who still waits is told; who waits no more need not be


class ByteWaiter:
    """A fetch that waits until enough bytes became readable in any of its partitions.

    It is called once, from the loop and not from within the append that brought the bytes, so that
    the producer's answer leaves first.
    """

    __slots__ = ("_is_woken", "_on_ready", "needed_bytes")

    def __init__(self, needed_bytes: int, on_ready: Callable[[], None]) -> None:
        self.needed_bytes = needed_bytes
        self._on_ready = on_ready
        self._is_woken = False

    def came(self, nbytes: int) -> None:
        self.needed_bytes -= nbytes
        if self.needed_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._on_ready)
