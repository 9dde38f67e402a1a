"""What brokers and their controller say to each other, on the inter-broker listener only.

AlterPartition is Kafka's own. The others are Millstream's, with keys from 30000 on. None of them is ever
advertised in ApiVersions.
"""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, optional, since, tagged, until
from millstream.protocol.types import i8, i16, i32, i64

EVERYTHING = -1
"""The sequence of a broker that wants the whole state."""


class ClusterStateRequest(Request, key=30000, versions=(0, 0), flexible=0):
    """A broker asks the controller for what has changed since `sequence`, which it has applied.

    Replicas that cannot be served, because their log dir failed or no log can be made, are named in every
    request; so are those that others should lead if they can: `damaged` ones cannot be read everywhere,
    `full` ones not written.
    Of damaged ones it is said in which leader epoch they were last led, or fetched. Of doubted ones
    that nobody leads it is said where they end, and in which epoch their last record was written.
    """

    max_elements = None

    class FailedTopic(Struct):
        topic_id: UUID
        partitions: list[i32]

    class DamagedTopic(Struct):
        topic_id: UUID
        partitions: list[i32]
        epochs: list[i32]

    class DoubtedPartition(Struct):
        index: i32
        leader_epoch: i32
        epoch: i32
        end_offset: i64

    class DoubtedTopic(Struct):
        topic_id: UUID
        partitions: list[ClusterStateRequest.DoubtedPartition]

    broker_id: i32
    broker_epoch: i64
    controller_epoch: i32 = -1
    sequence: i64 = EVERYTHING
    max_wait_ms: i32 = 500
    failed: list[FailedTopic] = optional()
    damaged: list[DamagedTopic] = tagged(0, since=0)
    full: list[FailedTopic] = tagged(1, since=0)
    doubted: list[DoubtedTopic] = tagged(2, since=0)


class ClusterStateResponse(Response, to=ClusterStateRequest):
    """All live brokers, and the topics and partitions that changed; all there are if `is_full`.

    Of `unreadable` topics the controller knows the names alone: they stay as they are.
    """

    class Endpoint(Struct):
        listener: str
        host: str
        port: i32

    class Broker(Struct):
        broker_id: i32
        broker_epoch: i64
        rack: str | None = None
        peer_listener: str
        is_stopping: bool = False
        endpoints: list[ClusterStateResponse.Endpoint]

    class Config(Struct):
        name: str
        value: str

    class Partition(Struct):
        index: i32
        leader: i32
        leader_epoch: i32
        partition_epoch: i32
        replicas: list[i32]
        adding_replicas: list[i32]
        removing_replicas: list[i32]
        isr: list[i32]
        eligible: list[i32]
        doubted: list[i32]

    class Topic(Struct):
        name: str
        topic_id: UUID
        configs: list[ClusterStateResponse.Config]
        partitions: list[ClusterStateResponse.Partition]

    class DeletedTopic(Struct):
        name: str
        topic_id: UUID

    error_code: i16 = 0
    error_message: str | None = None
    controller_id: i32 = -1
    controller_epoch: i32 = -1
    sequence: i64 = EVERYTHING
    is_full: bool = False
    brokers: list[Broker] = optional()
    topics: list[Topic] = optional()
    deleted: list[DeletedTopic] = optional()
    default_configs: list[Config] = optional()
    broker_configs: list[Config] = optional()
    unreadable: list[str] = optional()


class ControlledShutdownRequest(Request, key=30001, versions=(0, 0), flexible=0):
    """A broker is about to stop, and wants others to lead what it leads."""

    broker_id: i32
    broker_epoch: i64


class ControlledShutdownResponse(Response, to=ControlledShutdownRequest):
    """How many partitions it still leads that another live broker could lead, once in sync."""

    error_code: i16 = 0
    error_message: str | None = None
    remaining: i32 = 0


class AlterPartitionRequest(Request, key=56, versions=(2, 3), flexible=0):
    """A leader proposes in-sync replicas (KIP-497); v3 says in which broker epochs (KIP-903)."""

    max_elements = None

    class BrokerState(Struct):
        broker_id: i32
        broker_epoch: i64 = -1

    class PartitionData(Struct):
        partition_index: i32
        leader_epoch: i32
        new_isr: list[i32] = until(2)
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = since(3)
        leader_recovery_state: i8 = 0
        partition_epoch: i32

    class TopicData(Struct):
        topic_id: UUID
        partitions: list[AlterPartitionRequest.PartitionData]

    broker_id: i32
    broker_epoch: i64 = -1
    topics: list[TopicData]


class AlterPartitionResponse(Response, to=AlterPartitionRequest):
    """What each partition's state is now, or why it was not changed."""

    class PartitionData(Struct):
        partition_index: i32
        error_code: i16 = 0
        leader_id: i32
        leader_epoch: i32
        isr: list[i32]
        leader_recovery_state: i8 = 0
        partition_epoch: i32

    class TopicData(Struct):
        topic_id: UUID
        partitions: list[AlterPartitionResponse.PartitionData]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    topics: list[TopicData]


INTERNAL_REQUESTS: tuple[type[Request], ...] = (
    ClusterStateRequest,
    ControlledShutdownRequest,
    AlterPartitionRequest,
)
"""What is served on the inter-broker listener only, and not advertised."""
