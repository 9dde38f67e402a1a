"""Groups of the consumer protocol: ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from functools import partial

from millstream.broker.handlers.groups import group_index
from millstream.broker.operations import ON_A_GROUP
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember, Partitions
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.groups.topics import Topics
from millstream.errors import GroupIdNotFound, InvalidGroupId, KafkaError
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


@handles(ConsumerGroupHeartbeatRequest)
async def consumer_group_heartbeat(
    ctx: Context, req: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """v1 regular expressions (KIP-848), member ids made by clients (KIP-1082)."""
    client = Client(ctx.version, ctx.client_id or "", f"/{ctx.connection.peer}")
    try:
        matched = None
        await ctx.broker.group_topics.configs.known()
        if req.subscribed_topic_regex and req.member_epoch >= 0:
            matched = await ctx.broker.group_topics.match(req.subscribed_topic_regex)
        return await ctx.broker.groups.write(
            group_index(ctx, req.group_id),
            lambda shard: shard.consumer.members.heartbeat(req, client, matched),
        )
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=error.message, member_epoch=0, heartbeat_interval_ms=0
        )


@handles(ConsumerGroupDescribeRequest, large_bytes=LONG_LIST_BYTES)
async def consumer_group_describe(
    ctx: Context, req: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """v1 tells classic members from those of the consumer protocol (KIP-1099). A group that is named twice
    is described once.
    """
    response, pauses = ConsumerGroupDescribeResponse(groups=[]), Pauses()
    for group_id in dict.fromkeys(req.group_ids):
        if pauses.is_due:
            await pauses.take()
        try:
            if not group_id:
                raise InvalidGroupId("a group's id must not be empty")
            look = partial(_described, group_id, ctx.broker.group_topics)
            group = await ctx.broker.groups.read(group_index(ctx, group_id), look)
            if req.include_authorized_operations:
                group.authorized_operations = ON_A_GROUP
        except KafkaError as error:
            group = ConsumerGroupDescribeResponse.DescribedGroup(
                error_code=error.code,
                error_message=error.message,
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
        response.groups.append(group)
    return response


def _described(
    group_id: str, topics: Topics, shard: GroupShard
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    group = shard.find(group_id)
    if group is None:
        raise GroupIdNotFound(f"there is no group {group_id}")
    if not isinstance(group, ConsumerGroup):
        raise GroupIdNotFound(f"the group {group_id} is not a consumer group")
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=shard.consumer.assignor_of(group),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(
    group: ConsumerGroup, member: ConsumerMember, topics: Topics
) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(member.assigned_partitions, topics),
        target_assignment=_assignment(group.target_of(member), topics),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: Partitions, topics: Topics) -> ConsumerGroupDescribeResponse.Assignment:
    """Partitions of the topics that still exist."""
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers)
            )
            for topic_id, numbers in partitions.items()
            if (topic := topics.by_id(topic_id)) is not None
        ]
    )
