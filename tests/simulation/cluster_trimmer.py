"""An operator who deletes the oldest records of replicated partitions, or all of them, over and over.

Success means that the records are gone from every replica whose broker is alive: whoever leads next does not
show them again. A broker that is not alive hears of it when it comes back, and may lead before that only if
it comes back with all the others, as with Apache Kafka.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from millstream.cluster.partition import Partition
from millstream.errors import OffsetOutOfRange, error_for
from millstream.protocol.messages import DeleteRecordsRequest
from tests.simulation.brokers import Brokers
from tests.simulation.client import EARLIEST, LATEST, RETRY_S
from tests.simulation.history import History, Trim
from tests.simulation.leader_client import LeaderClient

VERSION = 2


class Seen(NamedTuple):
    """A partition from inside: what the registry says of it, whoever is the controller, and the replicas of
    those of its members in sync that are registered, with the epochs of their brokers."""

    state: bytes
    replicas: dict[str, tuple[Partition, int]]


class ClusterTrimmer:
    """Deletes up to random offsets of a topic's partitions, and writes down what it asked for."""

    def __init__(
        self,
        topic: str,
        partitions: int,
        brokers: Brokers,
        history: History,
        random: Random,
        look: Callable[[int], Seen],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self.rests_s: tuple[float, ...] = (0.5, 3.0)
        self._topic = topic
        self._brokers = brokers
        self._history = history
        self._random = random
        self._look = look
        self._clients = [LeaderClient(brokers, topic, index) for index in range(partitions)]

    async def run(self) -> None:
        random = self._random
        while not self.is_over:
            await asyncio.sleep(random.choice(self.rests_s) * random.random())
            index = random.randrange(len(self._clients))
            start = await self._clients[index].offset(index, EARLIEST)
            end = await self._clients[index].offset(index, LATEST)
            if end > start:
                lowest = random.choice((start, start, max(start, end - 5), end))
                await self._trim(index, random.randint(lowest, end))

    async def _trim(self, index: int, offset: int) -> None:
        self._history.trims.append(Trim(index, offset, asyncio.get_running_loop().time()))
        asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=offset)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=self._topic, partitions=[asked])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=self._random.choice((500, 3000)))
        client = self._clients[index]
        for _ in range(self._random.choice((1, 20))):
            before = self._look(index)
            try:
                answer = await self._brokers.ask_leader(self._topic, index, request, VERSION)
            except OSError:
                await asyncio.sleep(RETRY_S * self._random.random())
                continue
            found = answer.topics[0].partitions[0]
            client.log(f"delete below {self._topic}-{index}@{offset}: {found.error_code}")
            if not found.error_code:
                self.counts["cluster trims"] += 1
                self._check(offset, found.low_watermark, before, self._look(index))
                return
            if found.error_code == OffsetOutOfRange.code:
                return  # a new leader does not know yet that so much is committed
            if not error_for(found.error_code).retriable:
                name = error_for(found.error_code).__name__
                self._history.complaints.append(f"deleting below {self._topic}-{index}@{offset}: {name}")
                return
            self._brokers.forget_leader(self._topic, index)
            await asyncio.sleep(self._random.choice((0.02, RETRY_S)) * self._random.random())

    def _check(self, offset: int, low_watermark: int, before: Seen, after: Seen) -> None:
        """All that were in sync all the time have heard of it."""
        if low_watermark < offset:
            text = f"deleting below {self._topic}@{offset} was answered with {low_watermark}"
            self._history.complaints.append(text)
        if before.state != after.state:
            return
        for name, (replica, broker_epoch) in after.replicas.items():
            if before.replicas.get(name) == (replica, broker_epoch) and replica.failure is None:
                self.counts["starts compared"] += 1
                if replica.log.start_offset < offset:
                    text = f"{replica.name} on {name} starts at {replica.log.start_offset}"
                    self._history.complaints.append(f"{text}, though all below {offset} was said to be gone")
