"""Offsets of partitions: the earliest, the latest, the one at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS, Cluster
from millstream.client.deadline import Deadline
from millstream.client.errors import raise_for
from millstream.errors import KafkaError, RequestTimedOut
from millstream.model import TopicPartition
from millstream.protocol.messages import ListOffsetsRequest, ListOffsetsResponse

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Found:
    """An offset and the timestamp of its record. Both are -1 where no record is that young."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


async def list_offsets(
    cluster: Cluster,
    times_ms: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, Found]:
    """For each partition the first offset at or after a time in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

    One request goes to each leader; partitions whose leader has moved are asked again.
    """
    found: dict[TopicPartition, Found] = {}

    async def attempt() -> None:
        missing = [partition for partition in times_ms if partition not in found]
        by_leader = await partitions_by_leader(cluster, missing, deadline)
        errors: list[KafkaError] = []

        async def ask(leader: int, partitions: list[TopicPartition]) -> None:
            request = _request(cluster, {p: times_ms[p] for p in partitions}, isolation_level)
            request.timeout_ms = deadline.remaining_ms
            response = await cluster.request(leader, request, ListOffsetsResponse, deadline)
            for topic in response.topics:
                for part in topic.partitions:
                    partition = TopicPartition(topic.name, part.partition_index)
                    try:
                        raise_for(part.error_code, None, f"partition {partition}")
                    except KafkaError as error:
                        cluster.forget(topic.name)
                        errors.append(error)
                        continue
                    found[partition] = Found(part.offset, part.timestamp, part.leader_epoch)

        results = await asyncio.gather(
            *(ask(leader, parts) for leader, parts in by_leader.items()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, KafkaError):
                errors.append(result)
                for partition in missing:
                    cluster.forget(partition.topic)
            elif isinstance(result, BaseException):
                raise result
        errors.sort(key=lambda error: error.retriable)
        if errors:
            raise errors[0]
        if len(found) < len(times_ms):
            raise RequestTimedOut("the broker left out partitions that it was asked for")

    await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)
    return {partition: found[partition] for partition in times_ms}


def _request(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for partition, time_ms in times_ms.items():
        known = cluster.metadata.topics[partition.topic].partitions[partition.partition]
        by_topic[partition.topic].append(
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=known.leader_epoch,
                timestamp=time_ms,
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
    )


async def partitions_by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline
) -> dict[int, list[TopicPartition]]:
    """Partitions grouped by the broker that leads them."""
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        leader = await cluster.leader(partition.topic, partition.partition, deadline)
        by_leader[leader.id].append(partition)
    return by_leader
