"""The ends of transactions: a decision that is committed is told to every partition that took part.

A marker is written to each partition; when all markers are committed the transaction is complete. What
fails for a while is tried again, for as long as this broker is the transaction's coordinator; if it is
no longer, the next coordinator finds the prepared transaction in its log and sends all markers again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.coordinator.shard import Producer
from millstream.coordinator.transactions.transaction import Transaction
from millstream.errors import (
    InvalidProducerEpoch,
    KafkaError,
    NotCoordinator,
    TransactionCoordinatorFenced,
)
from millstream.model import TopicPartition
from millstream.protocol.batch import ControlMarker, encode_marker

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 1.0


class Marker(NamedTuple):
    """How a producer's transaction ended."""

    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    version: int


def write_marker(broker: Broker, name: TopicPartition, marker: Marker) -> asyncio.Future[None] | None:
    """Write a marker to a partition that this broker leads, and let the partition's group shard know.

    What is returned ends when the marker is committed; None if it is.
    """
    partition = broker.replicas.leader(*name)
    batch = encode_marker(
        ControlMarker(marker.is_commit, marker.coordinator_epoch),
        producer_id=marker.producer.producer_id,
        producer_epoch=marker.producer.epoch,
        timestamp_ms=broker.clock.now_ms(),
    )
    appended = partition.append_internal(batch, transaction_version=marker.version)
    if name.topic == GROUPS_TOPIC:
        broker.groups.end_transaction(name.partition, marker.producer, marker.is_commit)
    return partition.when_committed(appended.last_offset + 1)


class _Ending:
    """A transaction that is being ended, and the partitions that do not know it yet."""

    __slots__ = ("left", "marker", "transaction", "transactional_id")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transaction: Transaction | None = None
        self.left: set[TopicPartition] = set()
        self.marker: Marker

    def begin(self, transaction: Transaction, coordinator_epoch: int) -> None:
        producer = Producer(transaction.producer_id, transaction.epoch)
        self.transaction = transaction
        self.left = set(transaction.partitions)
        self.marker = Marker(producer, transaction.is_commit, coordinator_epoch, transaction.version)


class TransactionMarkers:
    """Ends the transactions that this broker coordinates and that have been decided."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def prepared(self, index: int, transactional_id: str) -> None:
        """A transaction has been decided; the decision may not be committed yet."""
        task = asyncio.get_running_loop().create_task(self._end(index, transactional_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, index: int, transactional_id: str) -> None:
        ending = _Ending(transactional_id)
        pause_seconds = FIRST_RETRY_SECONDS
        shard = self._broker.transactions.shard(index)
        while True:
            try:
                if await self._go_on(index, ending):
                    return
            except TransactionCoordinatorFenced:
                return
            except NotCoordinator as error:
                if self._broker.transactions.shard(index) is not shard:
                    return
                # Its log takes nothing at the moment, as on a full disk: nobody else will end it.
                log.warning("ending the transaction of %r: %s", transactional_id, error.message)
            except KafkaError as error:
                log.warning("ending the transaction of %r: %s", transactional_id, error.message)
            except Exception:
                log.exception("ending the transaction of %r", transactional_id)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, MAX_RETRY_SECONDS)

    async def _go_on(self, index: int, ending: _Ending) -> bool:
        """Do what is left of an end; whether nothing is."""
        runtime = self._broker.transactions
        seen = await runtime.read(index, lambda shard: shard.get(ending.transactional_id))
        if ending.transaction is None and seen is not None and seen.is_prepared:
            epoch = self._broker.replicas.leader(TRANSACTIONS_TOPIC, index).leader_epoch
            ending.begin(seen, epoch)
        prepared = ending.transaction
        if prepared is None or seen != prepared:
            return True  # it was ended by somebody else
        await self._write_markers(ending)
        if ending.left:
            return False
        await runtime.write(index, lambda shard: shard.complete(prepared))
        return True

    async def _write_markers(self, ending: _Ending) -> None:
        """Write the markers that are missing."""
        uncommitted: list[tuple[TopicPartition, asyncio.Future[None]]] = []
        for name in sorted(ending.left):
            try:
                committed = self._write_one(name, ending.marker)
            except TransactionCoordinatorFenced:
                raise
            except KafkaError as error:
                log.warning("the end of %r for %s: %s", ending.transactional_id, name, error.message)
                continue
            if committed is None:
                ending.left.discard(name)
            else:
                uncommitted.append((name, committed))
        for name, committed in uncommitted:
            try:
                await committed
                ending.left.discard(name)
            except KafkaError as error:
                log.warning("the end of %r for %s: %s", ending.transactional_id, name, error.message)

    def _write_one(self, name: TopicPartition, marker: Marker) -> asyncio.Future[None] | None:
        topic = self._broker.metadata.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None  # it was deleted
        try:
            return write_marker(self._broker, name, marker)
        except InvalidProducerEpoch as error:
            # A later epoch of the producer has been there: this end has been written before.
            log.info("%s has the end of producer %d already: %s", name, marker.producer.producer_id, error)
            return None
