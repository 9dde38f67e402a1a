"""A transactional producer's requests to its coordinator, and to those of the groups it commits for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.connection import Connection
from millstream.client.coordinators import GROUP, TRANSACTION, coordinator_of
from millstream.client.errors import raise_for
from millstream.client.group_metadata import GroupMetadata
from millstream.client.producer_identity import HandedOver, Identity
from millstream.deadline import Deadline
from millstream.errors import ConcurrentTransactions, KafkaError, NetworkException, OperationNotAttempted
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from millstream.protocol.schema import Request

T = TypeVar("T")

VERSION_2 = 2
BUSY_SECONDS = 0.005
"""How long to wait while the transaction before is being ended."""

LAST_ADD_OF_CLIENTS = 3
LAST_END_1 = 4
LAST_OFFSETS_1 = 4
LAST_PRODUCE_1 = 11
FIRST_OF_VERSION_2: dict[type[Request], int] = {
    ProduceRequest: 12,
    EndTxnRequest: 5,
    TxnOffsetCommitRequest: 5,
}
FIRST_INIT_WITH_ID = 3


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, with what is to be remembered with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


Offsets = Mapping[TopicPartition, "int | OffsetAndMetadata"]


def speaks_version_2(connection: Connection) -> bool:
    """Whether transactions are those of version 2 (KIP-890) on the cluster at the other end."""
    served = connection.api_versions
    has_versions = all(
        kind.key in served and served[kind.key][1] >= first for kind, first in FIRST_OF_VERSION_2.items()
    )
    return has_versions and connection.finalized_features.get("transaction.version", 0) >= VERSION_2


class TransactionCoordinator:
    """Asks until there is an answer or the deadline passes; remembers which broker coordinates what.

    `is_version_2`: the cluster adds partitions to transactions by itself and raises the producer's epoch
    after each one (KIP-890). Known after `init`.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int, identity: Identity) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._identity = identity
        self._nodes: dict[tuple[int, str], int] = {}
        self.is_version_2 = False

    async def init(self, deadline: Deadline, *, is_known: bool = False) -> None:
        """Get the id and the next epoch; whoever had the transactional id before is shut out.

        With `is_known`, only the epoch is raised, and only if nobody else has the id by now (KIP-360).
        """

        async def attempt(node_id: int) -> None:
            request = InitProducerIdRequest(
                transactional_id=self._id, transaction_timeout_ms=self._timeout_ms
            )
            connection = await self._cluster.connection(node_id, deadline)
            if is_known and connection.version_for(InitProducerIdRequest) >= FIRST_INIT_WITH_ID:
                request.producer_id = self._identity.producer_id
                request.producer_epoch = self._identity.producer_epoch
            response = await self._cluster.request(node_id, request, InitProducerIdResponse, deadline)
            raise_for(response.error_code, None, f"transactional id {self._id}")
            self._identity.take(response.producer_id, response.producer_epoch)
            self.is_version_2 = speaks_version_2(connection)

        await self._ask(TRANSACTION, self._id, attempt, deadline)

    async def add_partitions(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Make partitions part of the transaction."""
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, index in partitions:
            by_topic[topic].append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic.items()
            ],
        )

        async def attempt(node_id: int) -> None:
            response = await self._cluster.request(
                node_id, request, AddPartitionsToTxnResponse, deadline, max_version=LAST_ADD_OF_CLIENTS
            )
            results = [
                (f"partition {topic.name}-{part.partition_index}", part.partition_error_code)
                for topic in response.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ]
            _raise_worst(results)

        await self._ask(TRANSACTION, self._id, attempt, deadline)

    async def add_offsets(self, group: str, deadline: Deadline) -> None:
        """Make a group's committed offsets part of the transaction."""

        async def attempt(node_id: int) -> None:
            request = AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.producer_epoch,
                group_id=group,
            )
            response = await self._cluster.request(node_id, request, AddOffsetsToTxnResponse, deadline)
            raise_for(response.error_code, None, f"group {group}")

        await self._ask(TRANSACTION, self._id, attempt, deadline)

    async def commit_offsets(self, offsets: Offsets, group: GroupMetadata, deadline: Deadline) -> None:
        """Write a group's offsets, to be seen once the transaction is committed."""
        topics: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, index), given in offsets.items():
            offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            topics[topic].append(
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
        max_version = None if self.is_version_2 else LAST_OFFSETS_1

        async def attempt(node_id: int) -> None:
            response = await self._cluster.request(
                node_id, request, TxnOffsetCommitResponse, deadline, max_version=max_version
            )
            _raise_worst(
                [
                    (f"group {group.group}, partition {topic.name}-{part.partition_index}", part.error_code)
                    for topic in response.topics
                    for part in topic.partitions
                ]
            )

        await self._ask(GROUP, group.group, attempt, deadline)

    async def end(self, deadline: Deadline, *, is_commit: bool) -> None:
        """Commit or abort. Asking again after a lost answer is answered as the first time."""
        max_version = None if self.is_version_2 else LAST_END_1

        async def attempt(node_id: int) -> None:
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.producer_epoch,
                committed=is_commit,
            )
            response = await self._cluster.request(
                node_id, request, EndTxnResponse, deadline, max_version=max_version
            )
            raise_for(response.error_code, None, f"transactional id {self._id}")
            if self.is_version_2 and response.producer_id >= 0:
                self._identity.take(response.producer_id, response.producer_epoch)

        await self._ask(TRANSACTION, self._id, attempt, deadline)

    def handed_over(self) -> HandedOver:
        """What another process needs to end the transaction that is open."""
        who = self._identity
        return HandedOver(self._id, who.producer_id, who.producer_epoch, self.is_version_2)

    async def _ask(
        self, kind: int, key: str, attempt: Callable[[int], Awaitable[T]], deadline: Deadline
    ) -> T:
        async def find_and_ask() -> T:
            node_id = self._nodes.get((kind, key), -1)
            if node_id < 0 or node_id not in self._cluster.metadata.nodes:
                node_id = await coordinator_of(self._cluster, key, deadline, key_type=kind)
                self._nodes[kind, key] = node_id
            try:
                while True:
                    try:
                        return await attempt(node_id)
                    except ConcurrentTransactions:
                        if deadline.remaining_ms < 100:
                            raise
                        await asyncio.sleep(BUSY_SECONDS)
            except KafkaError as error:
                if error.retriable:
                    self._nodes.pop((kind, key), None)
                if isinstance(error, NetworkException):  # brokers may have moved to other addresses
                    await self._cluster.refresh([], deadline)
                raise

        return await self._cluster.retrying(find_and_ask, deadline)


def _raise_worst(results: list[tuple[str, int]]) -> None:
    """Raise the error that does not pass, else one that does; partitions that were not tried have none."""
    failures: list[KafkaError] = []
    for subject, code in results:
        try:
            raise_for(code, None, subject)
        except KafkaError as error:
            failures.append(error)
    for failure in failures:
        if not failure.retriable and failure.code != OperationNotAttempted.code:
            raise failure
    if failures:
        raise min(failures, key=lambda failure: failure.code == OperationNotAttempted.code)
