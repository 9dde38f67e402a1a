"""An operator who moves partitions about, takes moves back, and gives leadership to preferred leaders."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from millstream.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
)
from tests.simulation.brokers import Brokers
from tests.simulation.ledger import Place

MOVE_VERSION, ELECT_VERSION = 1, 2
PREFERRED = 0
Move = AlterPartitionReassignmentsRequest


class Operator:
    """Asks for something every few seconds, whether or not what was asked for before has come to its end."""

    def __init__(
        self, brokers: Brokers, nodes: Sequence[int], places: Callable[[], list[Place]], random: Random
    ) -> None:
        """`places` are the partitions that there are now."""
        self._brokers = brokers
        self._nodes = list(nodes)
        self._places = places
        self._random = random
        self.counts: Counter[str] = Counter()
        self.is_over = False

    async def run(self, replicas: int) -> None:
        random = self._random
        while not self.is_over:
            await asyncio.sleep(random.choice((1.0, 4.0)) * random.uniform(0.2, 1.8))
            places = self._places()
            if self.is_over or not places:
                continue
            chosen = random.sample(places, random.randint(1, min(3, len(places))))
            what = random.choice(("moves", "moves", "moves", "moves taken back", "preferred elections"))
            try:
                if what == "preferred elections":
                    await self._elect(chosen)
                else:
                    await self._move(chosen, replicas if what == "moves" else 0)
                self.counts[what] += 1
            except OSError:
                continue

    async def _move(self, places: list[Place], replicas: int) -> None:
        """Move partitions to other brokers, or back to where they were."""
        topics: dict[str, list[Move.ReassignablePartition]] = {}
        for topic, index in places:
            target = self._random.sample(self._nodes, replicas) if replicas else None
            topics.setdefault(topic, []).append(
                Move.ReassignablePartition(partition_index=index, replicas=target)
            )
        request = Move(
            topics=[
                Move.ReassignableTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ]
        )
        answer = await self._brokers.ask_controller(request, MOVE_VERSION)
        if answer.error_code:
            self._brokers.forget_controller()
        for topic in answer.responses or ():
            self.counts["moves begun"] += sum(not part.error_code for part in topic.partitions)

    async def _elect(self, places: list[Place]) -> None:
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[
                ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[index])
                for topic, index in places
            ],
        )
        answer = await self._brokers.ask_controller(request, ELECT_VERSION)
        if answer.error_code:
            self._brokers.forget_controller()
