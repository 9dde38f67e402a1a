"""One record batch to one partition: written once the answer says so."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.client.errors import raise_for
from millstream.errors import DuplicateSequenceNumber, KafkaError
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.messages import ProduceRequest, ProduceResponse
from millstream.protocol.types import Buffer

ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0
LAST_VERSION_WITH_NAMES = 12
UNKNOWN_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Produced:
    """Where a batch was written; the offset is -1 with acks=0 and for one that was there already."""

    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1


async def produce(
    cluster: Cluster,
    partition: TopicPartition,
    batch: Buffer,
    deadline: Deadline,
    *,
    acks: int = ACKS_ALL,
    transactional_id: str | None = None,
) -> Produced:
    """Write a batch, trying again after errors that pass, until the deadline.

    Trying again is safe only for a batch with a producer id and sequence: without them a batch whose
    answer was lost is written twice.
    """

    async def attempt() -> Produced:
        leader = await cluster.leader(partition.topic, partition.partition, deadline)
        topic_id = cluster.metadata.topics[partition.topic].id
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=cluster.try_timeout_ms(deadline),
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=partition.topic,
                    topic_id=topic_id,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)
                    ],
                )
            ],
        )
        max_version = LAST_VERSION_WITH_NAMES if topic_id == NO_UUID else None
        connection = await cluster.connection(leader.id, deadline)
        if acks == ACKS_NONE:
            await connection.send_unanswered(request, request.timeout_ms, max_version=max_version)
            return Produced(UNKNOWN_OFFSET)
        response = await connection.request(
            request, ProduceResponse, request.timeout_ms, max_version=max_version
        )
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == DuplicateSequenceNumber.code:
            return Produced(UNKNOWN_OFFSET)
        raise_for(answer.error_code, reason_of(answer), f"partition {partition}")
        return Produced(answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)

    async def attempt_with_fresh_leader() -> Produced:
        try:
            return await attempt()
        except KafkaError as error:
            if error.retriable:
                cluster.forget(partition.topic)
            raise

    return await cluster.retrying(attempt_with_fresh_leader, deadline)


def reason_of(answer: ProduceResponse.PartitionProduceResponse) -> str | None:
    """The error's message, and what was wrong with the first bad record (KIP-467)."""
    details = [
        f"record {error.batch_index}: {error.batch_index_error_message}"
        for error in answer.record_errors
        if error.batch_index_error_message
    ]
    return "; ".join(part for part in [answer.error_message, *details[:1]] if part) or None
