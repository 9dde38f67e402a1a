"""One Fetch to one broker: the bytes of record batches, partition by partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.client.cluster import Cluster
from millstream.client.errors import raise_for
from millstream.client.fetch_session import LAST_VERSION_WITH_NAMES, FetchLimits
from millstream.client.offsets import READ_UNCOMMITTED
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.messages import FetchRequest, FetchResponse
from millstream.protocol.types import Buffer


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a Fetch brought from one partition, or the error that it met there.

    `aborted` are the (producer id, first offset) of aborted transactions among the records.
    """

    partition: TopicPartition
    error: KafkaError | None
    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]


async def fetch(
    cluster: Cluster,
    leader: int,
    positions: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    limits: FetchLimits,
    isolation_level: int = READ_UNCOMMITTED,
) -> list[Fetched]:
    """Ask `leader` once for records of these partitions from these offsets on."""
    topics: dict[str, list[FetchRequest.FetchPartition]] = defaultdict(list)
    for partition, offset in positions.items():
        known = cluster.metadata.topics[partition.topic].partitions[partition.partition]
        topics[partition.topic].append(
            FetchRequest.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=known.leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=limits.partition_max_bytes,
            )
        )
    ids = {name: cluster.metadata.topics[name].id for name in topics}
    request = FetchRequest(
        max_wait_ms=min(limits.max_wait_ms, deadline.remaining_ms),
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=isolation_level,
        topics=[
            FetchRequest.FetchTopic(topic=name, topic_id=ids[name], partitions=parts)
            for name, parts in topics.items()
        ],
    )
    response = await cluster.request(
        leader,
        request,
        FetchResponse,
        deadline,
        max_version=LAST_VERSION_WITH_NAMES if NO_UUID in ids.values() else None,
    )
    raise_for(response.error_code, None, "fetch")
    names = {topic_id: name for name, topic_id in ids.items()}
    return [
        _fetched(TopicPartition(topic.topic or names.get(topic.topic_id, ""), part.partition_index), part)
        for topic in response.responses
        for part in topic.partitions
    ]


def _fetched(partition: TopicPartition, part: FetchResponse.PartitionData) -> Fetched:
    error = None
    try:
        raise_for(part.error_code, None, f"partition {partition}")
    except KafkaError as raised:
        error = raised
    return Fetched(
        partition,
        error,
        part.records or b"",
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()],
    )
