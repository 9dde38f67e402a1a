"""Metadata, DescribeTopicPartitions and DescribeCluster: who is there and who leads what."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from millstream.broker.operations import NOT_ASKED_FOR, ON_A_TOPIC, ON_THE_CLUSTER
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, PartitionState, Topic
from millstream.controller.topics import NewTopic
from millstream.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    ListenerNotFound,
    UnknownTopicOrPartition,
    UnsupportedEndpointType,
)
from millstream.model import NO_UUID, check_topic_name
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

BROKERS = 1

MAX_CREATED = 100
"""How many topics one request creates at most by asking for them."""


@handles(MetadataRequest, large_bytes=LONG_LIST_BYTES)
async def metadata(ctx: Context, req: MetadataRequest) -> MetadataResponse:
    """v1 all topics by null, controller; v2 cluster id; v4 auto-creation may be forbidden;
    v7 leader epochs; v8 authorised operations; v9 flexible; v10 topic ids; v12 asked for by id;
    v13 an error for the whole answer (KIP-1102).

    A topic that may be created by asking for it is created before the answer, unless they are many. One
    that is asked for more than once is told once, as in Kafka. Between topics others have their turn, so
    each is as of a moment of its own.
    """
    broker = ctx.broker
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in _brokers(ctx)
        ],
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.controller_id,
        topics=[],
        cluster_authorized_operations=(
            ON_THE_CLUSTER if req.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )
    operations = ON_A_TOPIC if req.include_topic_authorized_operations else NOT_ASKED_FOR
    wants_all = req.topics is None or (ctx.version == 0 and not req.topics)
    if wants_all:
        topics = broker.metadata.topics
        response.topics = await broker.all_topics.told(
            (ctx.listener, operations), topics, lambda topic: _topic(ctx, topic, operations)
        )
        return response
    pauses = Pauses()
    creation = _Creation(ctx, req.allow_auto_topic_creation or ctx.version < 4)
    asked = {each.name if each.topic_id == NO_UUID else each.topic_id: each for each in req.topics or ()}
    for wanted in asked.values():
        if pauses.is_due:
            await pauses.take()
        try:
            if wanted.topic_id != NO_UUID:
                topic = broker.metadata.topic_by_id(wanted.topic_id)
            elif wanted.name is None:
                raise InvalidRequest("a topic is asked for by name or by id")
            else:
                topic = broker.metadata.topics.get(wanted.name) or await creation.create(wanted.name)
            response.topics.append(_topic(ctx, topic, operations))
        except KafkaError as error:
            response.topics.append(
                MetadataResponse.MetadataResponseTopic(
                    error_code=error.code,
                    name=wanted.name if wanted.name is not None or ctx.version >= 12 else "",
                    topic_id=wanted.topic_id,
                    is_internal=False,
                    partitions=[],
                )
            )
    return response


class _Creation:
    """The topics that one request creates by asking for them: not too many of them.

    For the others its client asks again, as it does while a topic has no leader yet. So it does, too, once
    one could not be made now: each may take as long as the controller is waited for.
    """

    def __init__(self, ctx: Context, is_allowed: bool) -> None:
        self._broker = ctx.broker
        self._is_allowed = is_allowed and ctx.broker.config["auto.create.topics.enable"]
        self._left = MAX_CREATED

    async def create(self, name: str) -> Topic:
        check_topic_name(name)
        if not self._is_allowed:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        if not self._left:
            raise LeaderNotAvailable("one request does not create so many topics")
        self._left -= 1
        try:
            if name in INTERNAL_TOPICS:
                return await self._broker.coordinators.topic(name)
            return await self._broker.controller_link.create_topic(NewTopic(name))
        except KafkaError as error:
            if error.retriable:  # no controller, or no word from it: the client asks again
                self._left = 0
                raise LeaderNotAvailable(error.message) from error
            raise


def _topic(ctx: Context, topic: Topic, operations: int) -> MetadataResponse.MetadataResponseTopic:
    failed = ctx.broker.replicas.failed_of(topic)
    return MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponse.MetadataResponsePartition(
                error_code=_partition_error(ctx, partition, index in failed),
                partition_index=index,
                leader_id=_leader(ctx, partition, index in failed),
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=_offline(ctx, partition, index in failed),
            )
            for index, partition in enumerate(topic.partitions)
        ],
        topic_authorized_operations=operations,
    )


def _leader(ctx: Context, partition: PartitionState, has_failed: bool) -> int:
    """The leader, if it can be reached by the client's listener, and serves what it leads."""
    broker = ctx.broker
    leader = partition.leader
    if leader == broker.config.node_id:
        return NO_LEADER if has_failed else leader
    node = broker.metadata.brokers.get(leader)
    if node is None or broker.peers.is_lost(leader):
        return NO_LEADER
    return NO_LEADER if node.endpoint(ctx.listener) is None else leader


def _partition_error(ctx: Context, partition: PartitionState, has_failed: bool) -> int:
    if _leader(ctx, partition, has_failed) != NO_LEADER:
        return 0
    leader = partition.leader
    is_there = leader in ctx.broker.metadata.brokers and not ctx.broker.peers.is_lost(leader)
    return ListenerNotFound.code if is_there and not has_failed else LeaderNotAvailable.code


def _offline(ctx: Context, partition: PartitionState, has_failed: bool) -> list[int]:
    """The replicas that nobody can read: their broker is gone, or their log dir failed."""
    live, own = ctx.broker.metadata.brokers, ctx.broker.config.node_id
    if not has_failed and all(each in live for each in partition.replicas):
        return []
    return [each for each in partition.replicas if each not in live or (each == own and has_failed)]


def _brokers(ctx: Context) -> Iterable[tuple[int, str, int, str | None]]:
    """The live brokers, each by its address on the listener that the client came by."""
    for node in ctx.broker.metadata.brokers.values():
        endpoint = node.endpoint(ctx.listener)
        if endpoint is not None:
            yield node.broker_id, endpoint.host, endpoint.port, node.rack


@handles(DescribeClusterRequest)
def describe_cluster(ctx: Context, req: DescribeClusterRequest) -> DescribeClusterResponse:
    """v1 endpoint type (KIP-919); v2 fenced brokers (KIP-1073)."""
    if ctx.version >= 1 and req.endpoint_type != BROKERS:
        raise UnsupportedEndpointType("this listener describes brokers only")
    brokers = [
        DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in _brokers(ctx)
    ]
    if not brokers:
        raise ListenerNotFound
    return DescribeClusterResponse(
        cluster_id=ctx.broker.metadata.cluster_id,
        controller_id=ctx.broker.controller_id,
        brokers=brokers,
        cluster_authorized_operations=(
            ON_THE_CLUSTER if req.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


@handles(DescribeTopicPartitionsRequest, large_bytes=LONG_LIST_BYTES)
def describe_topic_partitions(
    ctx: Context, req: DescribeTopicPartitionsRequest
) -> Awaitable[DescribeTopicPartitionsResponse]:
    """v0: topics in order of name, in pages of partitions (KIP-966)."""
    limit = min(req.response_partition_limit, ctx.broker.config["max.request.partition.size.limit"])
    if limit < 1:
        raise InvalidRequest("response_partition_limit must be at least 1")
    return _describe_partitions(ctx, req, limit)


async def _describe_partitions(
    ctx: Context, req: DescribeTopicPartitionsRequest, limit: int
) -> DescribeTopicPartitionsResponse:
    names = sorted({topic.name for topic in req.topics} or ctx.broker.metadata.topics)
    first = 0
    if req.cursor is not None:
        names = [name for name in names if name >= req.cursor.topic_name]
        if names and names[0] == req.cursor.topic_name:
            first = req.cursor.partition_index
    response, pauses = DescribeTopicPartitionsResponse(topics=[]), Pauses()
    for name in names:
        if pauses.is_due:
            await pauses.take()
        if limit <= 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=first
            )
            break
        topic = ctx.broker.metadata.topics.get(name)
        if topic is None:
            response.topics.append(_unknown_topic(name))
            continue
        shown = list(enumerate(topic.partitions))[first : first + limit]
        limit -= len(shown)
        response.topics.append(_described(ctx, topic, shown))
        if first + len(shown) < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=first + len(shown)
            )
            break
        first = 0
    return response


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=UnknownTopicOrPartition.code,
        name=name,
        topic_id=NO_UUID,
        is_internal=False,
        partitions=[],
        topic_authorized_operations=NOT_ASKED_FOR,
    )


def _described(
    ctx: Context, topic: Topic, shown: list[tuple[int, PartitionState]]
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    failed = ctx.broker.replicas.failed_of(topic)
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                error_code=_partition_error(ctx, partition, index in failed),
                partition_index=index,
                leader_id=_leader(ctx, partition, index in failed),
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=partition.eligible,  # the Java client takes no null here
                last_known_elr=partition.doubted,
                offline_replicas=_offline(ctx, partition, index in failed),
            )
            for index, partition in shown
        ],
        topic_authorized_operations=ON_A_TOPIC,
    )
