"""The controller's office: one broker holds it, and each time it is taken begins a new epoch.

`/controller` is ephemeral and says who holds the office; `/controller_epoch` stays and counts. Both are
written in one step, so that the epoch belongs to the session that holds the office. Every write of the
controller checks the epoch's version: one that was replaced writes nothing more.
"""

from __future__ import annotations

import msgspec

from millstream.clock import Clock
from millstream.controller import tree
from millstream.errors import NotController
from millstream.registry.claims import claim
from millstream.registry.contract import Check, Create, NodeExists, NoNode, Operation, Registry, Set


class Office:
    """What one broker knows of the office: whether it holds it, and in which epoch."""

    def __init__(self, registry: Registry, broker_id: int, clock: Clock, patience_s: float) -> None:
        """`patience_s` is for the office's node of an earlier session of this broker to go."""
        self._registry = registry
        self._broker_id = broker_id
        self._clock = clock
        self._patience_s = patience_s
        self._epoch_version = 0
        self.epoch = 0
        self.is_held = False

    async def take(self) -> None:
        """Become the controller, with an epoch greater than any before."""
        await claim(tree.CONTROLLER, self._take, self._patience_s)

    async def _take(self) -> None:
        me = {"version": 2, "brokerid": self._broker_id, "timestamp": str(self._clock.now_ms())}
        node = Create(tree.CONTROLLER, msgspec.json.encode(me), ephemeral=True)
        step: Operation
        try:
            current = await self._registry.get(tree.CONTROLLER_EPOCH)
            epoch = int(current.data) + 1
            step = Set(tree.CONTROLLER_EPOCH, b"%d" % epoch, current.version)
        except NoNode:
            epoch = 1
            step = Create(tree.CONTROLLER_EPOCH, b"1")
        try:
            self._epoch_version = (await self._registry.multi([node, step]))[1]
        except NodeExists:
            await self._check_holder()
            raise
        self.epoch = epoch
        self.is_held = True

    async def _check_holder(self) -> None:
        """Raise NotController if another broker holds the office."""
        try:
            holder = msgspec.json.decode((await self._registry.get(tree.CONTROLLER)).data)["brokerid"]
        except NoNode:
            return
        if holder != self._broker_id:
            raise NotController(f"broker {holder} is the controller")

    def leave(self) -> None:
        """Hold the office no more: the session that held it is lost."""
        self.is_held = False

    async def write(self, operations: list[Operation]) -> None:
        """All or nothing, if this is still the controller."""
        await self._registry.multi([Check(tree.CONTROLLER_EPOCH, self._epoch_version), *operations])
