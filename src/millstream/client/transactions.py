"""Transactions, as an admin sees and ends them.

A transaction is known in two places: to its coordinator, by its transactional id, and to the partitions
that it wrote to, by its producer's id. One that is open in a partition and of which no coordinator knows
hangs: nobody will end it, and readers of committed records wait for it for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS, Cluster
from millstream.client.coordinators import TRANSACTION, with_coordinator
from millstream.client.errors import raise_for
from millstream.client.offsets import partitions_by_leader
from millstream.deadline import Deadline
from millstream.errors import ConcurrentTransactions, KafkaError, UnsupportedVersion
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ONGOING = "Ongoing"
UNDECIDED = frozenset({ONGOING, "PrepareCommit", "PrepareAbort"})
"""The states in which a transaction's partitions are still to hear of its end."""

FENCING_TIMEOUT_MS = 1000

NO_DURATION = -1
DURATIONS_SINCE, PATTERNS_SINCE = 1, 2
"""The versions of ListTransactions that have these filters (KIP-994, KIP-1152)."""


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id in a list."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the coordinator knows of a transactional id. `started_ms` is -1 where nothing has begun."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    coordinator: int
    partitions: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in one partition, as the partition's leader knows it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_written_ms: int


async def list_transactions(
    cluster: Cluster,
    deadline: Deadline,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """The transactional ids of all coordinators, by name.

    With `longer_than_ms` those whose transaction has been open for longer (ids that never had one are as old
    as can be), with `pattern` those whose whole id matches an expression in RE2's syntax. UnsupportedVersion
    where a broker is too old for either: it would list them all.

    Where a broker does not answer, all are asked again, by a fresh list of brokers: one that is gone has left
    its ids to others.
    """
    if longer_than_ms is not None and longer_than_ms < 0:
        raise ValueError(f"longer_than_ms is not negative, but {longer_than_ms} was given")
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=NO_DURATION if longer_than_ms is None else longer_than_ms,
        transactional_id_pattern=pattern,
    )
    needed = PATTERNS_SINCE if pattern is not None else DURATIONS_SINCE if longer_than_ms is not None else 0
    found: dict[str, ListedTransaction] = {}

    async def ask(node_id: int) -> None:
        connection = await cluster.connection(node_id, deadline)
        if connection.version_for(ListTransactionsRequest) < needed:
            raise UnsupportedVersion(
                f"broker {node_id} cannot choose transactions by "
                f"{'how long they are open' if pattern is None else 'a pattern'}"
            )
        response = await cluster.request(node_id, request, ListTransactionsResponse, deadline)
        raise_for(response.error_code, None, f"the transactions of broker {node_id}")
        for each in response.transaction_states:
            found[each.transactional_id] = ListedTransaction(
                each.transactional_id, each.transaction_state, each.producer_id, node_id
            )

    async def attempt() -> None:
        found.clear()
        await cluster.refresh([], deadline)
        for node_id in list(cluster.metadata.nodes):
            await ask(node_id)

    await cluster.retrying(attempt, deadline)
    return sorted(found.values(), key=lambda each: each.transactional_id)


async def ongoing_transactions(cluster: Cluster, prefix: str, deadline: Deadline) -> list[Transaction]:
    """The open transactions whose ids begin with `prefix`; one question to each coordinator."""

    async def attempt() -> list[Transaction]:
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for listed in await list_transactions(cluster, deadline, states=[ONGOING]):
            if listed.transactional_id.startswith(prefix):
                by_coordinator[listed.coordinator].append(listed.transactional_id)
        found: list[Transaction] = []
        for node_id, names in by_coordinator.items():
            found += await _describe(cluster, node_id, names, deadline)
        return [each for each in found if each.state == ONGOING]

    return await cluster.retrying(attempt, deadline)


async def describe_transaction(cluster: Cluster, transactional_id: str, deadline: Deadline) -> Transaction:
    """What the coordinator knows of one id; TransactionalIdNotFound if that is nothing."""

    async def attempt(node_id: int) -> Transaction:
        (found,) = await _describe(cluster, node_id, [transactional_id], deadline)
        return found

    return await with_coordinator(cluster, transactional_id, attempt, deadline, key_type=TRANSACTION)


async def _describe(
    cluster: Cluster, node_id: int, transactional_ids: Sequence[str], deadline: Deadline
) -> list[Transaction]:
    request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
    response = await cluster.request(node_id, request, DescribeTransactionsResponse, deadline)
    for state in response.transaction_states:
        raise_for(state.error_code, None, f"transactional id {state.transactional_id}")
    return [
        Transaction(
            state.transactional_id,
            state.transaction_state,
            state.producer_id,
            state.producer_epoch,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms,
            node_id,
            sorted(TopicPartition(each.topic, index) for each in state.topics for index in each.partitions),
        )
        for state in response.transaction_states
    ]


async def open_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline
) -> list[OpenTransaction]:
    """The transactions that are open in some partitions, by partition and place."""
    wanted = list(partitions)

    async def attempt() -> list[OpenTransaction]:
        found: list[OpenTransaction] = []
        for leader, led in (await partitions_by_leader(cluster, wanted, deadline)).items():
            response = await cluster.request(leader, _producers_of(led), DescribeProducersResponse, deadline)
            for topic in response.topics:
                for part in topic.partitions:
                    name = TopicPartition(topic.name, part.partition_index)
                    try:
                        raise_for(part.error_code, part.error_message, f"partition {name}")
                    except KafkaError:
                        cluster.forget(topic.name)
                        raise
                    found += [
                        OpenTransaction(
                            name,
                            each.producer_id,
                            each.producer_epoch,
                            each.coordinator_epoch,
                            each.current_txn_start_offset,
                            each.last_timestamp,
                        )
                        for each in part.active_producers
                        if each.current_txn_start_offset >= 0
                    ]
        return sorted(found, key=lambda each: (each.partition, each.start_offset))

    return await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)


def _producers_of(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        by_topic[topic].append(index)
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic.items()
        ]
    )


async def hanging_transactions(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    deadline: Deadline,
    *,
    now_ms: int,
    min_age_ms: int = 0,
) -> list[OpenTransaction]:
    """The transactions in some partitions that no coordinator will ever end.

    A transaction that ends while it is looked at is not taken for one that hangs: what the
    coordinators do not know is looked for in the partitions once more.
    """
    old = [
        each
        for each in await open_transactions(cluster, partitions, deadline)
        if now_ms - each.last_written_ms >= min_age_ms
    ]
    if not old:
        return []
    producer_ids = sorted({each.producer_id for each in old})
    owners: dict[int, set[TopicPartition]] = defaultdict(set)
    for listed in await list_transactions(cluster, deadline, producer_ids=producer_ids):
        described = await describe_transaction(cluster, listed.transactional_id, deadline)
        if described.state in UNDECIDED:
            owners[described.producer_id].update(described.partitions)
    unknown = [each for each in old if each.partition not in owners[each.producer_id]]
    still_open = {
        (each.partition, each.producer_id, each.start_offset)
        for each in await open_transactions(cluster, {each.partition for each in unknown}, deadline)
    }
    return [each for each in unknown if (each.partition, each.producer_id, each.start_offset) in still_open]


async def write_abort_marker(cluster: Cluster, transaction: OpenTransaction, deadline: Deadline) -> None:
    """End a transaction in its partition, as its coordinator would."""
    topic, index = transaction.partition
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                transaction_result=False,
                coordinator_epoch=max(transaction.coordinator_epoch, 0),
                topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            )
        ]
    )

    async def attempt() -> None:
        leader = await cluster.leader(topic, index, deadline)
        response = await cluster.request(leader.id, request, WriteTxnMarkersResponse, deadline)
        code = response.markers[0].topics[0].partitions[0].error_code
        try:
            raise_for(code, None, f"partition {transaction.partition}")
        except KafkaError:
            cluster.forget(topic)
            raise

    await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)


async def fence_producer(cluster: Cluster, transactional_id: str, deadline: Deadline) -> None:
    """Abort the open transaction of an id, if there is one, and shut its producer out (KIP-588)."""
    await describe_transaction(cluster, transactional_id, deadline)  # an id that nobody has is not made

    async def attempt(node_id: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=FENCING_TIMEOUT_MS
        )
        response = await cluster.request(node_id, request, InitProducerIdResponse, deadline)
        if response.error_code == ConcurrentTransactions.code:
            raise ConcurrentTransactions("the open transaction is being aborted")
        raise_for(response.error_code, None, f"transactional id {transactional_id}")

    await with_coordinator(cluster, transactional_id, attempt, deadline, key_type=TRANSACTION)
