"""Where replicas lie and which of them lead: elections, reassignments, log directories."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, since, tagged
from millstream.protocol.types import i8, i16, i32, i64


class ElectLeadersRequest(Request, key=43, versions=(0, 2), flexible=2):
    """v0 elects preferred leaders (KIP-183), v1 unclean ones too (KIP-460), v2 is flexible. Null is
    for all partitions."""

    class TopicPartitions(Struct):
        topic: str
        partitions: list[i32]

    election_type: i8 = since(1)
    topic_partitions: list[TopicPartitions] | None = None
    timeout_ms: i32 = 60000


class ElectLeadersResponse(Response, to=ElectLeadersRequest):
    """One result for each partition; v1 adds an error for all."""

    class PartitionResult(Struct):
        partition_id: i32
        error_code: i16 = 0
        error_message: str | None = None

    class ReplicaElectionResult(Struct):
        topic: str
        partition_result: list[ElectLeadersResponse.PartitionResult]

    throttle_time_ms: i32 = 0
    error_code: i16 = since(1)
    replica_election_results: list[ReplicaElectionResult]


class AlterPartitionReassignmentsRequest(Request, key=45, versions=(0, 1), flexible=0):
    """New replicas of partitions, null to cancel (KIP-455); v1 may forbid to change their number
    (KIP-860)."""

    class ReassignablePartition(Struct):
        partition_index: i32
        replicas: list[i32] | None = None

    class ReassignableTopic(Struct):
        name: str
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition]

    timeout_ms: i32 = 60000
    allow_replication_factor_change: bool = since(1, True)
    topics: list[ReassignableTopic]


class AlterPartitionReassignmentsResponse(Response, to=AlterPartitionReassignmentsRequest):
    """One result for each partition."""

    class ReassignablePartitionResponse(Struct):
        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None

    class ReassignableTopicResponse(Struct):
        name: str
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]

    throttle_time_ms: i32 = 0
    allow_replication_factor_change: bool = since(1, True)
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[ReassignableTopicResponse]


class ListPartitionReassignmentsRequest(Request, key=46, versions=(0, 0), flexible=0):
    """Partitions, or null for all (KIP-455)."""

    class ListPartitionReassignmentsTopics(Struct):
        name: str
        partition_indexes: list[i32]

    timeout_ms: i32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class ListPartitionReassignmentsResponse(Response, to=ListPartitionReassignmentsRequest):
    """Reassignments that go on."""

    class OngoingPartitionReassignment(Struct):
        partition_index: i32
        replicas: list[i32]
        adding_replicas: list[i32]
        removing_replicas: list[i32]

    class OngoingTopicReassignment(Struct):
        name: str
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    topics: list[OngoingTopicReassignment]


class DescribeLogDirsRequest(Request, key=35, versions=(1, 4), flexible=2):
    """Partitions, or null for all; v2 is flexible.

    Millstream's own is a tagged field that other brokers pass over: whether the answer may have some, too.
    """

    class DescribableLogDirTopic(Struct):
        topic: str
        partitions: list[i32]

    topics: list[DescribableLogDirTopic] | None = None
    wants_hindrances: bool = tagged(30000, False, since=2)


class DescribeLogDirsResponse(Response, to=DescribeLogDirsRequest):
    """v3 adds an error for the whole answer, v4 the size of the volume and what is free (KIP-827).

    Millstream's own, for who asks for it: whether a dir could not be written for want of room, and all
    partitions in it of which records cannot be read, whichever topics were asked for.
    """

    class DamagedTopic(Struct):
        name: str
        partitions: list[i32]

    class DescribeLogDirsPartition(Struct):
        partition_index: i32
        partition_size: i64
        offset_lag: i64
        is_future_key: bool

    class DescribeLogDirsTopic(Struct):
        name: str
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition]

    class DescribeLogDirsResult(Struct):
        error_code: i16 = 0
        log_dir: str
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic]
        total_bytes: i64 = since(4, -1)
        usable_bytes: i64 = since(4, -1)
        is_full: bool = tagged(30000, False, since=2)
        damaged: list[DescribeLogDirsResponse.DamagedTopic] = tagged(30001, since=2)

    throttle_time_ms: i32 = 0
    error_code: i16 = since(3)
    results: list[DescribeLogDirsResult]


class UnregisterBrokerRequest(Request, key=64, versions=(0, 0), flexible=0):
    """A broker is gone for good, and does not belong to the cluster any more."""

    broker_id: i32


class UnregisterBrokerResponse(Response, to=UnregisterBrokerRequest):
    """Whether that is so now."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
