"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and WriteTxnMarkers: a transaction's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.router import Context, handles
from millstream.broker.transaction_admission import ASK_TIMEOUT_MS
from millstream.broker.transaction_markers import Marker, write_marker
from millstream.coordinator.entry_format import MAX_TEXT_BYTES, fits
from millstream.coordinator.shard import Producer, Result
from millstream.coordinator.transactions.shard import ProducerIdNeeded, TransactionShard
from millstream.coordinator.transactions.transaction import BUMPING, OLD
from millstream.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRequest,
    KafkaError,
    OperationNotAttempted,
    ProducerFenced,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from millstream.model import TopicPartition
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

R = TypeVar("R")
T = TypeVar("T")

PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Topics = list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]

BROKERS_SINCE = 4
"""From this version on AddPartitionsToTxn is spoken between brokers."""
FENCED_SINCE = 2
"""Before this version clients know no PRODUCER_FENCED."""
END_BUMPS_SINCE = 5
ANSWER_SECONDS = 0.8 * ASK_TIMEOUT_MS / 1000
"""How long a broker that asks waits until what it asked for is committed; then it asks again. An answer that
does not come in time costs it the connection, and all answers that stand behind it."""
MARKERS_SECONDS = 10.0
"""How long a broker that asks for markers waits until they are committed; then it asks again."""


def transaction_index(ctx: Context, transactional_id: str) -> int:
    """The partition that looks after a transactional id."""
    if not transactional_id:
        raise InvalidRequest("a transactional id must not be empty")
    if not fits(transactional_id):
        raise InvalidRequest(f"a transactional id has at most {MAX_TEXT_BYTES} bytes")
    return ctx.broker.coordinators.partition_of(TRANSACTIONS_TOPIC, transactional_id)


def with_producer_id(
    ctx: Context, index: int, work: Callable[[TransactionShard, int | None], Result[T]]
) -> T | Awaitable[T]:
    """Do an operation that may need a new producer id."""
    runtime = ctx.broker.transactions
    try:
        return runtime.write_now(index, lambda shard: work(shard, None))
    except ProducerIdNeeded:
        return _with_new_id(ctx, index, work)


async def _with_new_id(
    ctx: Context, index: int, work: Callable[[TransactionShard, int | None], Result[T]]
) -> T:
    new_producer_id = await ctx.broker.producer_ids.next()
    return await ctx.broker.transactions.write(index, lambda shard: work(shard, new_producer_id))


def answer(
    ask: Callable[[], T | Awaitable[T]], respond: Callable[[T], R], refuse: Callable[[KafkaError], R]
) -> R | Awaitable[R]:
    """A response to what `ask` finds or refuses: at once, unless there is something to wait for."""
    try:
        outcome = ask()
    except KafkaError as error:
        return refuse(error)
    if isinstance(outcome, Awaitable):
        return _answer_later(outcome, respond, refuse)
    return respond(outcome)


async def _answer_later(
    outcome: Awaitable[T], respond: Callable[[T], R], refuse: Callable[[KafkaError], R]
) -> R:
    try:
        return respond(await outcome)
    except KafkaError as error:
        return refuse(error)


async def _then(outcome: Awaitable[T], respond: Callable[[T], R]) -> R:
    return respond(await outcome)


def code_for(error: KafkaError, version: int, fenced_since: int = FENCED_SINCE) -> int:
    """The code of an error, in words that the client's version knows."""
    if isinstance(error, ProducerFenced) and version < fenced_since:
        return InvalidProducerEpoch.code
    return error.code


@handles(AddPartitionsToTxnRequest, is_alone=False)
def add_partitions_to_txn(
    ctx: Context, req: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    """v2 PRODUCER_FENCED; v3 flexible; v4 many transactions, and a mere verification, between brokers
    (KIP-890); v5 TRANSACTION_ABORTABLE.

    Brokers ask for many producers over one connection: none waits until another's partitions are
    committed.
    """
    if ctx.version >= BROKERS_SINCE:
        return _add_for_brokers(ctx, req)
    producer = Producer(req.v3_and_below_producer_id, req.v3_and_below_producer_epoch)
    topics = req.v3_and_below_topics

    def respond(results: list[TopicResult]) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    added = _add(ctx, req.v3_and_below_transactional_id, producer, topics, OLD)
    return respond(added) if isinstance(added, list) else _then(added, respond)


async def _add_for_brokers(ctx: Context, req: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    response, pauses = AddPartitionsToTxnResponse(results_by_transaction=[]), Pauses()
    deadline = asyncio.get_running_loop().time() + ANSWER_SECONDS
    for each in req.transactions:
        if pauses.is_due:
            await pauses.take()
        producer = Producer(each.producer_id, each.producer_epoch)
        try:
            async with asyncio.timeout_at(deadline):
                if each.verify_only:
                    results = await _verify(ctx, each.transactional_id, producer, each.topics)
                else:
                    added = _add(ctx, each.transactional_id, producer, each.topics, BUMPING)
                    results = added if isinstance(added, list) else await added
        except TimeoutError:
            results = _results(each.topics, lambda *_: CoordinatorNotAvailable.code)
        response.results_by_transaction.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id, topic_results=results
            )
        )
    return response


def _add(
    ctx: Context, transactional_id: str, producer: Producer, topics: Topics, version: int
) -> list[TopicResult] | Awaitable[list[TopicResult]]:
    """Add all partitions, or none if one does not exist; the results of each."""
    known = ctx.broker.metadata.topics
    counts = {topic.name: len(known[topic.name].partitions) if topic.name in known else 0 for topic in topics}
    # One that is named again and again is added once; only of those that exist are there names.
    wanted = [(topic.name, set(topic.partitions)) for topic in topics]
    if any(min(indexes) < 0 or max(indexes) >= counts[name] for name, indexes in wanted if indexes):
        return _results(
            topics,
            lambda topic, index: (
                OperationNotAttempted.code if 0 <= index < counts[topic] else UnknownTopicOrPartition.code
            ),
        )
    names = [TopicPartition(name, index) for name, indexes in wanted for index in indexes]
    return answer(
        lambda: ctx.broker.transactions.write_now(
            transaction_index(ctx, transactional_id),
            lambda shard: shard.add_partitions(transactional_id, producer, names, version),
        ),
        lambda _: _results(topics, lambda *_: 0),
        lambda error: _results(topics, lambda *_: code_for(error, ctx.version)),
    )


async def _verify(
    ctx: Context, transactional_id: str, producer: Producer, topics: Topics
) -> list[TopicResult]:
    def look(shard: TransactionShard) -> list[TopicResult]:
        def verified(topic: str, index: int) -> int:
            try:
                shard.verify_partition(transactional_id, producer, TopicPartition(topic, index))
            except KafkaError as error:
                return error.code
            return 0

        return _results(topics, verified)

    try:
        return await ctx.broker.transactions.read(transaction_index(ctx, transactional_id), look)
    except KafkaError as failure:
        code = failure.code
        return _results(topics, lambda *_: code)


def _results(topics: Topics, code_of: Callable[[str, int], int]) -> list[TopicResult]:
    return [
        TopicResult(
            name=topic.name,
            results_by_partition=[
                PartitionResult(partition_index=index, partition_error_code=code_of(topic.name, index))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


@handles(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(ctx: Context, req: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """v2 PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE. The group's offsets join the transaction."""
    try:
        await ctx.broker.coordinators.topic(GROUPS_TOPIC)
        group = TopicPartition(GROUPS_TOPIC, ctx.broker.coordinators.partition_of(GROUPS_TOPIC, req.group_id))
        producer = Producer(req.producer_id, req.producer_epoch)
        await ctx.broker.transactions.write(
            transaction_index(ctx, req.transactional_id),
            lambda shard: shard.add_partitions(req.transactional_id, producer, (group,), OLD),
        )
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=code_for(error, ctx.version))
    return AddOffsetsToTxnResponse()


@handles(EndTxnRequest)
def end_txn(ctx: Context, req: EndTxnRequest) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    """v2 PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE; v5 a new epoch with each end (KIP-890).

    Answered when the decision is committed; the partitions learn of it right after.
    """
    producer = Producer(req.producer_id, req.producer_epoch)
    version = BUMPING if ctx.version >= END_BUMPS_SINCE else OLD
    return answer(
        lambda: with_producer_id(
            ctx,
            transaction_index(ctx, req.transactional_id),
            lambda shard, new_producer_id: shard.end(
                req.transactional_id, producer, req.committed, version, new_producer_id
            ),
        ),
        lambda following: EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.epoch),
        lambda error: EndTxnResponse(error_code=code_for(error, ctx.version)),
    )


@handles(WriteTxnMarkersRequest, is_alone=False)
async def write_txn_markers(ctx: Context, req: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """v1 flexible; v2 the version of the transaction (KIP-1228). Coordinators send it, and admins who
    abort what nobody else will.

    A coordinator sends those of many transactions over one connection: a partition that cannot commit
    now does not keep the others from learning of their ends. A partition that is named twice gets one marker.
    """
    response, pauses = WriteTxnMarkersResponse(markers=[]), Pauses()
    deadline = asyncio.get_running_loop().time() + MARKERS_SECONDS
    for each in req.markers:
        if pauses.is_due:
            await pauses.take()
        producer = Producer(each.producer_id, each.producer_epoch)
        version = each.transaction_version if ctx.version >= 2 else OLD
        marker = Marker(producer, each.transaction_result, each.coordinator_epoch, version)
        results: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = []
        waiting: list[tuple[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult, Awaitable[None]]] = []
        places: dict[str, dict[int, None]] = {}
        for topic in each.topics:
            places.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        for name, indexes in places.items():
            result = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=name, partitions=[])
            results.append(result)
            for index in indexes:
                if pauses.is_due:
                    await pauses.take()
                answer = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(partition_index=index)
                result.partitions.append(answer)
                try:
                    committed = write_marker(ctx.broker, TopicPartition(name, index), marker)
                except KafkaError as error:
                    answer.error_code = error.code
                    continue
                if committed is not None:
                    waiting.append((answer, committed))
        for answer, committed in waiting:
            try:
                async with asyncio.timeout_at(deadline):
                    await committed
            except TimeoutError:
                answer.error_code = RequestTimedOut.code
            except KafkaError as error:
                answer.error_code = error.code
        response.markers.append(
            WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=each.producer_id, topics=results)
        )
    return response
