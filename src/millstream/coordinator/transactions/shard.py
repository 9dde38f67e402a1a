"""The transactional ids of one partition of `__transaction_state`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from millstream.clock import Clock
from millstream.coordinator.entry_format import number_of, read_value
from millstream.coordinator.shard import Entry, Producer, Result, Timers
from millstream.coordinator.transaction_entries import TransactionLogKey, TransactionLogValue
from millstream.coordinator.transactions.settings import Settings
from millstream.coordinator.transactions.transaction import (
    BUMPING,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Status,
    Transaction,
    is_exhausted,
    read_transaction,
)
from millstream.coordinator.transactions.upkeep import Upkeep
from millstream.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    MillstreamError,
    ProducerFenced,
    ProtocolError,
    TransactionAbortable,
)
from millstream.model import TopicPartition

log = logging.getLogger(__name__)


class ProducerIdNeeded(MillstreamError):
    """The operation needs a producer id that nobody has yet: it is to be done again with one."""


class _Bump(NamedTuple):
    """An epoch that a producer asked for, and got: it may not have heard of it, and ask again."""

    producer_id: int
    epoch: int
    before: int


class TransactionShard:
    """A state machine without I/O: see `coordinator.shard`.

    `on_prepared` is called with each transactional id whose transaction has been decided, when the
    decision is in the log but perhaps not yet committed, and once more after loading. Whoever gets it
    waits until it is committed, writes the markers, and then asks for `complete`.
    """

    def __init__(
        self, settings: Settings, clock: Clock, timers: Timers, on_prepared: Callable[[str], None]
    ) -> None:
        self._transactions: dict[str, Transaction] = {}
        self._bumps: dict[str, _Bump] = {}
        self._made: tuple[Entry, Transaction] | None = None
        self._undone: list[str] = []
        """The ids whose transactions were decided and not ended when the log was loaded."""
        self._settings = settings
        self._clock = clock
        self._on_prepared = on_prepared
        self._is_live = False
        self._upkeep = Upkeep(self._transactions, timers, clock, settings)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._transactions.values()))

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    # A producer comes

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None = None,
        new_producer_id: int | None = None,
    ) -> Result[Producer | None]:
        """Give a producer its id and an epoch that fences all before it.

        None: a transaction was open. It is being aborted, and the producer has to ask again.
        `expected` is who the producer believes to be, if it has been here before (KIP-360): it gets
        the next epoch only if nobody else came meanwhile.
        """
        if not 0 < timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"a transaction may take up to {self._settings.max_timeout_ms} ms, not {timeout_ms}"
            )
        now_ms = self._clock.now_ms()
        found = self._transactions.get(transactional_id)
        if found is None:
            producer_id = _needed(new_producer_id)
            made = Transaction(transactional_id, producer_id, 0, timeout_ms, Status.EMPTY, now_ms)
            return self._begin(made, NO_EPOCH, is_expected=expected is not None)
        if expected is not None:
            self._check_expected(found, expected)
        if found.is_prepared:
            raise ConcurrentTransactions
        if found.status is Status.ONGOING:
            return Result(None, [self._entry(found.fenced(now_ms))])
        if expected is not None and expected.epoch != found.epoch:
            return Result(Producer(found.producer_id, found.epoch))  # asked for again
        if is_exhausted(found.epoch):
            begun = found.begun_anew(0, timeout_ms, now_ms, _needed(new_producer_id))
        else:
            begun = found.begun_anew(found.epoch + 1, timeout_ms, now_ms)
        return self._begin(begun, found.epoch, is_expected=expected is not None)

    def _check_expected(self, found: Transaction, expected: Producer) -> None:
        """Raise ProducerFenced unless nobody came since the producer got its epoch, or it asks again."""
        if expected == (found.producer_id, found.epoch) or _awaits_its_new_id(found, expected):
            return
        bump = self._bumps.get(found.transactional_id)
        is_repeated = (
            bump is not None
            and bump[:2] == (found.producer_id, found.epoch)
            and bump.before == expected.epoch
            and (
                expected.producer_id == found.producer_id
                or (expected.producer_id == found.previous_producer_id and is_exhausted(expected.epoch))
            )
        )
        if not is_repeated and not _repeats_its_end(found, expected):
            raise ProducerFenced

    def _begin(self, begun: Transaction, before: int, *, is_expected: bool) -> Result[Producer | None]:
        if is_expected:
            self._bumps[begun.transactional_id] = _Bump(begun.producer_id, begun.epoch, before)
        else:
            self._bumps.pop(begun.transactional_id, None)
        return Result(Producer(begun.producer_id, begun.epoch), [self._entry(begun)])

    # A transaction grows

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition], version: int
    ) -> Result[None]:
        """Make partitions part of the producer's transaction, which begins with the first."""
        found = self._owned(transactional_id, producer)
        added = frozenset(partitions)
        if found.status is Status.ONGOING and added <= found.partitions:
            return Result(None)
        return Result(None, [self._entry(found.with_partitions(added, version, self._clock.now_ms()))])

    def verify_partition(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """Raise unless the partition is part of the producer's transaction now."""
        if partition not in self._owned(transactional_id, producer).partitions:
            raise TransactionAbortable(f"{partition} is not part of the transaction")

    def _owned(self, transactional_id: str, producer: Producer) -> Transaction:
        """A transactional id, if the producer has it and no end is under way."""
        found = self._transactions.get(transactional_id)
        if found is None:
            raise InvalidProducerIdMapping
        if _awaits_its_new_id(found, producer):
            raise ConcurrentTransactions
        if found.producer_id != producer.producer_id:
            raise InvalidProducerIdMapping
        if not _is_current(found, producer):
            raise ProducerFenced
        if found.is_prepared:
            raise ConcurrentTransactions
        return found

    # A transaction ends

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        is_commit: bool,
        version: int,
        new_producer_id: int | None = None,
    ) -> Result[Producer]:
        """Commit or abort: decided once this is committed. The answer is what the producer goes on with."""
        found = self._transactions.get(transactional_id)
        if found is None:
            raise InvalidProducerIdMapping
        if version >= BUMPING:
            return self._end_and_bump(found, producer, is_commit, new_producer_id)
        if found.producer_id != producer.producer_id:
            raise InvalidProducerIdMapping
        if not _is_current(found, producer):
            raise ProducerFenced
        if found.status is Status.ONGOING:
            prepared = found.prepared(is_commit, version, self._clock.now_ms())
            return Result(producer, [self._entry(prepared)])
        if found.status is Status.EMPTY or found.is_commit != is_commit:
            raise _wrong_end(found, is_commit)
        if found.is_prepared:
            raise ConcurrentTransactions
        return Result(producer)

    def _end_and_bump(
        self, found: Transaction, producer: Producer, is_commit: bool, new_producer_id: int | None
    ) -> Result[Producer]:
        """As `end`, for clients that get another epoch with each end, and repeat themselves with the old."""
        if _awaits_its_new_id(found, producer):
            raise ConcurrentTransactions
        is_repeated = _repeats_its_end(found, producer)
        if found.producer_id != producer.producer_id and not is_repeated:
            raise InvalidProducerIdMapping
        if not is_repeated and not _is_current(found, producer):
            raise ProducerFenced
        if found.is_prepared:
            raise ConcurrentTransactions
        if is_repeated:
            if found.is_commit != is_commit:
                raise _wrong_end(found, is_commit)
            return Result(Producer(found.producer_id, found.epoch))
        if is_commit and found.status is not Status.ONGOING:
            raise _wrong_end(found, is_commit)
        next_producer_id = _needed(new_producer_id) if is_exhausted(found.epoch) else NO_PRODUCER_ID
        prepared = found.prepared(is_commit, BUMPING, self._clock.now_ms(), next_producer_id)
        following = Producer(prepared.producer_id, prepared.epoch)
        if next_producer_id != NO_PRODUCER_ID:
            following = Producer(next_producer_id, 0)
        return Result(following, [self._entry(prepared)])

    def complete(self, prepared: Transaction) -> Result[None]:
        """All partitions have the marker of a transaction that was prepared."""
        if self._transactions.get(prepared.transactional_id) != prepared:
            return Result(None)  # it was completed by somebody else
        return Result(None, [self._entry(prepared.completed(self._clock.now_ms()))])

    def _entry(self, transaction: Transaction) -> Entry:
        """What sets a transaction in the log. It is kept, to be replayed without being read again."""
        entry = transaction.to_entry()
        self._made = entry, transaction
        return entry

    # The runtime's part

    def replay(self, entry: Entry, producer: Producer | None, offset: int) -> None:
        made = self._made
        if made is not None and entry is made[0]:
            self._made = None
            self._take(made[1])
            return
        try:
            if number_of(entry.key) not in TransactionLogKey.types:
                return
            transactional_id = TransactionLogKey.decode(entry.key, 0, 2).transactional_id
            if entry.value is None:
                self._transactions.pop(transactional_id, None)
                self._upkeep.ended(transactional_id)
                self._bumps.pop(transactional_id, None)
                return
            self._take(read_transaction(transactional_id, read_value(TransactionLogValue, entry.value)))
        except (ProtocolError, ValueError) as error:
            log.warning("an entry at offset %d is passed over: %s", offset, error)

    def _take(self, replayed: Transaction) -> None:
        transactional_id = replayed.transactional_id
        self._transactions[transactional_id] = replayed
        if replayed.status is not Status.ONGOING:
            self._upkeep.ended(transactional_id)
        elif self._is_live:
            self._upkeep.begun(replayed)
        else:
            self._upkeep.loaded(replayed)
        if self._is_live and replayed.is_prepared:
            self._on_prepared(transactional_id)

    def replay_end(self, producer: Producer, is_commit: bool) -> None:
        """Nobody writes here within a transaction."""

    def prepare(self) -> Iterator[None]:
        for transaction in self:
            if transaction.is_prepared:
                self._undone.append(transaction.transactional_id)
            yield

    def loaded(self) -> None:
        self._is_live = True
        for transactional_id in self._undone:
            self._on_prepared(transactional_id)
        self._undone.clear()
        self._upkeep.begin()

    def unloaded(self, error: Exception) -> None:
        self._is_live = False


def _needed(new_producer_id: int | None) -> int:
    if new_producer_id is None:
        raise ProducerIdNeeded
    return new_producer_id


def _is_current(found: Transaction, producer: Producer) -> bool:
    """Whether the producer has the epoch of its id. The highest, which fences, is given to nobody."""
    return producer.epoch == found.epoch < MAX_EPOCH


def _awaits_its_new_id(found: Transaction, producer: Producer) -> bool:
    """Whether the producer goes on with the id that its last end gave it, before that is complete."""
    return (
        found.is_prepared
        and found.next_producer_id != NO_PRODUCER_ID
        and producer == (found.next_producer_id, 0)
    )


def _repeats_its_end(found: Transaction, producer: Producer) -> bool:
    """Whether the producer may be asking again for the end that gave it its present epoch, or id.

    An end that raised no epoch gave it none: there the epoch before is that of somebody who was fenced.
    """
    if found.version < BUMPING:
        return False
    if producer.producer_id == found.producer_id:
        was_fenced = found.is_complete and found.epoch == MAX_EPOCH
        return (
            not was_fenced and producer.epoch + 1 == found.epoch and (found.is_prepared or found.is_complete)
        )
    return (
        found.is_complete
        and producer.producer_id == found.previous_producer_id
        and producer.epoch == MAX_EPOCH - 1
        and found.epoch == 0
    )


def _wrong_end(found: Transaction, is_commit: bool) -> InvalidTxnState:
    wish = "committed" if is_commit else "aborted"
    return InvalidTxnState(f"a transaction in the state {found.status.label} cannot be {wish}")
