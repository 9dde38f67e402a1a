"""Consume, transform, produce: each input becomes one output, its position committed in the transaction."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.simulation.committed_reader import read_committed
from tests.simulation.ledger import Fate, Place, payload_of
from tests.simulation.member import Member
from tests.simulation.transactional import Abortable, Fenced, TransactionalProducer, Unanswered


class Worker:
    """One worker of a group. What it reads from partition N of its input it writes to N of its output."""

    def __init__(self, member: Member, producer: TransactionalProducer, output: str) -> None:
        self.member = member
        self.producer = producer
        self.output = output
        self.is_over = False
        self.is_replaced = False
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        await self.producer.arrive()
        while not self.is_over:
            await self.member.join()
            try:
                await self._work()
            except Abortable:
                self.counts["abortable"] += 1
                await self._abort()
            except (Fenced, Unanswered) as reason:
                self.counts[type(reason).__name__.lower()] += 1
                if self.is_replaced:
                    return
                await self.producer.arrive()
        await self.member.leave()

    async def _work(self) -> None:
        """Work for as long as this member is of its generation."""
        member, producer, random = self.member, self.producer, self.member.random
        positions = await member.positions(is_stable=True)
        while positions is not None and await member.beat():
            if self.is_over:
                return
            await asyncio.sleep(random.uniform(0.0, 0.2))
            ready: dict[Place, tuple[list[str], int]] = {}
            for place, offset in positions.items():
                try:
                    values, following = await read_committed(member.brokers, place, offset, 4000, 50)
                except OSError:
                    continue
                if following > offset:
                    ready[place] = ([value for _, value in values], following)
            if not ready:
                continue
            transaction = producer.begin()
            for (_, index), (texts, _) in ready.items():
                if texts:
                    await producer.write((self.output, index), [payload_of(text) for text in texts])
            if random.random() < 0.1:
                await asyncio.sleep(random.uniform(0.0, 2.0))
            moved = {place: following for place, (_, following) in ready.items()}
            await producer.commit_offsets(member.group, member.member_id, member.generation, moved)
            if random.random() < 0.1:
                await producer.end(False)
                self.counts["aborts"] += 1
                return
            await producer.end(True)
            self.counts["commits"] += transaction.fate is Fate.COMMITTED
            positions.update(moved)

    async def _abort(self) -> None:
        try:
            transaction = self.producer.transaction
            if transaction is not None and transaction.fate is Fate.OPEN:
                await self.producer.end(False)
            else:
                await self.producer.arrive()
        except (Fenced, Unanswered, Abortable):
            if not self.is_replaced:
                await self.producer.arrive()
