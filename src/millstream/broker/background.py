"""Work that repeats in the background. A failure is logged and counted, and the work goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millstream.metrics import Counter

log = logging.getLogger(__name__)


class Background:
    """The repeated tasks of one broker."""

    def __init__(self, failures: Counter) -> None:
        self._failures = failures
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, name: str, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, again and again, each time `interval_ms()` after the last one ended."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(name, interval_ms, work)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _repeat(
        self, name: str, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            await asyncio.sleep(min(interval_ms(), 86_400_000) / 1000)
            try:
                await work()
            except Exception:
                self._failures.value += 1
                log.exception("%s failed; it will be tried again", name)
