"""A client of one partition of a cluster: it goes to whoever leads it."""

from __future__ import annotations

import asyncio

from tests.simulation.brokers import Brokers
from tests.simulation.client import REQUEST_TIMEOUT_S, Client, Connection


class LeaderClient(Client):
    """As a `Client` of one broker, which is another one after each refusal, if another one leads."""

    def __init__(self, brokers: Brokers, topic: str, partition: int) -> None:
        super().__init__("", 0, topic)
        self._brokers = brokers
        self._partition = partition

    async def connection(self) -> Connection:
        if self._connection is None or self._connection.is_lost:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                self._address = await self._brokers.leader(self.topic, self._partition)
                return await super().connection()
        return self._connection

    def drop(self) -> None:
        super().drop()
        self._brokers.forget_leader(self.topic, self._partition)

    def refused(self) -> None:
        self.drop()
