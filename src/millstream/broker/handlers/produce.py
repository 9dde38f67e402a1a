"""Produce: records into partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

from millstream.broker.new_leaders import WRONG_BROKER, NewLeaders
from millstream.broker.router import Context, handles
from millstream.cluster.partition import Partition
from millstream.cluster.transactional_appends import ADDS_SINCE
from millstream.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    KafkaError,
    RequestTimedOut,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import ProduceRequest, ProduceResponse
from millstream.protocol.types import Records
from millstream.storage.log import Appended

PartitionAnswer = ProduceResponse.PartitionProduceResponse

LEADERS_SINCE = 10
"""From this version on an answer says who leads instead of this broker."""

IDS_SINCE = 13
"""From this version on topics are named by their ids."""

_Waiting = tuple[PartitionAnswer, Partition, asyncio.Future[Appended] | asyncio.Future[None]]


@handles(ProduceRequest, is_alone=False)
def produce(ctx: Context, req: ProduceRequest) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """v7 zstd (KIP-110); v8 errors by record (KIP-467); v9 flexible; v10 the leader on errors
    (KIP-951); v11 TRANSACTION_ABORTABLE; v12 partitions join the transaction by themselves (KIP-890); v13
    topics by id (KIP-516).

    Every batch is appended before this returns, unless its check needs a thread, or its transaction's
    coordinator has to be waited for.
    """
    if req.transactional_id is None or ctx.version < ADDS_SINCE:
        return _append_all(ctx, req)
    with ctx.broker.transaction_admission.expecting(_places(ctx, req)):
        return _append_all(ctx, req)


def _places(ctx: Context, req: ProduceRequest) -> Iterator[tuple[TopicPartition, Records | None]]:
    """The batches of a request, by partition; those of unknown topics are left out."""
    for topic in req.topic_data:
        try:
            name = _name(ctx, topic)
        except KafkaError:
            continue
        for data in topic.partition_data:
            yield TopicPartition(name, data.index), data.records


def _name(ctx: Context, topic: ProduceRequest.TopicProduceData) -> str:
    return ctx.broker.metadata.topic_by_id(topic.topic_id).name if ctx.version >= IDS_SINCE else topic.name


def _append_all(
    ctx: Context, req: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    acks = req.acks
    topics: list[ProduceResponse.TopicProduceResponse] = []
    waiting: list[_Waiting] = []
    has_error = False
    for topic in req.topic_data:
        answers: list[PartitionAnswer] = []
        for data in topic.partition_data:
            answer = PartitionAnswer(index=data.index, base_offset=-1)
            answers.append(answer)
            try:
                if acks not in (-1, 0, 1):
                    raise InvalidRequiredAcks
                if data.records is None:
                    raise InvalidRecord("the request holds no records for this partition")
                name = topic.name if ctx.version < IDS_SINCE else _name(ctx, topic)
                partition = ctx.broker.replicas.leader(name, data.index)
                appended = partition.append(data.records, acks, ctx.version, req.transactional_id)
                if isinstance(appended, Appended):
                    _fill(answer, partition, appended)
                    acknowledged = partition.when_acknowledged(acks, appended) if acks else None
                    if acknowledged is not None:
                        waiting.append((answer, partition, acknowledged))
                else:
                    waiting.append((answer, partition, appended))
            except KafkaError as error:
                has_error = True
                _refuse(ctx, answer, error)
                if error.retriable and data.records is not None:
                    _expect_again(ctx, topic, data.index, data.records, error)
        topics.append(
            ProduceResponse.TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=answers
            )
        )
    response = ProduceResponse(responses=topics)
    if has_error and ctx.version >= LEADERS_SINCE:
        _tell_leaders(ctx, response)
    if waiting:
        return _when_acknowledged(ctx, response, waiting, acks, req.timeout_ms)
    if acks == 0:
        if has_error:
            # Nobody reads an answer: a closed connection is how the client learns of it.
            ctx.connection.close()
        return None
    return response


async def _when_acknowledged(
    ctx: Context, response: ProduceResponse, waiting: list[_Waiting], acks: int, timeout_ms: int
) -> ProduceResponse | None:
    """Answer when every batch is as safe as was asked for, or the time-out has run out."""
    has_error = False
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
    for answer, partition, future in waiting:
        try:
            async with asyncio.timeout_at(deadline):
                appended = await future
                if appended is not None:
                    _fill(answer, partition, appended)
                    acknowledged = partition.when_acknowledged(acks, appended) if acks else None
                    if acknowledged is not None:
                        await acknowledged
        except TimeoutError:
            has_error = True
            _refuse(ctx, answer, RequestTimedOut("the records were not acknowledged in time"))
        except KafkaError as error:
            has_error = True
            _refuse(ctx, answer, error)
    if acks == 0:
        if has_error:
            ctx.connection.close()
        return None
    if has_error and ctx.version >= LEADERS_SINCE:
        _tell_leaders(ctx, response)
    return response


def _expect_again(
    ctx: Context,
    topic: ProduceRequest.TopicProduceData,
    index: int,
    records: Records,
    error: KafkaError,
) -> None:
    """A batch comes again, perhaps to this broker, which may lead by then, or have enough replicas."""
    named = topic.topic_id if ctx.version >= IDS_SINCE else topic.name
    ctx.broker.replicas.not_written(named, index, records, error)


def _tell_leaders(ctx: Context, response: ProduceResponse) -> None:
    leaders = NewLeaders(ctx)
    for topic in response.responses:
        name = topic.name
        if ctx.version >= IDS_SINCE:
            known = ctx.broker.metadata.find_by_id(topic.topic_id)
            name = "" if known is None else known.name
        for answer in topic.partition_responses:
            found = leaders.find(name, answer.index) if answer.error_code in WRONG_BROKER else None
            if found is not None:
                answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
                    leader_id=found.leader_id, leader_epoch=found.leader_epoch
                )
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in leaders.endpoints()
    ]


def _fill(answer: PartitionAnswer, partition: Partition, appended: Appended) -> None:
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = partition.log.start_offset


def _refuse(ctx: Context, answer: PartitionAnswer, error: KafkaError) -> None:
    answer.base_offset = -1
    answer.error_code = error.code
    answer.error_message = error.message
    answer.record_errors = [
        ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
        for index, message in getattr(error, "record_errors", ())
    ]
    ctx.broker.metrics.produce_errors.labels(type(error).__name__).value += 1
