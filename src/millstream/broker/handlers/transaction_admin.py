"""DescribeTransactions and ListTransactions: what admins ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.broker.group_topics import match_topics
from millstream.broker.handlers.transactions import transaction_index
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.coordinator.transactions.shard import TransactionShard
from millstream.coordinator.transactions.transaction import LABELS, NO_EPOCH, NO_PRODUCER_ID, Transaction
from millstream.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    TransactionalIdNotFound,
)
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

Described = DescribeTransactionsResponse.TransactionState
Listed = ListTransactionsResponse.TransactionState


@handles(DescribeTransactionsRequest, large_bytes=LONG_LIST_BYTES)
async def describe_transactions(
    ctx: Context, req: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """v0 (KIP-664). A transactional id that is named twice is described once."""
    response, pauses = DescribeTransactionsResponse(transaction_states=[]), Pauses()
    for transactional_id in dict.fromkeys(req.transactional_ids):
        response.transaction_states.append(await _describe(ctx, transactional_id))
        if pauses.is_due:
            await pauses.take()
    return response


async def _describe(ctx: Context, transactional_id: str) -> Described:
    try:
        try:
            index = transaction_index(ctx, transactional_id)
        except CoordinatorNotAvailable:
            raise TransactionalIdNotFound from None  # there has never been one
        found = await ctx.broker.transactions.read(index, lambda shard: shard.get(transactional_id))
        if found is None:
            raise TransactionalIdNotFound
    except KafkaError as error:
        return Described(
            error_code=error.code,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_EPOCH,
            topics=[],
        )
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        topics.setdefault(topic, []).append(index)
    return Described(
        transactional_id=transactional_id,
        transaction_state=found.status.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
        ],
    )


@handles(ListTransactionsRequest)
async def list_transactions(ctx: Context, req: ListTransactionsRequest) -> ListTransactionsResponse:
    """v1 by duration (KIP-994); v2 by a pattern of ids, in RE2's syntax (KIP-1152).

    This broker lists those that it coordinates; a filter that is not given lets all pass.
    """
    is_wanted = _filter(req, ctx.broker.clock.now_ms())

    def look(shard: TransactionShard) -> list[Listed]:
        return [
            Listed(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.status.label,
            )
            for transaction in shard
            if is_wanted(transaction)
        ]

    found = [each for shard in await ctx.broker.transactions.read_all(look) for each in shard]
    if req.transactional_id_pattern:
        ids = [each.transactional_id for each in found]
        matching = await asyncio.get_running_loop().run_in_executor(
            None, match_topics, req.transactional_id_pattern, ids
        )
        found = [each for each in found if each.transactional_id in matching]
    return ListTransactionsResponse(
        unknown_state_filters=[label for label in req.state_filters if label not in LABELS],
        transaction_states=found,
    )


def _filter(req: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    states = {LABELS.get(label) for label in req.state_filters}
    producer_ids = set(req.producer_id_filters)
    duration_ms = req.duration_filter

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not states or transaction.status in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - transaction.started_ms > duration_ms)
        )

    return is_wanted
