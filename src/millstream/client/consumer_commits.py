"""Commits of a consumer's positions, in the name of its membership."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from millstream.client.coordinator_link import PASSING, CoordinatorLink
from millstream.client.errors import raise_for
from millstream.client.group_host import Membership
from millstream.client.group_metadata import GroupMetadata
from millstream.client.group_offsets import NAMES_UNTIL, Committed
from millstream.deadline import Deadline
from millstream.errors import (
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import OffsetCommitRequest, OffsetCommitResponse


class Commits:
    """Writes offsets for a group. Commits of one consumer reach the coordinator in order."""

    def __init__(self, link: CoordinatorLink, membership: Callable[[], Membership | None]) -> None:
        """`membership`: the consumer's at this moment; without one it commits as nobody."""
        self._link = link
        self._membership = membership
        self._order = asyncio.Lock()

    async def commit(self, offsets: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        """Commit, trying again while errors pass, until the deadline.

        While the group rebalances the coordinator takes no commits; the member's next generation is
        waited for, also where a commit overtook the news of it. UnknownMemberId and the like mean that the
        partitions are no longer this member's. A member that is put out in between may have joined again:
        its positions are of before, and are not committed.
        """
        if not offsets:
            return
        member = self._membership()
        losses = member.losses if member is not None else 0
        async with self._turn(deadline):
            while True:
                if member is not None:
                    self._check(member, losses)
                identity = self._identity_of(member)
                try:
                    await self._ask(identity, offsets, deadline)
                    return
                except PASSING as error:
                    self._link.forget()
                    failure: KafkaError = error
                except RebalanceInProgress as error:
                    failure = error
                except (IllegalGeneration, StaleMemberEpoch) as error:
                    if member is None or (member.identity == identity and not member.is_asking):
                        raise
                    failure = error
                if deadline.has_passed:
                    raise failure
                await self._link.pause()

    def _check(self, member: Membership, losses: int) -> None:
        if member.loss is not None:
            raise member.loss.again()
        if member.losses != losses:
            raise UnknownMemberId(
                f"group {self._link.group} put this consumer out while it committed; it has joined again"
            )

    def _identity_of(self, member: Membership | None) -> GroupMetadata:
        return GroupMetadata(self._link.group) if member is None else member.identity

    @asynccontextmanager
    async def _turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """Behind the commits that were begun before, which may wait for longer than this one."""
        try:
            async with asyncio.timeout(deadline.remaining_ms / 1000):
                await self._order.acquire()
        except TimeoutError:
            raise RequestTimedOut(
                f"not committed in {deadline.timeout_ms:.0f} ms: another commit is still under way"
            ) from None
        try:
            yield
        finally:
            self._order.release()

    async def _ask(
        self, identity: GroupMetadata, offsets: Mapping[TopicPartition, Committed], deadline: Deadline
    ) -> None:
        by_topic: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
        for partition, committed in offsets.items():
            by_topic[partition.topic].append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=identity.group,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in by_topic.items()
            ],
        )
        response = await self._link.ask(
            request,
            OffsetCommitResponse,
            timeout_ms=max(deadline.remaining_ms, 1),
            max_version=NAMES_UNTIL,
        )
        for topic in response.topics:
            for part in topic.partitions:
                where = TopicPartition(topic.name, part.partition_index)
                raise_for(part.error_code, None, f"group {identity.group} in {where}")
