"""A member of a consumer group whose coordinator assigns the partitions (KIP-848).

One request does it all: a heartbeat says what changed and is answered with the member's epoch and its new
assignment. What the member is to give up it gives up first and says so; what it is to get, it gets once
the others have given it up.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from uuid import UUID, uuid4

from millstream.client.consumer_options import ConsumerOptions
from millstream.client.coordinator_link import PASSING, CoordinatorLink
from millstream.client.errors import raise_for
from millstream.client.group_host import GroupHost, Subscription, put_out, too_slow
from millstream.client.group_metadata import GroupMetadata
from millstream.deadline import Deadline
from millstream.errors import FencedMemberEpoch, KafkaError, UnknownMemberId, UnreleasedInstanceId
from millstream.model import TopicPartition, encode_uuid
from millstream.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""What a static member says: it will be back."""


class ConsumerGroupMember:
    """Keeps a consumer in a group of the new protocol."""

    def __init__(self, link: CoordinatorLink, host: GroupHost, options: ConsumerOptions) -> None:
        self._link = link
        self._host = host
        self._options = options
        self._subscription = Subscription()
        self._member_id = encode_uuid(uuid4())
        self._epoch = JOINING
        self._last_epoch = JOINING
        self.loss: KafkaError | None = None
        self.losses = 0
        self._interval_ms = options.heartbeat_interval_ms
        self._target: frozenset[TopicPartition] = frozenset()
        self._told: ConsumerGroupHeartbeatResponse.Assignment | None = None
        self._names: dict[UUID, str] = {}
        """Of the topics that were assigned: what is told of them may lack some for a while."""
        self._must_say_all = True
        self._must_say_owned = False
        self._has_spoken = False
        self.is_joined = False
        self.is_asking = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._change: asyncio.Task[None] | None = None

    @property
    def identity(self) -> GroupMetadata:
        return GroupMetadata(
            self._link.group, self._last_epoch, self._member_id, self._options.group_instance_id
        )

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._must_say_all = True
        self._wake.set()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        tasks = [task for task in (self._task, self._change) if task is not None]
        self._task = self._change = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._has_spoken:
            is_static = self._options.group_instance_id is not None
            await self._tell_leaving(LEAVING_FOR_A_WHILE if is_static else LEAVING)

    async def _tell_leaving(self, epoch: int) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._link.group,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=self._options.group_instance_id,
        )
        try:
            await self._link.ask(request, ConsumerGroupHeartbeatResponse)
        except KafkaError:
            pass  # its session will end by itself
        self._epoch = JOINING
        self._has_spoken = False
        self.is_joined = False

    # ---------------------------------------------------------------- heartbeats

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._beat()
                except PASSING:
                    self._link.forget()
                    self._must_say_all = True
                    await self._link.pause()
                    continue
                except (UnknownMemberId, FencedMemberEpoch):
                    self._lose_place(put_out(self._link.group))
                    await self._begin_anew()
                    continue
                except UnreleasedInstanceId:
                    await self._link.pause()  # who had this name has not gone yet
                    continue
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    await self._link.pause()
                    continue
                self._reconcile()
                await self._rest()
                if self._host.idle_ms > self._options.max_poll_interval_ms:
                    await self._sit_out()
        except Exception as error:
            self._host.fail(error, for_good=True)
        finally:
            self.is_asking = False

    async def _rest(self) -> None:
        """Until the next heartbeat is due, or something is to be said."""
        try:
            async with asyncio.timeout(self._interval_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _beat(self) -> None:
        says_all = self._must_say_all or self._epoch == JOINING
        says_owned = says_all or self._must_say_owned
        self._must_say_all = self._must_say_owned = False
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._link.group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            instance_id=self._options.group_instance_id,
        )
        if says_all:
            request.rack_id = self._options.rack
            request.rebalance_timeout_ms = self._options.max_poll_interval_ms
            request.subscribed_topic_names = sorted(self._subscription.topics)
            request.subscribed_topic_regex = self._subscription.expression
            request.server_assignor = self._options.server_assignor
        if says_owned:
            request.topic_partitions = [] if self._epoch == JOINING else self._owned()
        self._has_spoken = self.is_asking = True
        try:
            response = await self._link.ask(request, ConsumerGroupHeartbeatResponse)
            raise_for(response.error_code, response.error_message, f"group {self._link.group}")
        except KafkaError:
            self._must_say_all |= says_all
            self._must_say_owned |= says_owned
            raise
        if response.member_id:
            self._member_id = response.member_id
        self._epoch = self._last_epoch = response.member_epoch
        self.loss = None
        self.is_asking = False
        self._interval_ms = response.heartbeat_interval_ms or self._interval_ms
        self._told = response.assignment or self._told
        if self._told is not None:
            self._target = await self._named(self._told)

    def _owned(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        by_id: dict[UUID, list[int]] = defaultdict(list)
        ids = {name: topic_id for topic_id, name in self._names.items()}
        for partition in sorted(self._host.owned):
            if partition.topic in ids:
                by_id[ids[partition.topic]].append(partition.partition)
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_id.items()
        ]

    async def _named(
        self, assignment: ConsumerGroupHeartbeatResponse.Assignment
    ) -> frozenset[TopicPartition]:
        """The assignment by names. While a topic has no name, because it is new to the broker that was
        asked or gone already, it is left out and looked for again after the next heartbeat."""
        cluster = self._link.cluster
        ids = {part.topic_id for part in assignment.topic_partitions}
        self._learn_names(ids)
        if ids - self._names.keys():
            is_pattern = self._subscription.pattern is not None
            wanted = None if is_pattern else sorted(self._subscription.topics)
            await cluster.refresh(wanted, Deadline(self._options.request_timeout_ms))
            self._learn_names(ids)
        names = self._names
        if ids <= names.keys():
            self._told = None
        else:
            cluster.doubt()  # another broker may know more
        return frozenset(
            TopicPartition(names[part.topic_id], index)
            for part in assignment.topic_partitions
            if part.topic_id in names
            for index in part.partitions
        )

    def _learn_names(self, ids: set[UUID]) -> None:
        for topic in self._link.cluster.metadata.topics.values():
            if topic.id in ids:
                self._names[topic.id] = topic.name

    # ---------------------------------------------------------------- assignments

    def _reconcile(self) -> None:
        """Bring what is read in line with the assignment, while heartbeats go on."""
        if self._change is None and (self._host.owned != self._target or not self.is_joined):
            self._change = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        try:
            target = self._target
            revoked = self._host.owned - target
            if revoked:
                await self._host.give_up(revoked)
            await self._host.take_on(target - self._host.owned)
            self.is_joined = True
        finally:
            self._change = None
        self._must_say_owned = True
        self._wake.set()

    def _lose_place(self, why: KafkaError) -> None:
        if self._epoch != JOINING:
            self.loss = why
            self.losses += 1

    async def _begin_anew(self) -> None:
        """The group does not know this member any more: its partitions may be others' already."""
        change, self._change = self._change, None
        if change is not None:
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
        self._epoch = JOINING
        self._target = frozenset()
        self._told = None
        self.is_joined = self.is_asking = False
        self._must_say_all = True
        if self._host.owned:
            await self._host.lose()

    async def _sit_out(self) -> None:
        """Leave while the caller does not ask for records; come back when it does."""
        self._lose_place(too_slow(self._link.group, self._options.max_poll_interval_ms))
        await self._tell_leaving(LEAVING)
        await self._begin_anew()
        await self._host.until_polled()
