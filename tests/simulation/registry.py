"""A session with a registry that lies behind the simulated network, on a host of its own.

The tree keeps a session for its time-out after it last heard of it. The session itself counts from when
it sent what was heard, so that it never believes to live longer than the tree lets it. Calls, their
answers and news of changes pass the network: each may be late, or never come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from millstream.registry.contract import Node, Operation, SessionLost, Unavailable
from millstream.registry.memory import MemoryRegistry, MemoryTree
from tests.simulation.host import Process
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network

REGISTRY_HOST = "registry"
POLL_S = 0.05


class SimRegistry(MemoryRegistry):
    """The session of one process."""

    def __init__(self, tree: MemoryTree, process: Process, timeout_ms: int, *, sees_death: bool) -> None:
        """`sees_death`: the tree notices at once when the process ends, and need not wait for a time-out."""
        super().__init__(tree, timeout_ms)
        self._process = process
        self._world = process.host.world
        self._network: Network = process.host.network
        self._sees_death = sees_death
        self._held_until = -math.inf
        """When the tree ends the session, unless it hears of it."""
        self._told_at = 0.0
        self._missed_news = False
        self._beats: asyncio.Task[None] | None = None

    # The session

    async def start(self) -> None:
        await self._there()
        await super().start()
        self._heard(self._world.now)
        await self._back()
        self._beats = asyncio.get_running_loop().create_task(self._beat(self.session_id))

    async def close(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
        if self._is_open:
            try:
                await self._there()
            except (SessionLost, Unavailable):
                self._is_open = False
                return
        await super().close()

    def died(self) -> None:
        """The process is gone."""
        if self._sees_death:
            self._tree.expire(self.session_id)

    def expire(self) -> None:
        """The tree ends the session, for whatever reason."""
        self._tree.expire(self.session_id)

    def session_deadline(self) -> float:
        return self._deadline if self._is_open else -math.inf

    def _heard(self, sent_at: float) -> None:
        """The tree hears of the session now, by something sent at that time."""
        session = self.session_id
        self._held_until = self._world.now + self._timeout_s
        self._deadline = sent_at + self._timeout_s

        def look() -> None:
            if self._world.now >= self._held_until and session == self.session_id:
                self._tree.expire(session)

        self._world.at(self._held_until, look)

    async def _beat(self, session: int) -> None:
        """Keep the session alive, and find out when it is not."""
        while self._is_open and self.session_id == session:
            sent_at = self._world.now
            try:
                await self._there()
                self._check_session()
                self._heard(sent_at)
                await self._back()
                if self._missed_news:
                    self._missed_news = False
                    self._watches.changed(None)
            except SessionLost:
                return
            except Unavailable:
                pass
            await asyncio.sleep(self._timeout_s / 5)

    def _check_session(self) -> None:
        if self._is_open and not self._tree.is_open(self.session_id):
            self.lose()
        super()._check_session()

    # Calls

    async def get(self, path: str) -> Node:
        await self._there()
        found = await super().get(path)
        await self._back()
        return found

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        await self._there()
        found = await super().get_many(paths)
        await self._back()
        return found

    async def children(self, path: str) -> list[str]:
        await self._there()
        found = await super().children(path)
        await self._back()
        return found

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        await self._there()
        done = await super().multi(operations)
        await self._back()  # what is written stays written, also if nobody hears of it
        return done

    async def _there(self) -> None:
        """What is asked in one session is never done in another."""
        session = self.session_id
        await self._pass(self._process.host.name, REGISTRY_HOST)
        if self.session_id != session:
            raise SessionLost("the session is over; another one has begun")

    async def _back(self) -> None:
        await self._pass(REGISTRY_HOST, self._process.host.name)

    async def _pass(self, source: str, target: str) -> None:
        link = self._network.link(source, target)
        give_up_at = self._world.now + self._timeout_s
        await asyncio.sleep(link.delay())
        while link.is_blocked:
            if self._world.now > give_up_at:
                raise Unavailable("the registry cannot be reached")
            await asyncio.sleep(POLL_S)

    # News

    def tell(self, paths: list[str]) -> None:
        link = self._network.link(REGISTRY_HOST, self._process.host.name)
        if link.is_blocked:
            self._missed_news = True
            return
        loop = self._loop
        self._told_at = max(self._told_at, self._world.now + link.delay())
        if isinstance(loop, SimLoop):
            self._world.at(self._told_at, lambda: _deliver(loop, self, paths))


def _deliver(loop: SimLoop, registry: SimRegistry, paths: list[str]) -> None:
    if not loop.is_dead:
        loop.call_soon_threadsafe(registry._watches.changed, paths)
