"""The cluster's nodes in the registry: their paths and what is written in them (JSON, as Kafka's)."""

from __future__ import annotations

import msgspec

from millstream.cluster.metadata import BrokerNode, Endpoint, PartitionState, Topic
from millstream.model import decode_uuid, encode_uuid

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
DELETED_TOPICS = "/admin/delete_topics"
PRODUCER_IDS = "/latest_producer_id_block"

DEFAULT_BROKER = "<default>"
"""The node below BROKER_CONFIGS that holds what is set for all brokers."""

ROOTS = (
    "/cluster",
    "/brokers",
    BROKERS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    "/config/users",
    "/config/clients",
    "/admin",
    DELETED_TOPICS,
    "/consumers",
)


class TopicNode(msgspec.Struct):
    """A topic's assignment."""

    partitions: dict[str, list[int]]
    topic_id: str
    version: int = 3
    adding_replicas: dict[str, list[int]] = {}
    removing_replicas: dict[str, list[int]] = {}


class StateNode(msgspec.Struct):
    """Who leads a partition, and which replicas are in sync."""

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: list[int]
    version: int = 1


class ConfigNode(msgspec.Struct):
    """What is set for a topic or a broker."""

    config: dict[str, str]
    version: int = 1


class BrokerIdNode(msgspec.Struct):
    """A live broker's addresses."""

    endpoints: list[str]
    host: str
    port: int
    timestamp: str
    rack: str | None = None
    jmx_port: int = -1
    version: int = 5


class ProducerIdBlock(msgspec.Struct):
    """The producer ids that were last given to a broker to hand out."""

    broker: int
    block_start: str
    block_end: str
    version: int = 1


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def dump(node: msgspec.Struct) -> bytes:
    return msgspec.json.encode(node)


def topic_of(
    name: str, node: TopicNode, states: dict[int, tuple[StateNode, int]], config: dict[str, str]
) -> Topic:
    """A topic from its nodes; a partition without a state yet has no leader."""
    partitions = []
    for index in range(len(node.partitions)):
        replicas = node.partitions[str(index)]
        if index in states:
            state, version = states[index]
            partitions.append(PartitionState(replicas, state.isr, state.leader, state.leader_epoch, version))
        else:
            partitions.append(PartitionState(replicas, [], -1, 0, -1))
    return Topic(name, decode_uuid(node.topic_id), partitions, dict(config))


def node_of(topic: Topic) -> TopicNode:
    return TopicNode(
        {str(i): partition.replicas for i, partition in enumerate(topic.partitions)},
        encode_uuid(topic.topic_id),
    )


def broker_of(broker_id: int, node: BrokerIdNode) -> BrokerNode:
    endpoints = []
    for text in node.endpoints:
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        endpoints.append(Endpoint(name, host.strip("[]"), int(port)))
    return BrokerNode(broker_id, tuple(endpoints), node.rack)
