"""A member of a group of the new protocol (KIP-848): the broker assigns, the member follows by heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from millstream.errors import FencedMemberEpoch, StaleMemberEpoch, UnknownMemberId, error_for
from millstream.protocol.messages import ConsumerGroupHeartbeatRequest, MetadataRequest
from tests.simulation.brokers import GROUP, METADATA_VERSION
from tests.simulation.client import RETRY_S
from tests.simulation.ledger import Holding, Place
from tests.simulation.member import BEAT_S, REBALANCE_MS, Member

HEARTBEAT_VERSION = 1
LEAVING = -1
GONE = {UnknownMemberId.code, FencedMemberEpoch.code}


class ConsumerMember(Member):
    """What it holds it holds at least until it sent the last heartbeat that was answered so."""

    _topics: dict[str, UUID]
    _held: dict[Place, Holding]

    async def join(self) -> None:
        """Have an assignment, of this epoch or of a new one."""
        self._held = getattr(self, "_held", {})
        if self.generation <= 0:
            self.assigned, self._held = [], {}
            self.member_id = str(UUID(int=self.random.getrandbits(128), version=4))
            self.generation = 0
            self._topics = await self._topic_ids()
            self.joins += 1
        while self.generation <= 0:
            await self._heartbeat()
            await asyncio.sleep(self.random.uniform(0.01, RETRY_S))

    async def beat(self) -> bool:
        """Say that it is alive, if it is time to; False if its assignment has changed."""
        if asyncio.get_running_loop().time() < self._beat_at:
            return True
        before = list(self.assigned)
        await self._heartbeat()
        return self.generation > 0 and self.assigned == before

    async def leave(self) -> None:
        if self.generation > 0:
            await self._ask(self._request(LEAVING), HEARTBEAT_VERSION)
        self.generation = 0

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        self._beat_at = sent_at + BEAT_S
        answer = await self._ask(self._request(self.generation), HEARTBEAT_VERSION)
        if answer is None:
            self._beat_at = loop.time() + RETRY_S
            return
        if answer.error_code:
            self._refused(answer.error_code, "beating")
            return
        for held in self._held.values():
            held.until = sent_at  # the answer may have been on its way for long
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            self._take(answer.assignment, loop.time())

    def _take(self, assignment: Any, now: float) -> None:
        """Give up what is not assigned any more, at once; the next heartbeat tells so."""
        names = {topic_id.int: name for name, topic_id in self._topics.items()}
        assigned = [
            (names[each.topic_id.int], index)
            for each in assignment.topic_partitions
            for index in each.partitions
        ]
        for place in set(self._held) - set(assigned):
            del self._held[place]
        for place in assigned:
            if place not in self._held:
                held = self._held[place] = Holding(self.group, place, self.member_id, now, now)
                self.ledger.holdings.append(held)
        if sorted(assigned) != self.assigned:
            self.assigned = sorted(assigned)
            self._beat_at = now  # the broker waits to be told

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        owned: dict[str, list[int]] = {}
        for topic, index in self.assigned:
            owned.setdefault(topic, []).append(index)
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=sorted({topic for topic, _ in self._places}),
            topic_partitions=[
                ConsumerGroupHeartbeatRequest.TopicPartitions(
                    topic_id=self._topics[topic], partitions=indexes
                )
                for topic, indexes in owned.items()
            ],
        )

    async def _topic_ids(self) -> dict[str, UUID]:
        names = sorted({topic for topic, _ in self._places})
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        while True:
            try:
                answer = await self.brokers.ask_any(request, METADATA_VERSION)
                if not any(topic.error_code for topic in answer.topics):
                    return {topic.name: UUID(int=topic.topic_id.int) for topic in answer.topics}
            except OSError:
                pass
            await asyncio.sleep(RETRY_S)

    def _refused(self, code: int, what: str) -> bool:
        self.brokers.forget_coordinator(GROUP, self.group)
        if code in GONE:
            self.generation = 0
            return False
        if code == StaleMemberEpoch.code:
            self._beat_at = 0.0
            return False
        if not error_for(code).retriable:
            name = error_for(code).__name__
            self.ledger.complaints.append(f"a member of {self.group} was refused for good {what}: {name}")
        return True
