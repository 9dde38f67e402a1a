"""A broker's candidacy for the controller's office: sought at the start, and whenever the office is free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millstream.controller import tree
from millstream.registry.contract import Registry, RegistryError

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
"""How long to wait after a registry that refused."""


class Candidacy:
    """One task that seeks the office at every change of `/controller`."""

    def __init__(self, registry: Registry, seek: Callable[[], Awaitable[None]]) -> None:
        """`seek` takes the office if it is free."""
        self._registry = registry
        self._seek = seek
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancel_watch: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._cancel_watch = self._registry.watch(tree.CONTROLLER, lambda _: self._wake.set())
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self._cancel_watch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Look whether the office is free."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._seek()
            except RegistryError as error:
                log.info("the controller's office cannot be sought: %s", error)
            except Exception:
                log.exception("seeking the controller's office failed; it will be tried again")
            else:
                continue
            await asyncio.sleep(RETRY_SECONDS)
            self._wake.set()
