"""Whether somebody may commit or fetch a consumer group's offsets (KIP-848, KIP-1251)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember
from millstream.coordinator.groups.topics import Topics
from millstream.errors import IllegalGeneration, KafkaError, StaleMemberEpoch, UnsupportedVersion
from millstream.model import TopicPartition

if TYPE_CHECKING:
    from millstream.coordinator.groups.commits import Caller

EPOCHS_SINCE = 9
"""Before this version OffsetCommit knows no member epochs."""


def refused_commits(
    group: ConsumerGroup, caller: Caller, partitions: Iterable[TopicPartition], topics: Topics, version: int
) -> dict[TopicPartition, int]:
    """The partitions that a member may not commit, with the error's code; KafkaError if it is all of them.

    A member in its epoch may commit anything. One that has not heard of its newest epoch yet may commit
    what it has had since the epoch that it is in. Without an epoch it is an admin, or a consumer that
    assigns itself: it may while the group is empty.
    """
    if caller.generation < 0 and group.is_empty:
        return {}
    member = group.check_member(caller.member_id, caller.instance_id)
    if not member.is_classic and version < EPOCHS_SINCE:
        raise UnsupportedVersion("members of the consumer protocol commit with version 9 or newer")
    return _stale(member, caller.generation, partitions, topics, StaleMemberEpoch)


def refused_in_transaction(
    group: ConsumerGroup, caller: Caller, partitions: Iterable[TopicPartition], topics: Topics
) -> dict[TopicPartition, int]:
    """As `refused_commits`; producers of old versions tell neither member nor epoch, and are let in."""
    is_anonymous = not caller.member_id and caller.instance_id is None
    if caller.generation < 0 and (group.is_empty or is_anonymous):
        return {}
    member = group.check_member(caller.member_id, caller.instance_id)
    return _stale(member, caller.generation, partitions, topics, IllegalGeneration)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Refuse a member that is not in the epoch that it believes to be in; those without one may look."""
    if not member_id and epoch < 0:
        return
    if group.member(member_id or "").epoch != epoch:
        raise StaleMemberEpoch


def _stale(
    member: ConsumerMember,
    epoch: int,
    partitions: Iterable[TopicPartition],
    topics: Topics,
    error: type[KafkaError],
) -> dict[TopicPartition, int]:
    if epoch == member.epoch:
        return {}
    if member.is_classic:
        raise IllegalGeneration
    if not 0 <= epoch < member.epoch:
        raise error
    refused = {}
    for partition in partitions:
        topic = topics.by_name(partition.topic)
        got = None if topic is None else member.assigned.get(topic.topic_id, {}).get(partition.partition)
        if got is None or epoch < got:
            refused[partition] = error.code
    return refused
