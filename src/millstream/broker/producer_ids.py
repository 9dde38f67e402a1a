"""Producer ids, handed out from blocks that the registry gives to one broker only."""

from __future__ import annotations

import logging

import msgspec

from millstream.clock import Clock
from millstream.controller import tree
from millstream.errors import CoordinatorLoadInProgress
from millstream.net.silence import Silence
from millstream.registry.contract import BadVersion, NodeExists, NoNode, Registry, RegistryError

log = logging.getLogger(__name__)

BLOCK_SIZE = 1000


class ProducerIds:
    """Gives ids that no other producer of the cluster ever got. A restart skips what is left of a block."""

    def __init__(self, registry: Registry, broker_id: int, clock: Clock) -> None:
        self._registry = registry
        self._silence = Silence(clock)
        self._broker_id = broker_id
        self._next = 0
        self._end = 0

    async def next(self) -> int:
        """A new id; CoordinatorLoadInProgress while the registry cannot be used, as in Kafka.

        Upon that all clients ask again. CoordinatorNotAvailable would send them to look for a coordinator,
        which idempotent producers do not have: some of them never come back from there.
        """
        while self._next >= self._end:
            try:
                await self._take_block()
            except RegistryError as error:
                if self._silence.is_over(str(error)):
                    log.warning("no producer ids from the registry: %s", error)
                raise CoordinatorLoadInProgress("the registry cannot be used at the moment") from error
        given = self._next
        self._next += 1
        return given

    async def _take_block(self) -> None:
        try:
            node = await self._registry.get(tree.PRODUCER_IDS)
            start = int(msgspec.json.decode(node.data, type=tree.ProducerIdBlock).block_end) + 1
            await self._registry.set(tree.PRODUCER_IDS, self._block(start), node.version)
        except NoNode:
            start = 0
            try:
                await self._registry.create(tree.PRODUCER_IDS, self._block(start))
            except NodeExists:
                return
        except BadVersion:
            return
        if self._next < self._end:
            return  # another request took a block meanwhile; this one is skipped
        self._next, self._end = start, start + BLOCK_SIZE

    def _block(self, start: int) -> bytes:
        return tree.dump(tree.ProducerIdBlock(self._broker_id, str(start), str(start + BLOCK_SIZE - 1)))
