"""What the registry knows of the editions of a broker's log dirs (what they are for: storage/editions.py).

Only the broker whose dirs they are reads and writes its node. It does so while it is registered, or has just
been, and no other process of the same number is. What cannot be written is left for the next session, or the
next start; that costs nothing but that other dirs are not found out until then.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from millstream.controller import tree
from millstream.registry.contract import NoNode, Registry, RegistryError
from millstream.storage.store import Store

log = logging.getLogger(__name__)


class Editions:
    """The editions of one broker's log dirs."""

    def __init__(self, registry: Registry, broker_id: int) -> None:
        self._registry = registry
        self._path = f"{tree.EDITIONS}/{broker_id}"
        self._known = tree.EditionsNode({})
        self._written: tree.EditionsNode | None = None
        """What this process wrote last."""
        self._is_there = False

    async def compare(self, store: Store) -> bool:
        """Before the broker registers: whether its dirs are those in which it worked last."""
        try:
            data = (await self._registry.get(self._path)).data
        except NoNode:
            self._is_there = False
            return True  # the first start, or the first that knows of editions
        self._is_there = True
        try:
            self._known = msgspec.json.decode(data, type=tree.EditionsNode)
        except ValueError as error:
            log.error("%s cannot be read: %s", self._path, error)
            self._written = None
        return await asyncio.get_running_loop().run_in_executor(
            None, store.dirs.compare_editions, self._known.dirs, self._known.last
        )

    async def go_on(self, store: Store) -> None:
        """After the broker has registered: begin an edition, unless this process began the last."""
        if not self._is_there or self._known != self._written:
            await self.begin(store)

    async def begin(self, store: Store) -> None:
        """Before the broker takes part, and when it has stopped doing so: earlier copies are older ones."""
        loop = asyncio.get_running_loop()
        begun = await loop.run_in_executor(None, store.dirs.begin_edition, self._known.dirs)
        self._known = tree.EditionsNode(self._known.dirs | begun, sorted(begun) or self._known.last)
        data = tree.dump(self._known)
        try:
            if self._is_there:
                await self._registry.set(self._path, data)
            else:
                await self._registry.create(self._path, data)
                self._is_there = True
            self._written = self._known
        except RegistryError as error:
            log.warning("the editions of the log dirs are not in the registry: %s", error)
