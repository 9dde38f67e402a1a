"""Moves money between accounts, each transfer a transaction over several partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from tests.simulation.ledger import Fate, Place
from tests.simulation.transactional import Abortable, Fenced, TransactionalProducer, Unanswered


class Transferrer:
    """One instance of a producer of transfers. An account is a partition, its balance the sum of it."""

    def __init__(self, producer: TransactionalProducer, accounts: Sequence[Place]) -> None:
        self.producer = producer
        self.accounts = accounts
        self.is_over = False
        self.is_replaced = False
        """Whether another instance was started, so that this one ends when it is fenced."""
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        producer = self.producer
        await producer.arrive()
        while not self.is_over:
            try:
                await self._transfer()
                self.counts["transactions"] += 1
            except Abortable:
                self.counts["abortable"] += 1
                if not await self._abort():
                    return
            except (Fenced, Unanswered) as reason:
                self.counts[type(reason).__name__.lower()] += 1
                if self.is_replaced:
                    return
                await producer.arrive()
            await asyncio.sleep(producer.random.uniform(0.0, 0.3))

    async def _transfer(self) -> None:
        producer, random = self.producer, self.producer.random
        transaction = producer.begin()
        amount = random.randint(1, 100)
        source, target = random.sample(self.accounts, 2)
        await producer.write(source, [str(-amount)])
        await self._dawdle()
        if random.random() < 0.3:
            part = random.randint(0, amount)
            await producer.write(target, [str(part), str(amount - part)])
        else:
            await producer.write(target, [str(amount)])
        await self._dawdle()
        is_commit = random.random() < 0.7
        await producer.end(is_commit)
        self.counts["commits" if transaction.fate is Fate.COMMITTED else "aborts"] += 1

    async def _dawdle(self) -> None:
        """Take some time; sometimes more than the transaction has."""
        random = self.producer.random
        if random.random() < 0.03:
            await asyncio.sleep(self.producer.timeout_ms / 1000 + random.uniform(-1.0, 3.0))
        elif random.random() < 0.4:
            await asyncio.sleep(random.uniform(0.0, 0.5))

    async def _abort(self) -> bool:
        try:
            if self.producer.transaction is not None and self.producer.transaction.fate is Fate.OPEN:
                await self.producer.end(False)
            else:
                await self.producer.arrive()
        except (Fenced, Unanswered, Abortable):
            if self.is_replaced:
                return False
            await self.producer.arrive()
        return True
