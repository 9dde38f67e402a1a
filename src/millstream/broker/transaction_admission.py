"""Whether a transaction's records may be written to a partition: its coordinator is asked (KIP-890).

Old clients have named the partition to the coordinator before they write to it: that is verified.
Since transaction version 2 it is the partition's leader that makes it part of the transaction. Where the
coordinator is on this broker the answer is there at once, unless it has to wait for its log, or for
the markers of the transaction before; else the coordinator's broker is asked, with AddPartitionsToTxn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.cluster.transactional_appends import ADDS_SINCE
from millstream.coordinator.shard import Producer, Result
from millstream.coordinator.transactions.shard import TransactionShard
from millstream.coordinator.transactions.transaction import BUMPING
from millstream.errors import (
    BrokerNotAvailable,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    OperationNotAttempted,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
    error_for,
)
from millstream.model import TopicPartition
from millstream.protocol.batch import HEADER_SIZE, read_header
from millstream.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from millstream.protocol.types import Buffer

if TYPE_CHECKING:
    from millstream.broker.server import Broker

T = TypeVar("T")

_UNREACHED = (
    BrokerNotAvailable,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NetworkException,
    NotCoordinator,
    OperationNotAttempted,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
"""The coordinator gave no answer, or does not know yet what this broker knows."""

Codes = dict[TopicPartition, int]

PURPOSE = "transactions"
ASK_TIMEOUT_MS = 5000

ABORTABLE_SINCE = 11
OFFSETS_ADD_SINCE = 5
OFFSETS_ABORTABLE_SINCE = 4


class Client(Enum):
    """What a client knows of KIP-890, by the version of its request."""

    OLD = 0
    KNOWS_ABORTABLE = 1
    """It knows the error TRANSACTION_ABORTABLE."""
    HAS_PARTITIONS_ADDED = 2
    """It leaves adding partitions to the brokers."""


class TransactionAdmission:
    """Asks the coordinators on behalf of this broker's partitions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._expected: list[TopicPartition] = []
        self._shared: dict[tuple[str, Producer], asyncio.Task[Codes]] = {}
        """What is asked of other brokers for all that is expected."""

    def for_batch(
        self,
        partition: TopicPartition,
        transactional_id: str | None,
        producer_id: int,
        epoch: int,
        produce_version: int,
    ) -> Awaitable[None] | None:
        """As `cluster.transactional_appends.Admission` says."""
        client = _client(produce_version, ABORTABLE_SINCE, ADDS_SINCE)
        if not transactional_id:
            raise TransactionalIdAuthorizationFailed("a transactional batch came without a transactional id")
        producer = Producer(producer_id, epoch)
        return self._admit(partition, transactional_id, producer, client, _batch_error)

    @contextmanager
    def expecting(self, batches: Iterable[tuple[TopicPartition, Buffer | None]]) -> Iterator[None]:
        """Within this, the first batch that is admitted makes the partitions of all part of its transaction.

        So a request for many partitions costs the coordinator one entry.
        """
        self._expected = [
            name for name, data in batches if data is not None and self._is_first(name, memoryview(data))
        ]
        try:
            yield
        finally:
            self._expected = []
            self._shared = {}

    def _is_first(self, name: TopicPartition, data: memoryview) -> bool:
        """Whether a batch is the first of its transaction in a partition that is led here."""
        partition = self._broker.replicas.topic(name.topic).get(name.partition)
        if partition is None or len(data) < HEADER_SIZE:
            return False
        header = read_header(data)
        return header.is_transactional and not partition.transactions.is_open(
            header.producer_id, header.producer_epoch
        )

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        index: int,
        version: int,
        write: Callable[[], Awaitable[T]],
    ) -> T:
        """Write offsets of a transaction to a partition of the groups' topic, if they may be."""
        client = _client(version, OFFSETS_ABORTABLE_SINCE, OFFSETS_ADD_SINCE)
        name = TopicPartition(GROUPS_TOPIC, index)
        while True:
            transactions = self._broker.replicas.leader(*name).transactions
            if transactions.is_open(*producer):
                return await write()
            guard = transactions.guard(producer.producer_id)
            try:
                admitted = self._admit(name, transactional_id, producer, client, _offsets_error)
                if admitted is not None:
                    await admitted
                if not guard.is_broken:
                    return await write()
            finally:
                transactions.release(producer.producer_id, guard)

    def _admit(
        self,
        partition: TopicPartition,
        transactional_id: str,
        producer: Producer,
        client: Client,
        translate: Callable[[KafkaError, Client], KafkaError],
    ) -> Awaitable[None] | None:
        if client is not Client.HAS_PARTITIONS_ADDED and not self._verifies:
            return None
        try:
            answer = self._ask(partition, transactional_id, producer, client)
        except ConcurrentTransactions as error:
            if client is not Client.HAS_PARTITIONS_ADDED:
                raise translate(error, client) from None
            return self._ask_again(partition, transactional_id, producer, client, translate)
        except KafkaError as error:
            raise translate(error, client) from None
        if answer is None:
            return None
        told = self._answered(answer, partition, transactional_id, producer, client, translate)
        return _Answer(answer, told)

    async def _answered(
        self,
        answer: Awaitable[None],
        partition: TopicPartition,
        transactional_id: str,
        producer: Producer,
        client: Client,
        translate: Callable[[KafkaError, Client], KafkaError],
    ) -> None:
        try:
            await answer
        except ConcurrentTransactions as error:
            if client is not Client.HAS_PARTITIONS_ADDED:
                raise translate(error, client) from None
            await self._ask_again(partition, transactional_id, producer, client, translate)
        except KafkaError as error:
            raise translate(error, client) from None

    def _ask(
        self, partition: TopicPartition, transactional_id: str, producer: Producer, client: Client
    ) -> Awaitable[None] | None:
        def work(shard: TransactionShard) -> Result[None]:
            if client is Client.HAS_PARTITIONS_ADDED:
                partitions = (partition, *self._expected)
                return shard.add_partitions(transactional_id, producer, partitions, BUMPING)
            shard.verify_partition(transactional_id, producer, partition)
            return Result(None)

        index = self._broker.coordinators.partition_of(TRANSACTIONS_TOPIC, transactional_id)
        elsewhere = self._broker.coordinators.leader_of(TRANSACTIONS_TOPIC, index)
        if elsewhere is None:
            return self._broker.transactions.write_now(index, work)
        key = transactional_id, producer
        asked = self._shared.get(key) if partition in self._expected else None
        if asked is None:
            partitions = dict.fromkeys((partition, *self._expected))
            is_added = client is Client.HAS_PARTITIONS_ADDED
            asked = asyncio.get_running_loop().create_task(
                self._ask_elsewhere(elsewhere, transactional_id, producer, partitions, is_added)
            )
            asked.add_done_callback(_seen)
            if partition in self._expected:
                self._shared[key] = asked
        return _code_of(partition, asked)

    async def _ask_elsewhere(
        self,
        broker_id: int,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        is_added: bool,
    ) -> Codes:
        """Ask another broker, which coordinates the transaction; the code for each partition."""
        topics: dict[str, list[int]] = {}
        for each in partitions:
            topics.setdefault(each.topic, []).append(each.partition)
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=not is_added,
            topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        response = await self._broker.peers.request(
            broker_id,
            PURPOSE,
            AddPartitionsToTxnRequest(transactions=[transaction]),
            AddPartitionsToTxnResponse,
            ASK_TIMEOUT_MS,
        )
        if response.error_code:
            raise error_for(response.error_code)()
        return {
            TopicPartition(topic.name, part.partition_index): part.partition_error_code
            for topic in response.results_by_transaction[0].topic_results
            for part in topic.results_by_partition
        }

    async def _ask_again(
        self,
        partition: TopicPartition,
        transactional_id: str,
        producer: Producer,
        client: Client,
        translate: Callable[[KafkaError, Client], KafkaError],
    ) -> None:
        """The producer's last transaction is still being ended: ask until that is done, for a while."""
        config = self._broker.config
        backoff_seconds = config["add.partitions.to.txn.retry.backoff.ms"] / 1000
        loop = asyncio.get_running_loop()
        deadline = loop.time() + config["add.partitions.to.txn.retry.backoff.max.ms"] / 1000
        while True:
            await asyncio.sleep(backoff_seconds)
            try:
                answer = self._ask(partition, transactional_id, producer, client)
                if answer is not None:
                    await answer
                return
            except ConcurrentTransactions as error:
                if loop.time() >= deadline:
                    raise translate(error, client) from None
            except KafkaError as error:
                raise translate(error, client) from None

    @property
    def _verifies(self) -> bool:
        value: bool = self._broker.config["transaction.partition.verification.enable"]
        return value


class _Answer:
    """What the coordinator says, and what is made of it; closed where nobody comes to await it."""

    def __init__(self, answer: Awaitable[None], told: Coroutine[Any, Any, None]) -> None:
        self._answer = answer
        self._told = told

    def __await__(self) -> Generator[Any, Any, None]:
        return self._told.__await__()

    def close(self) -> None:
        self._told.close()
        if isinstance(self._answer, Coroutine):
            self._answer.close()


def _seen(asked: asyncio.Task[Codes]) -> None:
    """Whoever waits for the answer hears of a failure; it may be that nobody does any more."""
    if not asked.cancelled():
        asked.exception()


async def _code_of(partition: TopicPartition, asked: asyncio.Task[Codes]) -> None:
    """Wait for what was asked, with others; the error for one partition is raised."""
    await asyncio.wait([asked])
    code = asked.result().get(partition, CoordinatorNotAvailable.code)
    if code:
        raise error_for(code)()


def _client(version: int, abortable_since: int, adds_since: int) -> Client:
    if version >= adds_since:
        return Client.HAS_PARTITIONS_ADDED
    return Client.KNOWS_ABORTABLE if version >= abortable_since else Client.OLD


def _common_error(error: KafkaError, client: Client) -> KafkaError:
    """The coordinator's refusal in words that the client knows."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch()
    if isinstance(error, TransactionAbortable) and client is Client.OLD:
        return InvalidTxnState(error.message)
    return error


def _batch_error(error: KafkaError, client: Client) -> KafkaError:
    """What cannot be decided now is NOT_ENOUGH_REPLICAS: every producer tries again on that."""
    is_old = client is not Client.HAS_PARTITIONS_ADDED
    if isinstance(error, _UNREACHED) or (is_old and isinstance(error, ConcurrentTransactions)):
        return NotEnoughReplicas("whether the partition is part of the transaction could not be verified yet")
    return _common_error(error, client)


def _offsets_error(error: KafkaError, client: Client) -> KafkaError:
    is_old = client is not Client.HAS_PARTITIONS_ADDED
    if isinstance(error, _UNREACHED) or (is_old and isinstance(error, ConcurrentTransactions)):
        return CoordinatorLoadInProgress()
    return _common_error(error, client)
