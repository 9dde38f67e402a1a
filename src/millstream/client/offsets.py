"""Offsets of partitions: the earliest, the latest, the one at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS, Cluster
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.errors import KafkaError, LeaderNotAvailable, RequestTimedOut, UnknownTopicOrPartition
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
        missing = {partition: time_ms for partition, time_ms in times_ms.items() if partition not in found}
        errors = await ask_leaders(cluster, missing, deadline, found.update, isolation_level=isolation_level)
        errors.sort(key=lambda error: error.retriable)
        if errors:
            raise errors[0]
        if len(found) < len(times_ms):
            raise RequestTimedOut("the broker left out partitions that it was asked for")

    await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)
    return {partition: found[partition] for partition in times_ms}


async def ask_leaders(
    cluster: Cluster,
    times_ms: Mapping[TopicPartition, int],
    deadline: Deadline,
    take: Callable[[dict[TopicPartition, Found]], object],
    *,
    isolation_level: int,
) -> list[KafkaError]:
    """Ask for offsets once. `take` gets what a leader answers as soon as it does; the errors of the others.

    A partition that cannot be asked for, or whose leader is silent, holds up none of the others.
    """
    by_leader, errors = await _led(cluster, times_ms, deadline)

    async def ask(leader: int, parts: Iterable[_Asked]) -> None:
        request = _request(parts, isolation_level)
        try:
            answer = await _ask(cluster, leader, request, deadline)
        except KafkaError as error:
            errors.append(error)
            for asked in request.topics:
                cluster.forget(asked.name)
            return
        found: dict[TopicPartition, Found] = {}
        for partition, place in answer.items():
            if isinstance(place, KafkaError):
                cluster.forget(partition.topic)
                errors.append(place)
            else:
                found[partition] = place
        take(found)

    await asyncio.gather(*(ask(leader, parts) for leader, parts in by_leader.items()))
    return errors


async def ask_leader(
    cluster: Cluster, leader: int, times_ms: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, Found | KafkaError]:
    """Ask one broker once for the offsets of partitions that it leads."""
    parts = [
        (
            partition,
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.partition, current_leader_epoch=-1, timestamp=time_ms
            ),
        )
        for partition, time_ms in times_ms.items()
    ]
    return await _ask(cluster, leader, _request(parts, READ_UNCOMMITTED), deadline)


async def _ask(
    cluster: Cluster, leader: int, request: ListOffsetsRequest, deadline: Deadline
) -> dict[TopicPartition, Found | KafkaError]:
    request.timeout_ms = deadline.remaining_ms
    response = await cluster.request(leader, request, ListOffsetsResponse, deadline)
    answer: dict[TopicPartition, Found | KafkaError] = {}
    for topic in response.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            try:
                raise_for(part.error_code, None, f"partition {partition}")
            except KafkaError as error:
                answer[partition] = error
            else:
                answer[partition] = Found(part.offset, part.timestamp, part.leader_epoch)
    return answer


_Asked = tuple[TopicPartition, ListOffsetsRequest.ListOffsetsPartition]


async def _led(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int], deadline: Deadline
) -> tuple[dict[int, list[_Asked]], list[KafkaError]]:
    """What to ask of each leader; the errors of partitions that have none."""
    by_leader: dict[int, list[_Asked]] = defaultdict(list)
    errors: list[KafkaError] = []
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition in times_ms:
        by_topic[partition.topic].append(partition)
    for name, partitions in by_topic.items():
        try:
            topic = await cluster.topic(name, deadline)
        except KafkaError as error:
            errors.append(error)
            continue
        for partition in partitions:
            try:
                known = topic.partition(partition.partition)
                if known.leader not in cluster.metadata.nodes:
                    raise LeaderNotAvailable(f"broker {known.leader}, which leads {partition}, is away")
            except (LeaderNotAvailable, UnknownTopicOrPartition) as error:
                cluster.forget(name)
                errors.append(error)
                continue
            wanted = ListOffsetsRequest.ListOffsetsPartition(
                partition_index=known.index,
                current_leader_epoch=known.leader_epoch,
                timestamp=times_ms[partition],
            )
            by_leader[known.leader].append((partition, wanted))
    return by_leader, errors


def _request(parts: Iterable[_Asked], isolation_level: int) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for partition, wanted in parts:
        by_topic[partition.topic].append(wanted)
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
