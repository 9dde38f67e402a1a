"""Batches written and read as they are, without the bookkeeping of the client under test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.errors import raise_for
from millstream.client.offsets import READ_UNCOMMITTED
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.batch import Codec, encode_batch
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of, readable_batches
from millstream.protocol.header import GOOD, BatchHeader
from millstream.protocol.kernel import append_records, scan_batches
from millstream.protocol.messages import (
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from millstream.protocol.record import Record
from millstream.protocol.types import Buffer

LAST_VERSION_WITH_NAMES = 12
T = TypeVar("T")


class RawBatch(NamedTuple):
    """A batch as it stands in the log."""

    partition: TopicPartition
    header: BatchHeader
    records: list[Record]


async def _at_leader(
    cluster: Cluster, partition: TopicPartition, ask: Callable[[int], Awaitable[T]], deadline: Deadline
) -> T:
    """Ask the leader, and again whoever leads after errors that pass."""

    async def attempt() -> T:
        leader = await cluster.leader(partition.topic, partition.partition, deadline)
        try:
            return await ask(leader.id)
        except KafkaError as error:
            if error.retriable:
                cluster.forget(partition.topic)
            raise

    return await cluster.retrying(attempt, deadline)


async def produce(cluster: Cluster, partition: TopicPartition, batch: Buffer, deadline: Deadline) -> int:
    """Write one batch as it is; its base offset. Tried again, it is written twice unless it is numbered."""

    async def ask(leader: int) -> int:
        part = ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=cluster.try_timeout_ms(deadline),
            topic_data=[ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[part])],
        )
        response = await cluster.request(
            leader, request, ProduceResponse, deadline, max_version=LAST_VERSION_WITH_NAMES
        )
        answer = response.responses[0].partition_responses[0]
        raise_for(answer.error_code, answer.error_message, f"partition {partition}")
        return answer.base_offset

    return await _at_leader(cluster, partition, ask, deadline)


async def write(
    cluster: Cluster,
    partition: TopicPartition,
    records: Sequence[Record],
    deadline: Deadline,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Write records as one numbered batch, once; the batch."""

    async def identify() -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        response = await cluster.request(None, request, InitProducerIdResponse, deadline)
        raise_for(response.error_code, None, "a producer id")
        return response

    identity = await cluster.retrying(identify, deadline)
    batch = encode_batch(
        records,
        codec=codec,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
    )
    await produce(cluster, partition, batch, deadline)
    return bytes(batch)


async def read(
    cluster: Cluster,
    partition: TopicPartition,
    goal: int,
    deadline: Deadline,
    isolation_level: int = READ_UNCOMMITTED,
) -> list[RawBatch]:
    """The batches of a partition from its beginning up to an offset."""
    found: list[RawBatch] = []
    position = 0

    async def ask(leader: int) -> FetchResponse.PartitionData:
        part = FetchRequest.FetchPartition(
            partition=partition.partition, fetch_offset=position, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 24,
            isolation_level=isolation_level,
            topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[part])],
        )
        response = await cluster.request(
            leader, request, FetchResponse, deadline, max_version=LAST_VERSION_WITH_NAMES
        )
        raise_for(response.error_code, None, "fetch")
        data = response.responses[0].partitions[0]
        raise_for(data.error_code, None, f"partition {partition}")
        return data

    while position < goal:
        assert not deadline.has_passed, f"{partition} is at {position} of {goal}"
        data = await _at_leader(cluster, partition, ask, deadline)
        view = memoryview(data.records or b"")
        scan = scan_batches(view, 0, len(view), True)
        if not scan.batches:
            continue
        aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
        seen = aborted if isolation_level != READ_UNCOMMITTED else None
        for header, at in readable_batches(view[: scan.position], position, seen, False, False):
            payload, start = payload_of(view, header, at, MAX_DECOMPRESSED_BYTES)
            batch = RawBatch(partition, header, [])
            assert append_records(batch.records, payload, header, position, start) == GOOD
            found.append(batch)
        position = max(position, scan.last_offset + 1)
    return found
