"""What the registry knows of the editions of a broker's log dirs (what they are for: storage/editions.py).

Only the broker whose dirs they are reads and writes its node. It does so while it is registered, or has just
been, and no other process of the same number is. What cannot be written at a stop is left for the next start;
that costs nothing but that a copy made since the last one is not found out.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from millstream.clock import Clock
from millstream.controller import tree
from millstream.registry.contract import NoNode, Registry, RegistryError, Unavailable
from millstream.storage.store import Store

log = logging.getLogger(__name__)


class Editions:
    """The editions of one broker's log dirs."""

    def __init__(self, registry: Registry, broker_id: int, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._path = f"{tree.EDITIONS}/{broker_id}"
        self._known = tree.EditionsNode({})
        self._written: tree.EditionsNode | None = None
        """What this process wrote last."""

    async def compare(self, store: Store) -> bool:
        """Before the broker registers: whether its dirs are those in which it worked last."""
        try:
            data = (await self._registry.get(self._path)).data
        except NoNode:
            self._written = None
            return True  # the first start, or the first that knows of editions
        try:
            self._known = msgspec.json.decode(data, type=tree.EditionsNode)
        except ValueError as error:
            log.error("%s cannot be read: %s", self._path, error)
            self._written = None
        return await asyncio.get_running_loop().run_in_executor(
            None, store.dirs.compare_editions, self._known.dirs, self._known.last
        )

    async def go_on(self, store: Store) -> None:
        """After the broker has registered: begin an edition, unless this process began the last.

        A broker that the registry does not know to work in its dirs must not: RegistryError.
        """
        if self._known == self._written:
            return
        try:
            await self._begin(store)
        except Unavailable:  # a connection broke; it is waited for another one
            await self._begin(store)

    async def end(self, store: Store) -> None:
        """When the broker has stopped taking part, and all is written: copies made before are older ones."""
        try:
            await self._begin(store)
        except RegistryError as error:
            log.warning("the editions of the log dirs are not in the registry: %s", error)

    async def _begin(self, store: Store) -> None:
        loop = asyncio.get_running_loop()
        begun = await loop.run_in_executor(
            None, store.dirs.begin_edition, self._known.dirs, self._clock.now_ms()
        )
        known = tree.EditionsNode(self._known.dirs | begun, sorted(begun) or self._known.last)
        try:
            await self._registry.set(self._path, tree.dump(known))
        except NoNode:
            await self._registry.create(self._path, tree.dump(known))
        self._known = self._written = known
