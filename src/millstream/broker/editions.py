"""What the registry knows of the editions of a broker's log dirs (what they are for: storage/editions.py).

Only the broker whose dirs they are reads and writes its node. It does so while it is registered, or has just
been, and no other process of the same number is. What cannot be written is left for the next time; that costs
nothing but that a copy made before is not found out.
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
        self._known: dict[str, int] = {}
        self._is_there = False

    async def compare(self, store: Store) -> None:
        """Before the broker registers: see whether its dirs are those in which it worked last."""
        try:
            data = (await self._registry.get(self._path)).data
        except NoNode:
            return  # the first start, or the first that knows of editions
        self._is_there = True
        try:
            self._known = msgspec.json.decode(data, type=tree.EditionsNode).dirs
        except ValueError as error:
            log.error("%s cannot be read: %s", self._path, error)
        await asyncio.get_running_loop().run_in_executor(None, store.dirs.compare_editions, self._known)

    async def begin(self, store: Store) -> None:
        """Before the broker takes part, and when it has stopped doing so: earlier copies are older ones."""
        loop = asyncio.get_running_loop()
        self._known |= await loop.run_in_executor(None, store.dirs.begin_edition, self._known)
        data = tree.dump(tree.EditionsNode(self._known))
        try:
            if self._is_there:
                await self._registry.set(self._path, data)
            else:
                await self._registry.create(self._path, data)
                self._is_there = True
        except RegistryError as error:
            log.warning("the editions of the log dirs are not in the registry: %s", error)
