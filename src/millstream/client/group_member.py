"""A member of a classic group: joins, syncs, sends heartbeats, and rebalances with the others.

With cooperative assignors (KIP-429) members keep reading while they join; what the new assignment takes
from them they give up, and then join once more so that it can be given to others. With the others all is
given up first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from struct import Struct

from millstream.client.assignors import ASSIGNORS, Member, is_cooperative
from millstream.client.consumer_options import ConsumerOptions
from millstream.client.coordinator_link import PASSING, CoordinatorLink
from millstream.client.errors import raise_for
from millstream.client.group_host import GroupHost, Subscription, put_out, too_slow
from millstream.client.group_metadata import GroupMetadata
from millstream.client.topic_watch import TopicWatch
from millstream.errors import (
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from millstream.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from millstream.protocol.subscription import read_assignment, read_subscription

CONSUMER = "consumer"
NO_GENERATION = -1
JOIN_GRACE_MS = 5_000
"""What a coordinator gets beyond the rebalance time-out to answer."""

_version = Struct(">h")
_generation = Struct(">i")


class GroupMember:
    """Keeps a consumer in a classic group. `start` begins, `leave` ends; between them it mends itself."""

    def __init__(
        self, link: CoordinatorLink, host: GroupHost, watch: TopicWatch, options: ConsumerOptions
    ) -> None:
        self._link = link
        self._host = host
        self._watch = watch
        self._options = options
        self._is_cooperative = is_cooperative(options.assignors)
        self._subscription = Subscription()
        self._joined_topics: frozenset[str] = frozenset()
        self._member_id = ""
        self._generation = NO_GENERATION
        self._former: GroupMetadata | None = None
        """Who it was, while it is nobody."""
        self.loss: KafkaError | None = None
        self.losses = 0
        self._is_lost = False
        self._has_left = False
        self._failure: KafkaError | None = None
        self.is_joined = False
        self.is_asking = False
        self._must_join = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heart: asyncio.Task[None] | None = None

    @property
    def identity(self) -> GroupMetadata:
        return self._former or GroupMetadata(
            self._link.group, self._generation, self._member_id, self._options.group_instance_id
        )

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._watch.follow(subscription, self._topics_changed)
        self._must_join.set()

    def _topics_changed(self) -> None:
        self._must_join.set()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        tasks = [task for task in (self._task, self._heart) if task is not None]
        self._task = self._heart = None
        self.is_joined = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._options.group_instance_id is None:
            await self._link.hang_up()  # a JoinGroup may be waiting for other members
            await self._tell_leaving("the consumer was closed")

    async def _tell_leaving(self, reason: str) -> None:
        if not self._member_id or self._has_left:
            return
        request = LeaveGroupRequest(
            group_id=self._link.group,
            member_id=self._member_id,
            members=[
                LeaveGroupRequest.MemberIdentity(
                    member_id=self._member_id,
                    group_instance_id=self._options.group_instance_id,
                    reason=reason,
                )
            ],
        )
        try:
            await self._link.ask(request, LeaveGroupResponse)
        except KafkaError:
            pass  # its session will end by itself
        self._forget()

    def _forget(self) -> None:
        """Be nobody to the next JoinGroup, but not to those who ask who commits."""
        if self._generation != NO_GENERATION:
            self._former = self.identity
        self._generation = NO_GENERATION
        self._member_id = ""
        self.is_joined = self.is_asking = False

    # ---------------------------------------------------------------- the course of a membership

    async def _run(self) -> None:
        try:
            while True:
                await self._prepare()
                assigned = await self._join_until_synced()
                if assigned is not None:
                    self._heart = asyncio.get_running_loop().create_task(self._beat())
                    await self._adopt(assigned)
                    await self._must_join.wait()
        except Exception as error:
            self._host.fail(error, for_good=True)
        finally:
            self.is_asking = False
            await self._stop_heart()

    async def _prepare(self) -> None:
        """Give up what must not be read during a rebalance; heartbeats go on while the caller works."""
        if not (self._is_lost or self._is_cooperative) and self._host.owned:
            await self._host.give_up(self._host.owned)
        if self._is_lost:  # perhaps while it was waited for the caller
            await self._host.lose()
            self._is_lost = False
        if self._has_left:
            await self._host.until_polled()
            self._has_left = False
        await self._stop_heart()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _stop_heart(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

    async def _adopt(self, assigned: frozenset[TopicPartition]) -> None:
        owned = self._host.owned
        revoked = owned - assigned
        if revoked:
            await self._host.give_up(revoked)
        if self._is_lost:
            return
        await self._host.take_on(assigned - owned)
        self.is_joined = True
        if revoked:
            self._must_join.set()

    async def _join_until_synced(self) -> frozenset[TopicPartition] | None:
        """The assignment of a new generation; None if membership was lost on the way."""
        while True:
            self._must_join.clear()
            try:
                joined = await self._join()
                return await self._sync(joined)
            except MemberIdRequired:
                continue
            except RebalanceInProgress:
                continue
            except PASSING:
                self._link.forget()
                await self._link.pause()
            except (UnknownMemberId, IllegalGeneration):
                self._lose_place(put_out(self._link.group))
                self._forget()
                if self._host.owned:
                    self._is_lost = True
                    return None
            except KafkaError as error:
                if not error.retriable:
                    raise
                await self._link.pause()

    # ---------------------------------------------------------------- joining

    async def _join(self) -> JoinGroupResponse:
        self._joined_topics = await self._watch.topics(self._subscription)
        request = JoinGroupRequest(
            group_id=self._link.group,
            session_timeout_ms=self._options.session_timeout_ms,
            rebalance_timeout_ms=self._options.max_poll_interval_ms,
            member_id=self._member_id,
            group_instance_id=self._options.group_instance_id,
            protocol_type=CONSUMER,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=self._metadata())
                for name in self._options.assignors
            ],
        )
        self.is_asking = True
        response = await self._link.ask(
            request, JoinGroupResponse, timeout_ms=self._options.max_poll_interval_ms + JOIN_GRACE_MS
        )
        if response.error_code == MemberIdRequired.code:
            self._member_id = response.member_id
        raise_for(response.error_code, None, f"group {self._link.group}")
        self._member_id = response.member_id
        self._generation = response.generation_id
        self._former = self.loss = None
        self.is_asking = False
        return response

    def _metadata(self) -> bytes:
        """The subscription. Owned partitions count for the generation in which they were given."""
        by_topic: dict[str, list[int]] = defaultdict(list)
        for partition in sorted(self._host.owned):
            by_topic[partition.topic].append(partition.partition)
        version = ConsumerProtocolSubscription.versions[1]
        subscription = ConsumerProtocolSubscription(
            topics=sorted(self._joined_topics),
            user_data=_generation.pack(self._generation) if self._is_cooperative else None,
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ],
            generation_id=self._generation,
            rack_id=self._options.rack,
        )
        return _version.pack(version) + subscription.encode(version)

    async def _sync(self, joined: JoinGroupResponse) -> frozenset[TopicPartition]:
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        request = SyncGroupRequest(
            group_id=self._link.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._options.group_instance_id,
            protocol_type=CONSUMER,
            protocol_name=joined.protocol_name,
            assignments=await self._assign(joined) if leads else [],
        )
        response = await self._link.ask(
            request, SyncGroupResponse, timeout_ms=self._options.max_poll_interval_ms + JOIN_GRACE_MS
        )
        raise_for(response.error_code, None, f"group {self._link.group}")
        return frozenset(
            TopicPartition(topic.topic, index)
            for topic in read_assignment(response.assignment).assigned_partitions
            for index in topic.partitions
        )

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        """As the leader: what each member is to read. The group's topics are watched for it from now on."""
        members = [_member(each) for each in joined.members]
        topics = frozenset[str]().union(*(member.topics for member in members))
        sizes = await self._watch.sizes(topics)
        plan = ASSIGNORS[joined.protocol_name or ""](members, sizes)
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id, assignment=_encode_assignment(partitions)
            )
            for member_id, partitions in plan.items()
        ]

    # ---------------------------------------------------------------- heartbeats

    async def _beat(self) -> None:
        """Tell the coordinator that the member lives, until it or the group is to begin anew."""
        interval = self._options.heartbeat_interval_ms / 1000
        while True:
            await asyncio.sleep(interval)
            if self._host.idle_ms > self._options.max_poll_interval_ms:
                self._lose_place(too_slow(self._link.group, self._options.max_poll_interval_ms))
                await self._tell_leaving("the caller asked for no records within max_poll_interval_ms")
                self._has_left = True
                self._lost()
                return
            request = HeartbeatRequest(
                group_id=self._link.group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=self._options.group_instance_id,
            )
            try:
                response = await self._link.ask(request, HeartbeatResponse)
                raise_for(response.error_code, None, f"group {self._link.group}")
            except RebalanceInProgress:
                self._must_join.set()
            except PASSING:
                self._link.forget()
                await self._link.pause()
            except FencedInstanceId as error:
                self._failure = error
                self._lose_place(error.again())
                self._lost()
                return
            except (UnknownMemberId, IllegalGeneration):
                self._lose_place(put_out(self._link.group))
                self._forget()
                self._lost()
                return
            except KafkaError as error:
                if not error.retriable:
                    self._host.fail(error)

    def _lose_place(self, why: KafkaError) -> None:
        if self._generation != NO_GENERATION:
            self.loss = why
            self.losses += 1

    def _lost(self) -> None:
        self._is_lost = True
        self.is_joined = False
        self._must_join.set()


def _member(joined: JoinGroupResponse.JoinGroupResponseMember) -> Member:
    said = read_subscription(joined.metadata)
    generation = said.generation_id
    if generation < 0 and said.user_data is not None and len(said.user_data) == _generation.size:
        generation = _generation.unpack(said.user_data)[0]
    return Member(
        joined.member_id,
        frozenset(said.topics),
        joined.group_instance_id,
        frozenset(
            TopicPartition(topic.topic, index)
            for topic in said.owned_partitions
            for index in topic.partitions
        ),
        generation,
    )


def _encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    version = ConsumerProtocolAssignment.versions[1]
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in by_topic.items()
        ]
    )
    return _version.pack(version) + assignment.encode(version)
