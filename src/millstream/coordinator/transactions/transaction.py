"""What is known of one transactional id: its producer, its transaction, and every way it may go on.

    EMPTY -> ONGOING -> PREPARE_COMMIT -> COMPLETE_COMMIT -> ONGOING ...
                     -> PREPARE_ABORT  -> COMPLETE_ABORT  -> ONGOING ...

A transaction is decided by its prepared state: what follows is only to tell the partitions. From
EMPTY and the two complete states a producer that comes anew goes back to EMPTY, with a new epoch.

Epochs. A client never gets the highest epoch of a producer id: it is kept for fencing, and where the
next epoch would be the highest, the producer gets another id instead. Since transaction version 2
(KIP-890) each end raises the epoch by one, and a client that repeats its EndTxn still has the epoch
before. So what fences a producer raises the epoch by two: nobody can take that for the end that the
producer itself asked for.

A value is never changed: each step makes another one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from millstream.coordinator.entry_format import entry
from millstream.coordinator.shard import Entry
from millstream.coordinator.transaction_entries import TransactionLogKey, TransactionLogValue
from millstream.model import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
MAX_EPOCH = 0x7FFF
"""Only fencing gets here."""

OLD = 0
"""The transaction version of clients that name their partitions first and keep their epoch."""
BUMPING = 2
"""The transaction version in which brokers add partitions and each end raises the epoch."""


class Status(IntEnum):
    """The states of a transactional id, with the numbers of Kafka's log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As Kafka names it to admins."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
COMPLETE = frozenset({Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
LABELS = {status.label: status for status in Status}


def is_exhausted(epoch: int) -> bool:
    """Whether the epoch after this one is only for fencing."""
    return epoch >= MAX_EPOCH - 1


class Transaction(NamedTuple):
    """One transactional id at one moment, as the log says."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: Status
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id that the producer goes on with when its epochs are used up."""
    version: int = OLD

    @property
    def is_prepared(self) -> bool:
        return self.status in PREPARED

    @property
    def is_complete(self) -> bool:
        return self.status in COMPLETE

    @property
    def is_commit(self) -> bool:
        """Of a transaction that is decided: how."""
        return self.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)

    # Steps

    def begun_anew(
        self, epoch: int, timeout_ms: int, now_ms: int, producer_id: int | None = None
    ) -> Transaction:
        """A producer has come, with another epoch, and perhaps another id."""
        return self._replace(
            producer_id=self.producer_id if producer_id is None else producer_id,
            previous_producer_id=self.producer_id,
            epoch=epoch,
            timeout_ms=timeout_ms,
            status=Status.EMPTY,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], version: int, now_ms: int
    ) -> Transaction:
        """Partitions have joined the transaction, which begins with the first."""
        is_begun = self.status is Status.ONGOING
        return self._replace(
            previous_producer_id=self.producer_id,
            status=Status.ONGOING,
            partitions=self.partitions | partitions,
            started_ms=self.started_ms if is_begun else now_ms,
            updated_ms=now_ms,
            version=version,
        )

    def prepared(
        self, is_commit: bool, version: int, now_ms: int, next_producer_id: int = NO_PRODUCER_ID
    ) -> Transaction:
        """Its producer has decided."""
        return self._replace(
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            epoch=self.epoch + 1 if version >= BUMPING else self.epoch,
            status=Status.PREPARE_COMMIT if is_commit else Status.PREPARE_ABORT,
            started_ms=self.started_ms if self.status is Status.ONGOING else now_ms,
            updated_ms=now_ms,
            version=version,
        )

    def fenced(self, now_ms: int) -> Transaction:
        """Aborted without its producer, which can do nothing more with the epoch it has."""
        return self._replace(
            previous_producer_id=self.producer_id,
            epoch=min(self.epoch + 2, MAX_EPOCH),
            status=Status.PREPARE_ABORT,
            updated_ms=now_ms,
            version=BUMPING,
        )

    def completed(self, now_ms: int) -> Transaction:
        """All partitions know how it ended."""
        is_rotated = self.next_producer_id != NO_PRODUCER_ID
        return self._replace(
            previous_producer_id=self.producer_id,
            producer_id=self.next_producer_id if is_rotated else self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            epoch=0 if is_rotated else self.epoch,
            status=Status.COMPLETE_COMMIT if self.is_commit else Status.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    # The log

    def to_entry(self) -> Entry:
        """What sets it in the log."""
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(self.partitions):
            topics.setdefault(topic, []).append(index)
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.status),
            transaction_partitions=None
            if self.status is Status.EMPTY
            else [
                TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
                for topic, indexes in topics.items()
            ],
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.started_ms,
            client_transaction_version=self.version,
        )
        return entry(TransactionLogKey(transactional_id=self.transactional_id), value)


def tombstone(transactional_id: str) -> Entry:
    """What removes a transactional id from the log."""
    return entry(TransactionLogKey(transactional_id=transactional_id), None)


_STATUSES = tuple(Status)
_NOWHERE: frozenset[TopicPartition] = frozenset()


def read_transaction(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """The transaction that the log holds under an id; ValueError if it is in no state that is known."""
    if not 0 <= value.transaction_status < len(_STATUSES):
        raise ValueError(f"there is no state {value.transaction_status} of transactions")
    topics = value.transaction_partitions
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        _STATUSES[value.transaction_status],
        value.transaction_last_update_timestamp_ms,
        frozenset(TopicPartition(each.topic, index) for each in topics for index in each.partition_ids)
        if topics
        else _NOWHERE,
        value.transaction_start_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.client_transaction_version,
    )
