"""InitProducerId and DescribeProducers: who writes, and how far they are."""

from __future__ import annotations

from collections.abc import Awaitable

from millstream.broker.handlers.transactions import code_for, transaction_index, with_producer_id
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.coordinator.shard import Producer
from millstream.errors import ConcurrentTransactions, InvalidRequest, KafkaError
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

MAX_MESSAGES = 1000
"""In how many partitions an answer says in words what is wrong; there is always a code."""
FENCED_SINCE = 4
"""Before this version clients know no PRODUCER_FENCED."""


@handles(InitProducerIdRequest)
async def init_producer_id(ctx: Context, req: InitProducerIdRequest) -> InitProducerIdResponse:
    """v2 flexible; v3 the producer's former id and epoch (KIP-360); v4 PRODUCER_FENCED; v5 KIP-890.

    An idempotent producer gets a fresh id each time: its sequences start from 0 under it. One with a
    transactional id gets an epoch that fences those before it; if one of them left a transaction open,
    that is aborted first, and the producer has to ask again.
    """
    if req.transactional_id is None:
        return InitProducerIdResponse(
            error_code=0, producer_id=await ctx.broker.producer_ids.next(), producer_epoch=0
        )
    transactional_id = req.transactional_id
    try:
        expected = _expected(req)
        answer = with_producer_id(
            ctx,
            transaction_index(ctx, transactional_id),
            lambda shard, new_producer_id: shard.init_producer_id(
                transactional_id, req.transaction_timeout_ms, expected, new_producer_id
            ),
        )
        producer = await answer if isinstance(answer, Awaitable) else answer
        if producer is None:
            raise ConcurrentTransactions
    except KafkaError as error:
        return InitProducerIdResponse(
            error_code=code_for(error, ctx.version, FENCED_SINCE), producer_epoch=-1
        )
    return InitProducerIdResponse(
        error_code=0, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


def _expected(req: InitProducerIdRequest) -> Producer | None:
    """Who the producer believes to be; None if it is new."""
    if (req.producer_id < 0) != (req.producer_epoch < 0):
        raise InvalidRequest("a producer's id and epoch are given together, or neither is")
    return None if req.producer_id < 0 else Producer(req.producer_id, req.producer_epoch)


@handles(DescribeProducersRequest, large_bytes=LONG_LIST_BYTES)
async def describe_producers(ctx: Context, req: DescribeProducersRequest) -> DescribeProducersResponse:
    """v0 (KIP-664): the producers whose state a partition remembers, also one that is only copied here.

    One that is named twice is told once.
    """
    response, pauses = DescribeProducersResponse(topics=[]), Pauses()
    asked: dict[str, dict[int, None]] = {}
    failed = 0
    for topic in req.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    for name, indexes in asked.items():
        answer = DescribeProducersResponse.TopicResponse(name=name, partitions=[])
        response.topics.append(answer)
        for index in indexes:
            if pauses.is_due:
                await pauses.take()
            result = DescribeProducersResponse.PartitionResponse(
                partition_index=index, error_code=0, active_producers=[]
            )
            answer.partitions.append(result)
            try:
                partition = ctx.broker.replicas.replica(name, index)
            except KafkaError as error:
                result.error_code = error.code
                failed += 1
                if failed <= MAX_MESSAGES:
                    result.error_message = error.message
                continue
            result.active_producers = [
                DescribeProducersResponse.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.transaction_start,
                )
                for producer in partition.log.active_producers()
            ]
    return response
