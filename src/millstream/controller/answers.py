"""The controller's picture in messages, and messages as what a broker applies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from millstream.cluster.metadata import BrokerNode, Endpoint, PartitionState, Topic, TopicChange
from millstream.controller import tree
from millstream.controller.feed import Feed
from millstream.controller.picture import Picture
from millstream.protocol.messages import ClusterStateResponse

Message = ClusterStateResponse


def answer(picture: Picture, feed: Feed, broker_id: int, sequence: int) -> ClusterStateResponse:
    """What changed after `sequence`, for one broker; everything if that is not known."""
    change = feed.since(sequence) if sequence >= 0 else None
    if change is None:
        topics = [_topic(topic, range(len(topic.partitions))) for topic in picture.topics.values()]
        deleted = feed.recently_deleted()
    else:
        topics = [
            _topic(picture.topics[name], sorted(indexes))
            for name, indexes in change.topics.items()
            if name in picture.topics
        ]
        deleted = change.deleted
    gone = {topic.topic_id: topic.name for topic in picture.deleted.values()}
    return Message(
        sequence=feed.sequence,
        is_full=change is None,
        brokers=[_broker(node, node.broker_id in picture.stopping) for node in picture.brokers.values()],
        topics=topics,
        deleted=[Message.DeletedTopic(name=name, topic_id=id_) for id_, name in (gone | deleted).items()],
        default_configs=_configs(picture.configs.get(tree.DEFAULT_BROKER, {})),
        broker_configs=_configs(picture.configs.get(str(broker_id), {})),
        unreadable=list(picture.unreadable),
    )


def _broker(node: BrokerNode, is_stopping: bool) -> Message.Broker:
    return Message.Broker(
        broker_id=node.broker_id,
        broker_epoch=node.epoch,
        rack=node.rack,
        peer_listener=node.peer_listener,
        is_stopping=is_stopping,
        endpoints=[Message.Endpoint(listener=e.listener, host=e.host, port=e.port) for e in node.endpoints],
    )


def _topic(topic: Topic, indexes: Iterable[int]) -> Message.Topic:
    return Message.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        configs=_configs(topic.overrides),
        partitions=[
            _partition(index, topic.partitions[index]) for index in indexes if index < len(topic.partitions)
        ],
    )


def _partition(index: int, state: PartitionState) -> Message.Partition:
    return Message.Partition(
        index=index,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.version,
        replicas=state.replicas,
        adding_replicas=state.adding,
        removing_replicas=state.removing,
        isr=state.isr,
        eligible=state.eligible,
        doubted=state.doubted,
    )


def _configs(texts: Mapping[str, str]) -> list[Message.Config]:
    return [Message.Config(name=name, value=value) for name, value in texts.items()]


# What a broker makes of it


def brokers_in(message: ClusterStateResponse) -> dict[int, BrokerNode]:
    return {
        each.broker_id: BrokerNode(
            each.broker_id,
            tuple(Endpoint(e.listener, e.host, e.port) for e in each.endpoints),
            each.rack,
            each.broker_epoch,
            each.peer_listener,
            each.is_stopping,
        )
        for each in message.brokers
    }


def topics_in(message: ClusterStateResponse) -> list[TopicChange]:
    return [
        TopicChange(
            topic.name,
            topic.topic_id,
            {config.name: config.value for config in topic.configs},
            {partition.index: _state(partition) for partition in topic.partitions},
        )
        for topic in message.topics
    ]


def deleted_in(message: ClusterStateResponse) -> list[tuple[str, UUID]]:
    return [(topic.name, topic.topic_id) for topic in message.deleted]


def _state(partition: Message.Partition) -> PartitionState:
    return PartitionState(
        list(partition.replicas),
        list(partition.isr),
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        list(partition.adding_replicas),
        list(partition.removing_replicas),
        list(partition.eligible),
        list(partition.doubted),
    )
