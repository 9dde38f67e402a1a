"""A consumer in a group that commits its positions now and then."""

from __future__ import annotations

import asyncio

from millstream.errors import OffsetOutOfRange
from tests.simulation.client import RETRY_S
from tests.simulation.committed_reader import Unreadable, read_committed
from tests.simulation.ledger import Place
from tests.simulation.member import Member


class GroupReader:
    """Reads what is assigned to its member, and notes what it handled."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.is_over = False
        self.is_replaced = False
        self.commits = 0

    async def run(self) -> None:
        member, random = self.member, self.member.random
        while not self.is_over:
            await member.join()
            positions = await member.positions()
            while positions is not None and not self.is_over and await member.beat():
                moved = await self._read(positions)
                positions.update(moved)
                if moved and random.random() < 0.5:
                    if not await member.commit(dict(positions)):
                        break
                    self.commits += 1
                await asyncio.sleep(random.uniform(0.0, 0.2))
        await member.leave()

    async def _read(self, positions: dict[Place, int]) -> dict[Place, int]:
        member, random = self.member, self.member.random
        moved: dict[Place, int] = {}
        for place, offset in positions.items():
            try:
                values, following = await read_committed(member.brokers, place, offset, 2000, 50)
            except Unreadable as error:
                if str(error) == OffsetOutOfRange.__name__:
                    member.ledger.complaints.append(f"{member.group}: {place}@{offset} is out of range")
                await asyncio.sleep(random.uniform(0.0, RETRY_S))
                continue
            except OSError:
                continue
            member.ledger.consumed.setdefault((member.group, place), set()).update(at for at, _ in values)
            if following > offset:
                moved[place] = following
        return moved
