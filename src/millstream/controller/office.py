"""The controller's office: one broker holds it, and each time it is taken begins a new epoch.

`/controller` is ephemeral and says who holds the office; `/controller_epoch` stays and counts. Both are
written in one step, so that the epoch belongs to the session that holds the office. Every write of the
controller checks the epoch's version: one that was replaced writes nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.clock import Clock
from millstream.controller import tree
from millstream.registry.contract import (
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Registry,
    Set,
)


class Office:
    """What one broker knows of the office: who holds it, and in which epoch."""

    def __init__(self, registry: Registry, broker_id: int, clock: Clock) -> None:
        self._registry = registry
        self._broker_id = broker_id
        self._clock = clock
        self._epoch_version = 0
        self._losses = 0
        self.epoch = 0
        self.is_held = False
        """Whether this broker holds it."""

    @property
    def is_certain(self) -> bool:
        """Whether this broker holds it, and nobody else can have taken it yet."""
        return self.is_held and self._clock.monotonic() < self._registry.session_deadline()

    async def take(self) -> bool:
        """Become the controller, with an epoch greater than any before, if nobody is."""
        if self.is_held:
            return True
        registry = self._registry
        session, losses = registry.session_id, self._losses
        me = {
            "version": 2,
            "brokerid": self._broker_id,
            "timestamp": str(self._clock.now_ms()),
            "session": session,
        }
        steps: list[Operation] = [Create(tree.CONTROLLER, msgspec.json.encode(me), ephemeral=True)]
        epoch_node, holder = await registry.get_many([tree.CONTROLLER_EPOCH, tree.CONTROLLER])
        if holder is not None:
            if _session_of(holder) != session:
                return False
            steps.insert(0, Delete(tree.CONTROLLER, holder.version))  # made here, but nobody said so
        if epoch_node is None:
            epoch = 1
            steps.append(Create(tree.CONTROLLER_EPOCH, b"1"))
        else:
            epoch = int(epoch_node.data) + 1
            steps.append(Set(tree.CONTROLLER_EPOCH, b"%d" % epoch, epoch_node.version))
        try:
            versions = await registry.multi(steps)
        except (NodeExists, NoNode, BadVersion):
            return False  # another broker was faster
        if registry.session_id != session or self._losses != losses:
            return False
        self._epoch_version, self.epoch, self.is_held = versions[-1], epoch, True
        return True

    async def is_kept(self) -> bool:
        """Whether the registry says so, too: its node may be deleted by hand, to have another take over."""
        (holder,) = await self._registry.get_many([tree.CONTROLLER])
        return holder is not None and _session_of(holder) == self._registry.session_id

    async def holder(self) -> int | None:
        """Which broker holds the office, by the registry."""
        try:
            data = (await self._registry.get(tree.CONTROLLER)).data
        except NoNode:
            return None
        return int(msgspec.json.decode(data)["brokerid"])

    async def give_up(self) -> None:
        """Let another broker be the controller."""
        is_certain, self.is_held = self.is_certain, False
        if is_certain:
            await self.write([Delete(tree.CONTROLLER)])

    def leave(self) -> None:
        """Hold the office no more: the session that held it, or is about to take it, is lost."""
        self.is_held = False
        self._losses += 1

    async def write(self, operations: Sequence[Operation]) -> list[int]:
        """All or nothing, if this is still the controller; answers the nodes' versions."""
        check = Check(tree.CONTROLLER_EPOCH, self._epoch_version)
        return (await self._registry.multi([check, *operations]))[1:]


def _session_of(holder: Node) -> int:
    """The session that wrote down that it holds the office."""
    return int(msgspec.json.decode(holder.data).get("session", 0))
