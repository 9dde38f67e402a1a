"""The ends of transactions: a decision that is committed is told to every partition that took part.

A marker is written to each partition; when all markers are committed the transaction is complete. What
fails for a while is tried again, for as long as this broker is the transaction's coordinator; if it is
no longer, the next coordinator finds the prepared transaction in its log and sends all markers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.coordinator.shard import Producer
from millstream.coordinator.transactions.transaction import Transaction
from millstream.errors import (
    InvalidProducerEpoch,
    KafkaError,
    NotCoordinator,
    RequestTimedOut,
    TransactionCoordinatorFenced,
    error_for,
)
from millstream.model import TopicPartition
from millstream.protocol.batch import ControlMarker, encode_marker
from millstream.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 1.0
MARKER_TIMEOUT_MS = 15_000
"""How long another broker may take to have markers committed."""

COMMIT_SECONDS = 10.0
"""How long it is waited until markers are committed before those that others lack are sent again."""

PURPOSE = "markers"


class Marker(NamedTuple):
    """How a producer's transaction ended."""

    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    version: int

    def to_write(self, names: Iterable[TopicPartition]) -> WriteTxnMarkersRequest.WritableTxnMarker:
        """The marker as another broker is asked to write it."""
        topics: dict[str, list[int]] = {}
        for name in names:
            topics.setdefault(name.topic, []).append(name.partition)
        return WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            transaction_result=self.is_commit,
            coordinator_epoch=self.coordinator_epoch,
            transaction_version=self.version,
            topics=[
                WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ],
        )


def write_marker(broker: Broker, name: TopicPartition, marker: Marker) -> Awaitable[None] | None:
    """Write a marker to a partition that this broker leads, and let the partition's group shard know.

    What is returned ends when the marker is committed; None if it is. InvalidProducerEpoch says that a
    later epoch of the producer has been there, so that this end was written before: it is raised when
    that is committed.
    """
    partition = broker.replicas.leader(*name)
    batch = encode_marker(
        ControlMarker(marker.is_commit, marker.coordinator_epoch),
        producer_id=marker.producer.producer_id,
        producer_epoch=marker.producer.epoch,
        timestamp_ms=broker.clock.now_ms(),
    )
    try:
        appended = partition.append_internal(batch, transaction_version=marker.version)
    except InvalidProducerEpoch as error:
        committed = partition.when_committed(partition.log.end_offset)
        if committed is None:
            raise
        return asyncio.ensure_future(_refused_when(committed, error))
    if name.topic == GROUPS_TOPIC:
        broker.groups.end_transaction(name.partition, marker.producer, marker.is_commit)
    return partition.when_committed(appended.last_offset + 1)


async def _refused_when(committed: asyncio.Future[None], error: KafkaError) -> None:
    await committed
    raise error


class _Ending:
    """A transaction that is being ended, and the partitions that do not know it yet."""

    __slots__ = ("began_at", "left", "marker", "transaction", "transactional_id")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transaction: Transaction | None = None
        self.left: set[TopicPartition] = set()
        self.marker: Marker
        self.began_at = 0.0

    def begin(self, transaction: Transaction, coordinator_epoch: int) -> None:
        producer = Producer(transaction.producer_id, transaction.epoch)
        self.transaction = transaction
        self.began_at = asyncio.get_running_loop().time()
        self.left = set(transaction.partitions)
        self.marker = Marker(producer, transaction.is_commit, coordinator_epoch, transaction.version)

    def refused(self, name: TopicPartition, error: KafkaError) -> None:
        """A marker was not written; raises if none may be."""
        if isinstance(error, TransactionCoordinatorFenced):
            raise error
        if isinstance(error, InvalidProducerEpoch):
            log.info("%s has the end of producer %d already", name, self.marker.producer.producer_id)
            self.left.discard(name)
        else:
            log.info("the end of %r for %s: %s", self.transactional_id, name, error.message)


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
        if shard is None:
            return  # it has moved already
        while self._broker.transactions.shard(index) is shard:  # one that was loaded since ends it itself
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
        """Write the markers that are missing: here, and at the other brokers that lead partitions."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for name in sorted(ending.left):
            topic = self._broker.metadata.topics.get(name.topic)
            if topic is None or name.partition >= len(topic.partitions):
                # It was deleted, or this broker, which may be starting, has not heard of it yet, or of
                # nothing but its name.
                cluster_state = self._broker.cluster_state
                is_read = name.topic not in cluster_state.unreadable
                if is_read and cluster_state.knows_all_since(ending.began_at):
                    ending.left.discard(name)
            else:
                by_leader.setdefault(topic.partitions[name.partition].leader, []).append(name)
        here = by_leader.pop(self._broker.config.node_id, [])
        elsewhere = [self._send(leader, names, ending) for leader, names in by_leader.items()]
        if not elsewhere:
            await self._write_here(here, ending)
            return
        results = await asyncio.gather(self._write_here(here, ending), *elsewhere, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _write_here(self, names: Iterable[TopicPartition], ending: _Ending) -> None:
        uncommitted: list[tuple[TopicPartition, Awaitable[None]]] = []
        for name in names:
            try:
                committed = write_marker(self._broker, name, ending.marker)
            except KafkaError as error:
                ending.refused(name, error)
                continue
            if committed is None:
                ending.left.discard(name)
            else:
                uncommitted.append((name, committed))
        deadline = asyncio.get_running_loop().time() + COMMIT_SECONDS
        for name, committed in uncommitted:
            try:
                async with asyncio.timeout_at(deadline):
                    await committed
                ending.left.discard(name)
            except TimeoutError:
                ending.refused(name, RequestTimedOut("the marker is not committed yet"))
            except KafkaError as error:
                ending.refused(name, error)

    async def _send(self, leader: int, names: Iterable[TopicPartition], ending: _Ending) -> None:
        """Have another broker write the markers of partitions that it leads."""
        request = WriteTxnMarkersRequest(markers=[ending.marker.to_write(names)])
        try:
            response = await self._broker.peers.request(
                leader, PURPOSE, request, WriteTxnMarkersResponse, MARKER_TIMEOUT_MS
            )
        except KafkaError as error:
            log.info("the end of %r for broker %d: %s", ending.transactional_id, leader, error.message)
            return
        for topic in response.markers[0].topics:
            for part in topic.partitions:
                name = TopicPartition(topic.name, part.partition_index)
                if part.error_code:
                    ending.refused(name, error_for(part.error_code)())
                else:
                    ending.left.discard(name)
