"""The office of the controller, and sessions that are lost at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millstream.clock import SystemClock
from millstream.controller.office import Office
from millstream.registry.contract import Operation
from millstream.registry.memory import MemoryRegistry, MemoryTree


class LateRegistry(MemoryRegistry):
    """Something happens between a write and the moment in which its writer hears of it."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        done = await super().multi(operations)
        self.meanwhile()
        return done


def test_an_office_whose_session_is_lost_while_it_is_taken_is_not_held() -> None:
    async def main() -> None:
        tree = MemoryTree()
        registry = LateRegistry(tree)
        await registry.start()
        office = Office(registry, 1, SystemClock())
        registry.meanwhile = office.leave
        assert not await office.take()
        assert not office.is_held
        registry.meanwhile = lambda: None
        assert await office.take()
        assert (office.is_held, office.epoch) == (True, 2)
        await registry.close()

    asyncio.run(main())
