"""The entries of `__consumer_offsets`: committed offsets, classic groups, consumer groups (KIP-848)."""

from __future__ import annotations

from uuid import UUID

from millstream.coordinator.entry_format import EntryKey, EntryValue
from millstream.protocol.schema import Struct, since, tagged
from millstream.protocol.types import i8, i32, i64


class OffsetCommitKey(EntryKey, types=(0, 1)):
    """A group's position in one partition."""

    group: str
    topic: str
    partition: i32


class OffsetCommitValue(EntryValue, versions=(0, 4), flexible=4, written=3):
    """v1 had an expiry of its own, v3 adds the leader epoch, v4 is flexible."""

    offset: i64
    leader_epoch: i32 = since(3, -1)
    metadata: str
    commit_timestamp: i64
    expire_timestamp: i64 = since(1, -1, until=1)


class GroupMetadataKey(EntryKey, types=(2,)):
    """A group of the classic protocol."""

    group: str


class GroupMetadataValue(EntryValue, versions=(0, 4), flexible=4, written=3):
    """v1 adds the rebalance time-out, v2 the time of the last change, v3 static members, v4 is flexible."""

    class MemberMetadata(Struct):
        member_id: str
        group_instance_id: str | None = since(3)
        client_id: str
        client_host: str
        rebalance_timeout: i32 = since(1)
        session_timeout: i32
        subscription: bytes
        assignment: bytes

    protocol_type: str
    generation: i32
    protocol: str | None
    leader: str | None
    current_state_timestamp: i64 = since(2, -1)
    members: list[MemberMetadata]


class ConsumerGroupMetadataKey(EntryKey, types=(3,)):
    """A consumer group."""

    group_id: str


class ConsumerGroupMetadataValue(EntryValue, versions=(0, 0), flexible=0, written=0):
    """Its epoch, and a hash of what it is subscribed to (KIP-1101)."""

    epoch: i32
    metadata_hash: i64 = tagged(0, 0, since=0)


class ConsumerGroupMemberMetadataKey(EntryKey, types=(5,)):
    """A member of a consumer group."""

    group_id: str
    member_id: str


class ConsumerGroupMemberMetadataValue(EntryValue, versions=(0, 0), flexible=0, written=0):
    """What a member told of itself; `classic_member_metadata` where it speaks the classic protocol."""

    class ClassicProtocol(Struct):
        name: str
        metadata: bytes

    class ClassicMemberMetadata(Struct):
        session_timeout_ms: i32
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol]

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: i32 = -1
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = tagged(0, since=0, is_marked=True)


class ConsumerGroupTargetAssignmentMetadataKey(EntryKey, types=(6,)):
    """The assignment that a consumer group is moving to."""

    group_id: str


class ConsumerGroupTargetAssignmentMetadataValue(EntryValue, versions=(0, 0), flexible=0, written=0):
    """The group epoch that it was made for, and when."""

    assignment_epoch: i32
    assignment_timestamp: i64 = tagged(0, 0, since=0)


class ConsumerGroupTargetAssignmentMemberKey(EntryKey, types=(7,)):
    """A member's part in the assignment that its group is moving to."""

    group_id: str
    member_id: str


class ConsumerGroupTargetAssignmentMemberValue(EntryValue, versions=(0, 0), flexible=0, written=0):
    class TopicPartition(Struct):
        topic_id: UUID
        partitions: list[i32]

    topic_partitions: list[TopicPartition]


class ConsumerGroupCurrentMemberAssignmentKey(EntryKey, types=(8,)):
    """What a member of a consumer group has now."""

    group_id: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentValue(EntryValue, versions=(0, 0), flexible=0, written=0):
    """States: 0 stable, 1 has to give partitions up, 2 waits for partitions that others give up.

    Each partition has the epoch in which the member got it (KIP-1251).
    """

    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[i32]
        assignment_epochs: list[i32] = tagged(0, since=0)

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


class ConsumerGroupRegularExpressionKey(EntryKey, types=(16,)):
    """A regular expression that members of a consumer group are subscribed by."""

    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(EntryValue, versions=(0, 0), flexible=0, written=0):
    """The topics it matched, and at which version of the topics' list that was."""

    topics: list[str]
    version: i64
    timestamp: i64
