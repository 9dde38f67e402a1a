"""An operator who moves partitions about, takes moves back, gives leadership to preferred leaders, changes
min.insync.replicas, and makes topics that nobody writes to, grows them and deletes them. One in a hurry also
has replicas removed, added, taken back and added again, one right after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

from millstream.errors import TopicAlreadyExists, UnknownTopicOrPartition
from millstream.model import NO_UUID
from millstream.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from tests.simulation.brokers import Brokers
from tests.simulation.ledger import Place

MOVE_VERSION, ELECT_VERSION, CREATE_VERSION, GROW_VERSION, DELETE_VERSION, ALTER_VERSION = 1, 2, 7, 3, 6, 1
EXTRA = "extra-"
PREFERRED = 0
TOPIC, SET = 2, 0
MIN_ISR, MORE_MIN_ISR = 2, 3
"""What is asked for mostly; and for a moment, in which nothing is acknowledged while a replica is away."""
Move = AlterPartitionReassignmentsRequest


class Operator:
    """Asks for something every few seconds, whether or not what was asked for before has come to its end."""

    def __init__(
        self,
        brokers: Brokers,
        nodes: Sequence[int],
        places: Callable[[], list[Place]],
        random: Random,
        *,
        is_hurried: bool = False,
    ) -> None:
        """`places` are the partitions that there are now."""
        self._kinds = ["moves", "moves", "moves taken back", "preferred elections", "topics", "min ISRs"]
        if is_hurried:
            self._kinds += ["hurried moves"] * 4
        self.deleted: set[str] = set()
        """Topics whose deletion was answered with success."""
        self.made: set[str] = set()
        """Topics whose creation was, and that nobody has tried to delete."""
        self._tried: list[str] = []
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
            what = random.choice(self._kinds)
            try:
                if what == "preferred elections":
                    await self._elect(chosen)
                elif what == "topics":
                    await self._change_topics(replicas)
                elif what == "min ISRs":
                    await self._change_min_isr(chosen[0][0])
                elif what == "hurried moves":
                    await self._hurry(chosen, replicas)
                else:
                    size = replicas if what == "moves" else 0
                    await self._move({place: self._target(size) for place in chosen})
                self.counts[what] += 1
            except OSError:
                continue

    def _target(self, replicas: int) -> list[int] | None:
        return self._random.sample(self._nodes, replicas) if replicas else None

    async def _hurry(self, places: list[Place], replicas: int) -> None:
        """Have one replica removed and added again; take that back, and have it added again, perhaps.

        What was asked for before need not be answered yet.
        """
        targets = {place: self._target(replicas) for place in places}
        steps: list[Mapping[Place, list[int] | None]] = [
            {place: (target or [])[:-1] for place, target in targets.items()},
            targets,
        ]
        for _ in range(self._random.randint(0, 3)):
            steps += [dict.fromkeys(places), targets]
        asking = []
        for step in steps:
            asking.append(asyncio.ensure_future(self._move(step)))
            await asyncio.sleep(self._random.choice((0.001, 0.01, 0.1, 2.0)) * self._random.random())
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _move(self, targets: Mapping[Place, list[int] | None]) -> None:
        """Move partitions to other brokers, or back to where they were."""
        topics: dict[str, list[Move.ReassignablePartition]] = {}
        for (topic, index), target in targets.items():
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

    async def _change_min_isr(self, topic: str) -> None:
        """For a moment, and back for certain: with so many asked for, one lost disk may need a person."""
        await self._is_min_isr_set(topic, MORE_MIN_ISR)
        await asyncio.sleep(self._random.choice((0.05, 1.0)) * self._random.random())
        while not await self._is_min_isr_set(topic, MIN_ISR):
            await asyncio.sleep(self._random.random())

    async def _is_min_isr_set(self, topic: str, value: int) -> bool:
        """Through any broker. It may answer that it was not done, and some of it may be done all the same."""
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="min.insync.replicas", config_operation=SET, value=str(value)
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC, resource_name=topic, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        try:
            answer = await self._brokers.ask_any(request, ALTER_VERSION)
        except OSError:
            return False
        (result,) = answer.responses
        self.counts["min ISRs set"] += not result.error_code
        return result.error_code in (0, UnknownTopicOrPartition.code)

    async def _change_topics(self, replicas: int) -> None:
        """Make a topic, or let one grow, or delete one that may be there."""
        what = self._random.choice(("make", "make", "grow", "delete")) if self._tried else "make"
        if what == "make":
            await self._make(f"{EXTRA}{len(self._tried)}", replicas)
        elif what == "grow":
            name, count = self._random.choice(self._tried), self._random.randint(2, 4)
            grown = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
            await self._brokers.ask_controller(
                CreatePartitionsRequest(topics=[grown], timeout_ms=5000, validate_only=False), GROW_VERSION
            )
        else:
            await self._delete(self._random.choice(self._tried))

    async def _make(self, name: str, replicas: int) -> None:
        self._tried.append(name)
        wanted = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=self._random.randint(1, 3), replication_factor=replicas
        )
        answer = await self._brokers.ask_controller(
            CreateTopicsRequest(topics=[wanted], timeout_ms=5000), CREATE_VERSION
        )
        code = answer.topics[0].error_code
        if code in (0, TopicAlreadyExists.code):
            self.made.add(name)
            self.counts["topics made"] += 1
        else:
            self._brokers.forget_controller()

    async def _delete(self, name: str) -> None:
        self.made.discard(name)
        wanted = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=NO_UUID)
        answer = await self._brokers.ask_controller(
            DeleteTopicsRequest(topics=[wanted], timeout_ms=5000), DELETE_VERSION
        )
        code = answer.responses[0].error_code
        if code == 0:
            self.deleted.add(name)
            self.counts["topics deleted"] += 1
        elif code != UnknownTopicOrPartition.code:
            self._brokers.forget_controller()
