"""How a group changes its protocol while it lives: from classic to consumer, and back.

A classic group becomes a consumer group when the first member of the new protocol joins: its members stay,
as classic members of it. A consumer group becomes a classic group when the last member of the new protocol
goes and classic ones remain. Both are entries in the log: the old group's tombstones and the new group.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from uuid import UUID

from millstream.coordinator.entry_format import entry
from millstream.coordinator.group_entries import GroupMetadataKey
from millstream.coordinator.groups.classic_group import CONSUMER, ClassicGroup
from millstream.coordinator.groups.consumer_entries import (
    assignment_entry,
    group_entry,
    member_entry,
    target_entry,
    target_epoch_entry,
)
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ClassicSide, ConsumerMember, Partitions
from millstream.coordinator.groups.member import Member, Protocols
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.subscription import read_assignment, read_subscription
from millstream.coordinator.groups.topics import Topics, metadata_hash
from millstream.coordinator.shard import Entry
from millstream.errors import GroupIdNotFound, ProtocolError
from millstream.protocol.messages import ConsumerProtocolAssignment

FORGETFUL_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors whose members do without the data that their assignments carry. Others, as that of Kafka Streams,
would lose what they go by."""

_version = Struct(">h")


def upgrade(group: ClassicGroup, topics: Topics, settings: Settings) -> list[Entry]:
    """What makes a consumer group of a classic one; GroupIdNotFound if that cannot be."""
    if group.is_empty and not group.members:
        return [entry(GroupMetadataKey(group=group.group_id), None)]
    if not settings.allows_upgrade:
        raise _refusal(group, "group.consumer.migration.policy does not let it")
    if not group.is_consumer:
        raise _refusal(group, f"its protocol is {group.protocol_type}")
    if len(group.members) > settings.consumer_max_size:
        raise _refusal(group, f"it has more than {settings.consumer_max_size} members")
    try:
        members = _upgraded_members(group, topics)
    except ProtocolError as error:
        raise _refusal(group, f"what its members tell each other cannot be read: {error}") from None
    group_id, epoch = group.group_id, group.generation
    names = ConsumerGroup.subscribed(members, {})
    return [
        entry(GroupMetadataKey(group=group_id), None),
        *(member_entry(group_id, member) for member in members),
        # One epoch ahead of what was assigned, so that all share anew, whatever the new member reads.
        group_entry(group_id, epoch + 1, metadata_hash(names, topics)),
        *(target_entry(group_id, member.member_id, member.assigned_partitions) for member in members),
        target_epoch_entry(group_id, epoch, 0),
        *(assignment_entry(group_id, member) for member in members),
    ]


def _refusal(group: ClassicGroup, reason: str) -> GroupIdNotFound:
    return GroupIdNotFound(f"the classic group {group.group_id} cannot become a consumer group: {reason}")


def _upgraded_members(group: ClassicGroup, topics: Topics) -> list[ConsumerMember]:
    """The members with what they may be reading: what they were assigned last, and what they owned when
    they joined, for one that has not asked for its assignment yet still reads that.

    No partition is held twice, whatever their leader wrote.
    """
    taken: set[tuple[UUID, int]] = set()
    members = []
    for member in group.members.values():
        subscription = read_subscription(member.protocols[0][1])
        held: dict[UUID, dict[int, int]] = {}
        assignment = read_assignment(member.assignment)
        if assignment.user_data and group.protocol_name not in FORGETFUL_ASSIGNORS:
            raise ProtocolError(f"the assignor {group.protocol_name} keeps data of its own in assignments")
        read = [(each.topic, each.partitions) for each in assignment.assigned_partitions]
        read += [(each.topic, each.partitions) for each in subscription.owned_partitions]
        for name, numbers in read:
            topic = topics.by_name(name)
            if topic is None:
                continue
            for number in numbers:
                if 0 <= number < topic.partition_count and (topic.topic_id, number) not in taken:
                    taken.add((topic.topic_id, number))
                    held.setdefault(topic.topic_id, {})[number] = group.generation
        members.append(
            ConsumerMember(
                member.member_id,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id or None,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topics=frozenset(subscription.topics),
                classic=ClassicSide(member.session_timeout_ms, tuple(member.protocols)),
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=held,
            )
        )
    return members


def can_downgrade(remaining: Iterable[ConsumerMember], settings: Settings) -> bool:
    """Whether those that remain are a classic group."""
    members = list(remaining)
    return (
        settings.allows_downgrade
        and 0 < len(members) <= settings.max_size
        and all(member.is_classic for member in members)
        and bool(set.intersection(*({name for name, _ in member.protocols} for member in members)))
    )


def downgrade(
    group: ConsumerGroup, members: Iterable[ConsumerMember], topics: Topics, now_ms: int
) -> list[Entry]:
    """What makes a classic group of a consumer group, with the members given."""
    classic = ClassicGroup(group.group_id)
    for member in members:
        assert member.classic is not None
        classic.add(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                member.protocols,
                assignment_bytes(member.assigned_partitions, member.protocols, topics),
            ),
            CONSUMER,
        )
    classic.generation = group.epoch
    classic.state_since_ms = now_ms
    classic.protocol_name = classic.choose_protocol()
    written = entry(GroupMetadataKey(group=group.group_id), classic.value())
    return [*group.tombstones(), written]


def assignment_bytes(partitions: Partitions, protocols: Protocols, topics: Topics) -> bytes:
    """An assignment as classic consumers read it, in the version in which they subscribed."""
    (version,) = _version.unpack_from(protocols[0][1])
    version = max(0, min(version, ConsumerProtocolAssignment.versions[1]))
    by_name = {}
    for topic_id, numbers in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            by_name[topic.name] = sorted(numbers)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=by_name[name])
            for name in sorted(by_name)
        ]
    )
    return _version.pack(version) + assignment.encode(version)
