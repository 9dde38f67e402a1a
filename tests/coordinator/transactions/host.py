"""Runs a shard of transactions without a broker: virtual time, a log that is a list, partitions that are
nothing but what a real log knows of its producers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millstream.config.broker import BrokerConfig
from millstream.coordinator.host import RETRY_MS
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Entry, Producer, Result
from millstream.coordinator.transactions.settings import Settings
from millstream.coordinator.transactions.shard import ProducerIdNeeded, TransactionShard
from millstream.coordinator.transactions.transaction import BUMPING, Transaction
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.batch import BatchHeader, ControlMarker
from millstream.protocol.header import CONTROL, TRANSACTIONAL
from millstream.storage.producer_state import ProducerState
from millstream.storage.replay import note_marker

T = TypeVar("T")

START_MS = 1_700_000_000_000


class VirtualClock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.elapsed_ms = 0
        self.jumped_ms = 0
        """By how much the wall clock was set."""

    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms + self.jumped_ms

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000


@dataclass
class Written:
    """A record in a partition; how its transaction ended is known once its marker is there."""

    value: tuple[int, int]
    producer: Producer
    is_committed: bool | None = None


@dataclass
class DataPartition:
    """A partition's log, with the real rules for producers and markers."""

    state: ProducerState = field(default_factory=ProducerState)
    records: list[Written] = field(default_factory=list)
    end_offset: int = 0

    def write(self, producer: Producer, sequence: int, value: tuple[int, int]) -> None:
        """Append a record of a transaction that was admitted."""
        header = BatchHeader(
            attributes=TRANSACTIONAL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            count=1,
        )
        assert self.state.check(header) is None, "a repeated batch"
        self.state.add(header, self.end_offset, self.end_offset)
        self.end_offset += 1
        self.records.append(Written(value, producer))

    def mark(self, producer: Producer, is_commit: bool, version: int) -> None:
        """Append an end marker; raises what a real log would."""
        header = BatchHeader(
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            count=1,
        )
        marker = ControlMarker(is_commit, 0)
        self.state.check_marker(header, marker, version)
        note_marker(self.state, header, marker, self.end_offset)
        self.end_offset += 1
        for record in self.records:
            if record.producer.producer_id == producer.producer_id and record.is_committed is None:
                record.is_committed = is_commit

    @property
    def open_count(self) -> int:
        return sum(producer.transaction_start >= 0 for producer in self.state)


class Host:
    """One shard with its log and timers; what is prepared waits in `prepared` for its markers."""

    def __init__(self, config: Mapping[str, str] | None = None) -> None:
        self._config = BrokerConfig(dict(config or {}))
        self.clock = VirtualClock()
        self.log: list[Entry] = []
        self.refuses: KafkaError | None = None
        """What appending fails with, while it does."""
        self.refuses_once = False
        self.largest_bytes = 0
        """How large the largest batch of entries was."""
        self.prepared: list[str] = []
        self.next_producer_id = 1000
        self._timers: dict[object, tuple[int, int, Callable[[], Result[Any]]]] = {}
        self._count = 0
        self.shard = self._make()
        list(self.shard.prepare())
        self.shard.loaded()

    def _make(self) -> TransactionShard:
        return TransactionShard(Settings(self._config), self.clock, self, self.prepared.append)

    # Timers

    def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
        self._count += 1
        self._timers[key] = (self.clock.elapsed_ms + max(delay_ms, 0), self._count, work)

    def set_idle(self, key: object, work: Callable[[], Result[Any]]) -> None:
        self.set(key, 0, work)

    def cancel(self, key: object) -> None:
        self._timers.pop(key, None)

    def wait(self, ms: int) -> None:
        """Let time pass; timers ring when they are due, in order."""
        end_ms = self.clock.elapsed_ms + ms
        while self._timers:
            at_ms, _, key = min((at_ms, number, key) for key, (at_ms, number, _) in self._timers.items())
            if at_ms > end_ms:
                break
            self.clock.elapsed_ms = max(at_ms, self.clock.elapsed_ms)
            work = self._timers.pop(key)[2]
            try:
                self.apply(work())
            except KafkaError:
                self.set(key, RETRY_MS, work)
        self.clock.elapsed_ms = end_ms

    # The runtime's part

    def apply(self, result: Result[T]) -> T:
        if result.entries and self.refuses is not None:
            error = self.refuses
            if self.refuses_once:
                self.refuses = None
            raise error
        nbytes = sum(len(entry.key) + len(entry.value or b"") for entry in result.entries)
        self.largest_bytes = max(self.largest_bytes, nbytes)
        for entry in result.entries:
            self.log.append(entry)
            self.shard.replay(entry, None, len(self.log) - 1)
        assert not isinstance(result.response, Promise)
        return result.response

    def replayed(self) -> TransactionShard:
        """A fresh shard that has read the log, not yet serving."""
        shard = self._make()
        for offset, entry in enumerate(self.log):
            shard.replay(entry, None, offset)
        return shard

    def reload(self) -> None:
        """The coordinator moves: what was being done is forgotten, and another shard takes over."""
        self._timers.clear()
        self.prepared.clear()
        self.shard.unloaded(RuntimeError())
        self.shard = self.replayed()
        list(self.shard.prepare())
        self.shard.loaded()

    def put(self, transaction: Transaction) -> None:
        """Let the log hold a transaction that was not made by requests."""
        self.apply(Result(None, [transaction.to_entry()]))

    # Requests as handlers make them

    def with_id(self, work: Callable[[int | None], Result[T]]) -> T:
        try:
            return self.apply(work(None))
        except ProducerIdNeeded:
            self.next_producer_id += 1
            return self.apply(work(self.next_producer_id))

    def init(
        self, transactional_id: str, timeout_ms: int = 60_000, expected: Producer | None = None
    ) -> Producer | None:
        return self.with_id(
            lambda new_id: self.shard.init_producer_id(transactional_id, timeout_ms, expected, new_id)
        )

    def new(self, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
        """Init, where nothing is in the way."""
        producer = self.init(transactional_id, timeout_ms)
        assert producer is not None
        return producer

    def add(
        self, transactional_id: str, producer: Producer, *partitions: TopicPartition, version: int = BUMPING
    ) -> None:
        self.apply(self.shard.add_partitions(transactional_id, producer, partitions, version))

    def end(
        self, transactional_id: str, producer: Producer, *, is_commit: bool, version: int = BUMPING
    ) -> Producer:
        return self.with_id(
            lambda new_id: self.shard.end(transactional_id, producer, is_commit, version, new_id)
        )

    def transaction(self, transactional_id: str) -> Transaction:
        found = self.shard.get(transactional_id)
        assert found is not None
        return found

    def complete(self, transactional_id: str) -> None:
        """As if all markers had been written."""
        self.prepared.remove(transactional_id)
        self.apply(self.shard.complete(self.transaction(transactional_id)))
