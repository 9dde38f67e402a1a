"""InitProducerId and DescribeProducers: who writes, and how far they are."""

from __future__ import annotations

from millstream.broker.router import Context, handles
from millstream.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError
from millstream.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)


@handles(InitProducerIdRequest)
async def init_producer_id(ctx: Context, req: InitProducerIdRequest) -> InitProducerIdResponse:
    """v2 flexible; v3 the producer's former id and epoch (KIP-360); v4 fenced by its own error.

    An idempotent producer gets a fresh id each time: its sequences start from 0 under it.
    """
    if req.transactional_id is not None:
        if not req.transactional_id:
            raise InvalidRequest("a transactional id must not be empty")
        raise CoordinatorNotAvailable("this broker does not coordinate transactions yet")
    return InitProducerIdResponse(
        error_code=0, producer_id=await ctx.broker.producer_ids.next(), producer_epoch=0
    )


@handles(DescribeProducersRequest)
def describe_producers(ctx: Context, req: DescribeProducersRequest) -> DescribeProducersResponse:
    """v0 (KIP-664): the producers whose state a partition remembers."""
    response = DescribeProducersResponse(topics=[])
    for topic in req.topics:
        answer = DescribeProducersResponse.TopicResponse(name=topic.name, partitions=[])
        response.topics.append(answer)
        for index in topic.partition_indexes:
            result = DescribeProducersResponse.PartitionResponse(
                partition_index=index, error_code=0, active_producers=[]
            )
            answer.partitions.append(result)
            try:
                partition = ctx.broker.replicas.leader(topic.name, index)
            except KafkaError as error:
                result.error_code = error.code
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
