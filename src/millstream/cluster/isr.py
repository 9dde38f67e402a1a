"""Changes of in-sync replicas on their way to the controller, which alone writes them down.

All proposals of this broker that wait go in one AlterPartition, one request at a time. A proposal whose
outcome is not known (no answer came) is sent again until it is: the partition epoch in it makes sure that
the controller writes it at most once. If it is refused then, what was sent before may still be on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.cluster.metadata import Metadata
from millstream.cluster.peers import Peers
from millstream.cluster.replication_metrics import ReplicationCounters
from millstream.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaError,
    NewLeaderElected,
    OperationNotAttempted,
    error_for,
)
from millstream.protocol.messages import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)

TIMEOUT_MS = 5000.0
FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 0.5

REFUSALS = (IneligibleReplica.code, OperationNotAttempted.code, InvalidRequest.code)
"""Answers after which nothing has been written."""

OVERTAKEN = (InvalidUpdateVersion.code, FencedLeaderEpoch.code, NewLeaderElected.code)
"""Answers that say that something else is written down than this leader believes: it will be told.

That a topic is not known says less: the controller may be unable to read it for a while.
"""

Proposal = tuple["Partition", int, int]
"""A partition, and the leader and partition epoch in which its leader proposed."""


class IsrChanges:
    """The proposals of one broker."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        metadata: Metadata,
        peers: Peers,
        counters: ReplicationCounters,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._peers = peers
        self._counters = counters
        self._waiting: dict[Partition, None] = {}
        self._unanswered: dict[Partition, tuple[int, int]] = {}
        """The leader and partition epochs of proposals that were sent and not answered."""
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition) -> None:
        """Have the controller decide about the ISR that the partition's leader proposes."""
        self._waiting[partition] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        pause_s = FIRST_PAUSE_S
        await asyncio.sleep(0)  # others may propose in the same turn
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            request, proposals = self._request(waiting)
            if not proposals:
                continue
            try:
                self._take(await self._ask(request, proposals), proposals)
            except KafkaError as error:
                log.info("the controller did not take ISR changes yet: %s", error.message)
                self._waiting = {**waiting, **self._waiting}
            except Exception:  # a defect in one partition's way is none of the others'
                log.exception("ISR changes could not be taken; they are proposed again")
                self._waiting = {**waiting, **self._waiting}
            if self._waiting.keys() & waiting.keys():
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, MAX_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S

    async def _ask(
        self, request: AlterPartitionRequest, proposals: dict[tuple[UUID, int], Proposal]
    ) -> AlterPartitionResponse:
        try:
            answer = await self._peers.request(
                self._metadata.controller_id, "isr", request, AlterPartitionResponse, TIMEOUT_MS
            )
        except BaseException:
            for partition, leader_epoch, version in proposals.values():
                self._unanswered[partition] = (leader_epoch, version)
            raise
        if answer.error_code:
            raise error_for(answer.error_code)()
        return answer

    def _request(
        self, waiting: dict[Partition, None]
    ) -> tuple[AlterPartitionRequest, dict[tuple[UUID, int], Proposal]]:
        topics: dict[UUID, AlterPartitionRequest.TopicData] = {}
        proposals: dict[tuple[UUID, int], Proposal] = {}
        broker_epoch = self._broker_epoch()
        for partition in waiting:
            leadership = partition.leadership
            if leadership is None or leadership.proposed is None:
                self._unanswered.pop(partition, None)
                continue  # it leads no more, or was told something else meanwhile
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = AlterPartitionRequest.TopicData(
                    topic_id=partition.topic_id, partitions=[]
                )
            proposals[partition.topic_id, partition.name.partition] = (
                partition,
                partition.leader_epoch,
                leadership.version,
            )
            topic.partitions.append(
                AlterPartitionRequest.PartitionData(
                    partition_index=partition.name.partition,
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=leadership.version,
                    new_isr_with_epochs=[
                        AlterPartitionRequest.BrokerState(
                            broker_id=one, broker_epoch=broker_epoch if one == self._broker_id else epoch
                        )
                        for one, epoch in leadership.proposal()
                    ],
                )
            )
        request = AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=broker_epoch, topics=list(topics.values())
        )
        return request, proposals

    def _take(self, answer: AlterPartitionResponse, proposals: dict[tuple[UUID, int], Proposal]) -> None:
        for topic in answer.topics:
            for data in topic.partitions:
                proposal = proposals.pop((topic.topic_id, data.partition_index), None)
                if proposal is None:
                    continue
                partition, leader_epoch, version = proposal
                leadership = partition.leadership
                if (
                    leadership is None
                    or leadership.proposed is None
                    or partition.leader_epoch != leader_epoch
                    or leadership.version != version
                ):
                    continue
                if data.error_code == 0:
                    log.info("%s: in sync are now %s, after %s", partition.name, data.isr, leadership.isr)
                    changed = len(data.isr) - len(leadership.isr)
                    self._counters.expansions.value += max(0, changed)
                    self._counters.shrinks.value += max(0, -changed)
                    self._unanswered.pop(partition, None)
                    partition.isr_accepted(data.isr, data.partition_epoch)
                elif data.error_code in REFUSALS:
                    unanswered = self._unanswered.pop(partition, None)
                    partition.isr_refused(is_final=unanswered != (leader_epoch, version))
                else:
                    log.info("%s: %s", partition.name, error_for(data.error_code).__name__)
                    if data.error_code in OVERTAKEN:
                        self._unanswered.pop(partition, None)
                    else:
                        self._waiting[partition] = None
        for partition, _, _ in proposals.values():
            self._waiting[partition] = None  # not answered
