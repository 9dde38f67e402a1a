"""What brokers ask of the controller: what changed, other in-sync replicas, other leaders before they stop.

Whoever asks says in which epoch it is registered; what an earlier registration asks is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from millstream.cluster.metadata import PartitionState
from millstream.controller.answers import answer
from millstream.controller.isr import Member, Proposal
from millstream.controller.picture import Hindered, Replica, ToldEnd
from millstream.errors import KafkaError, NotController, OperationNotAttempted, StaleBrokerEpoch
from millstream.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ClusterStateRequest,
    ClusterStateResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

if TYPE_CHECKING:
    from millstream.controller.controller import Controller

log = logging.getLogger(__name__)

MAX_WAIT_MS = 500

AT_WORK_MS = -1
"""As the time to wait for news: the broker still applies what it was told, and only says that it is there."""


class BrokerRequests:
    """Answers brokers on behalf of the controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def poll(self, request: ClusterStateRequest) -> ClusterStateResponse:
        """What changed since a broker last asked; waits a while if nothing has."""
        try:
            return await self._poll(request)
        except KafkaError as error:
            return ClusterStateResponse(error_code=error.code, error_message=error.message)

    async def _poll(self, request: ClusterStateRequest) -> ClusterStateResponse:
        controller, broker_id = self._controller, request.broker_id
        controller.check_epoch(request.controller_epoch)
        term = controller.term
        if term.epoch_of(broker_id) < request.broker_epoch:
            # It has just come, and was faster than the registry's word of it.
            await controller.in_turn(lambda: self._check_broker(broker_id, request.broker_epoch))
        self._refuse_stale(broker_id, request.broker_epoch)
        term.presence.heard(broker_id)
        if request.max_wait_ms == AT_WORK_MS:
            return ClusterStateResponse(controller_id=controller.broker_id, controller_epoch=term.epoch)
        if term.presence.is_parted_with(broker_id, request.broker_epoch):
            await self._note(request, lambda: self._is_back(broker_id, request.broker_epoch))
        failed = _replicas(request.failed)
        if term.partitions.is_news(broker_id, failed):
            await self._note(request, lambda: term.partitions.replicas_failed(broker_id, failed))
        damaged = {
            (topic.topic_id, index): epoch
            for topic in request.damaged
            for index, epoch in zip(topic.partitions, topic.epochs, strict=False)
        }
        hindered = Hindered(damaged, _replicas(request.full))
        if term.hindrances.is_news(broker_id, hindered):
            await self._note(request, lambda: term.hindrances.note(broker_id, hindered))
        told = {
            (topic.topic_id, each.index): ToldEnd((each.epoch, each.end_offset), each.leader_epoch)
            for topic in request.doubted
            for each in topic.partitions
        }
        if term.partitions.is_news_of_ends(broker_id, told):
            await self._note(request, lambda: term.partitions.ends_are(broker_id, told))
        feed = term.feed
        sequence = request.sequence if request.controller_epoch == term.epoch else -1
        if sequence >= 0:
            feed.note_applied(broker_id, request.broker_epoch, sequence)
            if sequence == feed.sequence:
                await feed.wait(sequence, min(request.max_wait_ms, MAX_WAIT_MS) / 1000)
        if not controller.is_active or controller.term is not term:
            raise NotController("this broker is the controller no more")
        self._refuse_stale(broker_id, request.broker_epoch)
        response = answer(term.picture, feed, broker_id, sequence)
        response.controller_id, response.controller_epoch = controller.broker_id, term.epoch
        return response

    async def _is_back(self, broker_id: int, epoch: int) -> None:
        """In a turn: a broker that was silent is heard of again, and may lead and be in sync."""
        term = self._controller.term
        if not term.presence.is_parted_with(broker_id, epoch):
            return  # it has said since that it stops
        term.presence.forget(broker_id)  # also if the registry refuses: it may fall silent once more
        await term.partitions.broker_is_back(broker_id)
        log.info("broker %d is heard of again", broker_id)

    async def _note(self, request: ClusterStateRequest, change: Callable[[], Awaitable[None]]) -> None:
        """Draw the consequences of what a broker says, unless it has begun again before its turn comes."""

        async def note() -> None:
            self._refuse_stale(request.broker_id, request.broker_epoch)
            await change()

        await self._controller.in_turn(note)

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Answer the ISRs that a leader proposes."""
        proposals = [
            (
                topic.topic_id,
                partition.partition_index,
                Proposal(
                    request.broker_id,
                    partition.leader_epoch,
                    partition.partition_epoch,
                    [Member(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs]
                    or [Member(broker_id) for broker_id in partition.new_isr],
                ),
            )
            for topic in request.topics
            for partition in topic.partitions
        ]

        async def alter() -> list[PartitionState | KafkaError]:
            await self._check_broker(request.broker_id, request.broker_epoch)
            self._refuse_uninformed(request.broker_id, request.broker_epoch)
            self._controller.term.presence.heard(request.broker_id)
            return await self._controller.term.partitions.alter(proposals)

        try:
            answers = iter(await self._controller.in_turn(alter))
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code, topics=[])
        return AlterPartitionResponse(
            topics=[
                AlterPartitionResponse.TopicData(
                    topic_id=topic.topic_id,
                    partitions=[
                        _altered(partition.partition_index, next(answers)) for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def stop_broker(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Let others lead what a broker leads that is about to stop."""

        async def move() -> int:
            await self._check_broker(request.broker_id, request.broker_epoch)
            term = self._controller.term
            term.presence.heard(request.broker_id)
            term.presence.leaves(request.broker_id, request.broker_epoch)
            return await term.partitions.stop_broker(request.broker_id, request.broker_epoch)

        try:
            return ControlledShutdownResponse(remaining=await self._controller.and_applied(move))
        except KafkaError as error:
            return ControlledShutdownResponse(error_code=error.code, error_message=error.message)

    async def _check_broker(self, broker_id: int, epoch: int) -> None:
        """In a turn: raise unless this is the registration of that broker that holds."""
        if self._controller.term.epoch_of(broker_id) < epoch:
            await self._controller.term.look_at_brokers()
        self._refuse_stale(broker_id, epoch)

    def _refuse_uninformed(self, broker_id: int, epoch: int) -> None:
        """In a turn: raise while a leader may keep to another min.insync.replicas than is written down.

        What it is answered says who is in sync, and it might go on alone where it should not.
        """
        term = self._controller.term
        if not term.feed.is_applied(term.picture.min_isr_set_at, {broker_id: epoch}):
            raise OperationNotAttempted(f"broker {broker_id} has not heard everything yet")

    def _refuse_stale(self, broker_id: int, epoch: int) -> None:
        known = self._controller.term.epoch_of(broker_id)
        if known != epoch or epoch < 0:
            raise StaleBrokerEpoch(f"broker {broker_id} is known in epoch {known}, not {epoch}")


def _replicas(topics: Iterable[ClusterStateRequest.FailedTopic]) -> frozenset[Replica]:
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)


def _altered(index: int, found: PartitionState | KafkaError) -> AlterPartitionResponse.PartitionData:
    if isinstance(found, KafkaError):
        return AlterPartitionResponse.PartitionData(
            partition_index=index,
            error_code=found.code,
            leader_id=-1,
            leader_epoch=-1,
            isr=[],
            partition_epoch=-1,
        )
    return AlterPartitionResponse.PartitionData(
        partition_index=index,
        leader_id=found.leader,
        leader_epoch=found.leader_epoch,
        isr=found.isr,
        partition_epoch=found.version,
    )
