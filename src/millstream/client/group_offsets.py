"""The offsets that groups have committed: read, set, removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.client.cluster import Cluster
from millstream.client.coordinators import with_coordinator
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

ONE_GROUP_UNTIL = 7
NAMES_UNTIL = 9


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's position in a partition, and the note it left there."""

    offset: int
    leader_epoch: int
    metadata: str


async def fetch_committed(
    cluster: Cluster, group: str, deadline: Deadline, *, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Committed]:
    """Where a group is, in some partitions or in all; those without a commit are left out."""
    asked = None if partitions is None else _by_topic(partitions)
    request = OffsetFetchRequest(
        group_id=group,
        topics=None
        if asked is None
        else [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in asked.items()
        ],
        require_stable=True,
    )

    async def attempt(node_id: int) -> dict[TopicPartition, Committed]:
        response = await cluster.request(
            node_id, request, OffsetFetchResponse, deadline, max_version=ONE_GROUP_UNTIL
        )
        raise_for(response.error_code, None, f"the offsets of group {group}")
        found = {}
        for topic in response.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                raise_for(part.error_code, None, f"group {group} in {partition}")
                if part.committed_offset >= 0:
                    found[partition] = Committed(
                        part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                    )
        return found

    return await with_coordinator(cluster, group, attempt, deadline)


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> None:
    """Set the offsets of a group that has no members; UnknownMemberId if it has."""
    by_topic: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
    for partition, offset in offsets.items():
        by_topic[partition.topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition.partition, committed_offset=offset
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
    )

    async def attempt(node_id: int) -> None:
        response = await cluster.request(
            node_id, request, OffsetCommitResponse, deadline, max_version=NAMES_UNTIL
        )
        for topic in response.topics:
            for part in topic.partitions:
                where = TopicPartition(topic.name, part.partition_index)
                raise_for(part.error_code, None, f"group {group} in {where}")

    await with_coordinator(cluster, group, attempt, deadline)


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], deadline: Deadline
) -> None:
    """Forget where a group was in partitions that none of its members is subscribed to."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)
                    for index in indexes
                ],
            )
            for name, indexes in _by_topic(partitions).items()
        ],
    )

    async def attempt(node_id: int) -> None:
        response = await cluster.request(node_id, request, OffsetDeleteResponse, deadline)
        raise_for(response.error_code, None, f"group {group}")
        for topic in response.topics:
            for part in topic.partitions:
                where = TopicPartition(topic.name, part.partition_index)
                raise_for(part.error_code, None, f"group {group} in {where}")

    await with_coordinator(cluster, group, attempt, deadline)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    return by_topic
