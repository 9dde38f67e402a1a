"""Metadata: who is in the cluster, and which broker leads which partition."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, null_since, optional, since
from millstream.protocol.types import i8, i16, i32


class MetadataRequest(Request, key=3, versions=(0, 13), flexible=9):
    """v0 takes an empty list for all topics, v1 null; v4 may forbid auto-creation, v8 asks for
    authorized operations (KIP-430; those of the cluster only to v10), v9 is flexible, v12 takes
    topic ids without names (KIP-516)."""

    class MetadataRequestTopic(Struct):
        topic_id: UUID = since(10)
        name: str | None = null_since(10)

    topics: list[MetadataRequestTopic] | None = null_since(1)
    allow_auto_topic_creation: bool = since(4, True)
    include_cluster_authorized_operations: bool = since(8, until=10)
    include_topic_authorized_operations: bool = since(8)


class MetadataResponse(Response, to=MetadataRequest):
    """v1 adds racks, the controller and internal topics, v2 the cluster's id, v5 offline replicas
    (KIP-112), v7 leader epochs (KIP-320), v8 authorized operations (KIP-430), v10 topic ids
    (KIP-516), v13 an error for the whole answer (KIP-1102)."""

    class MetadataResponseBroker(Struct):
        node_id: i32
        host: str
        port: i32
        rack: str | None = since(1)

    class MetadataResponsePartition(Struct):
        error_code: i16 = 0
        partition_index: i32
        leader_id: i32
        leader_epoch: i32 = since(7, -1)
        replica_nodes: list[i32]
        isr_nodes: list[i32]
        offline_replicas: list[i32] = since(5)

    class MetadataResponseTopic(Struct):
        error_code: i16 = 0
        name: str | None = null_since(12)
        topic_id: UUID = since(10)
        is_internal: bool = since(1)
        partitions: list[MetadataResponse.MetadataResponsePartition]
        topic_authorized_operations: i32 = since(8, -(2**31))

    throttle_time_ms: i32 = since(3)
    brokers: list[MetadataResponseBroker]
    cluster_id: str | None = since(2)
    controller_id: i32 = since(1, -1)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: i32 = since(8, -(2**31), until=10)
    error_code: i16 = since(13)


class DescribeClusterRequest(Request, key=60, versions=(0, 2), flexible=0):
    """v1 asks for controllers or brokers (KIP-919), v2 for fenced brokers too (KIP-1073)."""

    include_cluster_authorized_operations: bool
    endpoint_type: i8 = since(1, 1)
    include_fenced_brokers: bool = since(2)


class DescribeClusterResponse(Response, to=DescribeClusterRequest):
    """The brokers and the cluster's id; v1 says what kind of endpoint they are, v2 whether they are
    fenced."""

    class DescribeClusterBroker(Struct):
        broker_id: i32
        host: str
        port: i32
        rack: str | None = None
        is_fenced: bool = since(2)

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    endpoint_type: i8 = since(1, 1)
    cluster_id: str
    controller_id: i32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: i32 = -(2**31)


class DescribeTopicPartitionsRequest(Request, key=75, versions=(0, 0), flexible=0):
    """Topics page by page, from a cursor on (KIP-966)."""

    class TopicRequest(Struct):
        name: str

    class Cursor(Struct):
        topic_name: str
        partition_index: i32

    topics: list[TopicRequest]
    response_partition_limit: i32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponse(Response, to=DescribeTopicPartitionsRequest):
    """Partitions with their eligible leader replicas (KIP-966); a cursor if there are more.
    Java's admin client fails on lists that are null."""

    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: i16 = 0
        partition_index: i32
        leader_id: i32
        leader_epoch: i32 = -1
        replica_nodes: list[i32]
        isr_nodes: list[i32]
        eligible_leader_replicas: list[i32] | None = optional()
        last_known_elr: list[i32] | None = optional()
        offline_replicas: list[i32]

    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: i16 = 0
        name: str | None = None
        topic_id: UUID
        is_internal: bool = False
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]
        topic_authorized_operations: i32 = -(2**31)

    class Cursor(Struct):
        topic_name: str
        partition_index: i32

    throttle_time_ms: i32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
