"""The cluster's nodes in the registry: their paths and what is written in them (JSON, as Kafka's)."""

from __future__ import annotations

import msgspec

from millstream.cluster.metadata import BrokerNode, Endpoint, PartitionState, Topic
from millstream.model import decode_uuid, encode_uuid

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKERS = "/brokers/ids"
SEEN_BROKERS = "/brokers/seen"
EDITIONS = "/brokers/editions"
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
    SEEN_BROKERS,
    EDITIONS,
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
    eligible: list[int] = []
    doubted: list[int] = []


class ConfigNode(msgspec.Struct):
    """What is set for a topic or a broker."""

    config: dict[str, str]
    version: int = 1


class SeenNode(msgspec.Struct):
    """The registration of a broker whose consequences the controllers have drawn.

    It stays when the broker goes, until it is unregistered: so long it belongs to the cluster.
    """

    epoch: int
    version: int = 1
    is_doubted: bool = False
    """Whether a stop that was not clean has consequences that could not be drawn for all topics."""
    rack: str | None = None


class EditionsNode(msgspec.Struct):
    """The last editions of a broker's log dirs that it has taken part with, by directory id.

    `last` are the dirs that it has taken part with last; none if a version wrote this that did not know it.
    """

    dirs: dict[str, int]
    last: list[str] = []
    version: int = 1


class BrokerIdNode(msgspec.Struct):
    """A live broker's addresses, and whether all that it wrote before its last stop is still there.

    `peer_listener` names the endpoint that is for other brokers. `min_insync_replicas` is what it was started
    with, for topics that do not say it themselves.
    """

    endpoints: list[str]
    host: str
    port: int
    timestamp: str
    rack: str | None = None
    jmx_port: int = -1
    version: int = 5
    peer_listener: str = ""
    was_clean: bool = False
    min_insync_replicas: int = 1


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
    """A topic from its nodes; a partition without a state yet has no leader, and version -1.

    ValueError if the nodes, by somebody else's hand, do not describe one.
    """
    if not node.partitions:
        raise ValueError("it has no partition")
    partitions = []
    for index in range(len(node.partitions)):
        key = str(index)
        replicas = node.partitions.get(key)
        if not replicas or len(set(replicas)) != len(replicas):
            raise ValueError(f"partition {index} has no replica, or one twice")
        partition = PartitionState(
            replicas,
            [],
            -1,
            0,
            -1,
            node.adding_replicas.get(key, []),
            node.removing_replicas.get(key, []),
        )
        if index in states:
            state, partition.version = states[index]
            partition.isr, partition.leader = state.isr, state.leader
            partition.leader_epoch = state.leader_epoch
            partition.eligible, partition.doubted = state.eligible, state.doubted
        partitions.append(partition)
    return Topic(name, decode_uuid(node.topic_id), partitions, dict(config))


def node_of(topic: Topic) -> TopicNode:
    numbered = [(str(index), partition) for index, partition in enumerate(topic.partitions)]
    return TopicNode(
        {key: partition.replicas for key, partition in numbered},
        encode_uuid(topic.topic_id),
        adding_replicas={key: partition.adding for key, partition in numbered if partition.adding},
        removing_replicas={key: partition.removing for key, partition in numbered if partition.removing},
    )


def state_of(partition: PartitionState, controller_epoch: int) -> StateNode:
    return StateNode(
        controller_epoch,
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        eligible=partition.eligible,
        doubted=partition.doubted,
    )


def broker_of(broker_id: int, node: BrokerIdNode, epoch: int) -> BrokerNode:
    endpoints = []
    for text in node.endpoints:
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        endpoints.append(Endpoint(name, host.strip("[]"), int(port)))
    return BrokerNode(
        broker_id,
        tuple(endpoints),
        node.rack,
        epoch,
        node.peer_listener,
        min_insync_replicas=node.min_insync_replicas,
    )
