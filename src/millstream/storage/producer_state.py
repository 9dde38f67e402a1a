"""What a log knows of the producers that write to it: sequences, epochs, open transactions.

Of each producer the last five batches are remembered, so that a batch sent again is recognised and
answered with the offsets it got the first time (a client has at most five in flight). The state is
a function of the log: replaying its batches from any snapshot gives it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from millstream.protocol.batch import BatchHeader, ControlMarker

DAY_MS: Final = 86_400_000
REMEMBERED_BATCHES: Final = 5
MAX_REFUSED: Final = 10_000
REFUSED_MS: Final = 600_000
"""For how long a batch that was not written is waited for; clients give up after 2 minutes by default."""
MAX_SEQUENCE: Final = 0x7FFFFFFF
NONE: Final = -1
_NOWHERE: Final = 1 << 63


class SentBatch(NamedTuple):
    """A batch that a producer wrote: where its sequence and its offsets end, and how long it is."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + MAX_SEQUENCE + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer:
    """The state of one producer id in one log."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "silent_since_ms",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int = NONE, last_timestamp: int = NONE) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[SentBatch] = []
        self.coordinator_epoch = NONE
        self.last_timestamp = last_timestamp
        self.silent_since_ms = NONE
        """By the broker's clock; -1 until `expire` comes for the first time after the last batch.

        The records' own timestamps say nothing of when they were sent.
        """
        self.transaction_start = NONE

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NONE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NONE

    def duplicate_of(self, epoch: int, first_sequence: int, last_sequence: int) -> SentBatch | None:
        """The remembered batch with exactly these sequences, if there is one."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None

    def adopt_epoch(self, epoch: int) -> None:
        """Go over to a new epoch, in which sequences start again."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = []

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        if self.silent_since_ms == NONE:
            self.silent_since_ms = now_ms
        return self.transaction_start == NONE and now_ms - self.silent_since_ms >= expiration_ms


class CompletedTransaction(NamedTuple):
    """A transaction that its end marker closed."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class _Refused:
    """The first batch of a producer that was not written and comes again, and why.

    `told_to` is the furthest of those behind it that were told to wait for it, since it came last.
    """

    __slots__ = ("epoch", "error", "sequence", "since_ms", "told_to")

    def __init__(self, epoch: int, sequence: int, error: KafkaError) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.error = error
        self.told_to = NONE
        self.since_ms = NONE
        """As `Producer.silent_since_ms`."""

    def is_expired(self, now_ms: int) -> bool:
        if self.since_ms == NONE:
            self.since_ms = now_ms
        return now_ms - self.since_ms >= REFUSED_MS


def _is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another; after the last comes 0."""
    return 0 < (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE >> 1


class ProducerState:
    """All producers of a log, and its open transactions by their first offset. One thread changes them."""

    __slots__ = (
        "_committed",
        "_decided",
        "_first_open",
        "_open",
        "_refused",
        "end_offset",
        "producers",
    )

    def __init__(self, end_offset: int = 0) -> None:
        self.producers: dict[int, Producer] = {}
        self.end_offset = end_offset
        """The offset up to which the log's batches are part of this state."""
        self._open: dict[int, int] = {}  # first offset → producer id, in offset order
        self._first_open = _NOWHERE
        self._decided = array("q")
        """Of transactions whose markers may not be committed: first offset and marker's offset, in turn."""
        self._committed = 0
        self._refused: dict[int, _Refused] = {}  # by producer id

    def __iter__(self) -> Iterator[Producer]:
        return iter(self.producers.values())

    def __len__(self) -> int:
        return len(self.producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self.producers

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in this epoch."""
        producer = self.producers.get(producer_id)
        return producer is not None and producer.transaction_start != NONE and producer.epoch == epoch

    def load(self, producer: Producer) -> None:
        """Take a producer from a snapshot."""
        self.producers[producer.producer_id] = producer
        if producer.transaction_start != NONE:
            self._open[producer.transaction_start] = producer.producer_id
            self._open = dict(sorted(self._open.items()))
            self._first_open = next(iter(self._open))

    def check(self, header: BatchHeader) -> SentBatch | None:
        """Whether a client's batch may follow: the batch it repeats, if it does; raises if it may not.

        A batch without a sequence is a coordinator's (offsets of a transaction): only its epoch counts.
        A producer that is not known may start at any sequence (KIP-360): its earlier batches may
        have been deleted, or forgotten after a long silence.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            self.check_refused(header)
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch == producer.epoch and first != NONE:
            last = producer.last_sequence
            if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
                duplicate = producer.duplicate_of(epoch, first, header.last_sequence)
                if duplicate is not None:
                    return duplicate
                self.check_refused(header)
                raise OutOfOrderSequenceNumber(
                    f"producer {header.producer_id} sent sequence {first} after {last} in epoch {epoch}"
                )
        elif epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} sent epoch {epoch}, but epoch {producer.epoch} is known"
            )
        elif first > 0 and producer.epoch != NONE:
            self.check_refused(header)
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} starts epoch {epoch} at sequence {first}, not 0"
            )
        if producer.transaction_start != NONE and not header.is_transactional:
            raise InvalidTxnState(
                f"producer {header.producer_id} wrote outside of its transaction that is open"
                f" since offset {producer.transaction_start}"
            )
        return None

    def refuse(self, header: BatchHeader, error: KafkaError) -> None:
        """Note that a batch was not written, and may be sent again: those in flight behind it get its error.

        Of an unknown producer, which may start anywhere, they would be taken, and this one would come too
        late. Of a known one they would be out of order, upon which clients begin a new epoch and send again
        also what other partitions hold already.
        """
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id == NONE or sequence == NONE or self._is_past(header):
            return
        known = self._refused.get(producer_id)
        if known is not None and (
            epoch < known.epoch or (epoch == known.epoch and _is_behind(sequence, known.sequence))
        ):
            return  # one before it was not written either, or the producer has begun anew
        if known is None and len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[producer_id] = _Refused(epoch, sequence, error.again())

    def _is_past(self, header: BatchHeader) -> bool:
        """Whether the log has gone beyond a batch: it was written before, or is too old to be."""
        producer = self.producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            return False
        is_older = header.producer_epoch < producer.epoch
        return is_older or not _is_behind(header.base_sequence, producer.last_sequence)

    def check_refused(self, header: BatchHeader) -> None:
        """Raise if a batch before this one was not written.

        It is waited for only while it may come. Clients send again in order, so what comes a second time, and
        that batch has not come before it, shows that it was given up: this one is out of order then.
        """
        sequence = header.base_sequence
        refused = self._refused.get(header.producer_id) if self._refused else None
        if (
            refused is None
            or refused.epoch != header.producer_epoch
            or not _is_behind(sequence, refused.sequence)
        ):
            return
        if refused.told_to != NONE and not _is_behind(sequence, refused.told_to):
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} sent sequence {sequence} in epoch {refused.epoch} again, but"
                f" {refused.sequence}, which could not be written, does not come"
            )
        refused.told_to = sequence
        raise refused.error.again()

    def take_refused(self, before: ProducerState) -> None:
        """Keep what was noted in a state that this one takes the place of: the batches are still to come."""
        self._refused = before._refused

    def _forget_refused(self, header: BatchHeader) -> None:
        """Something of the producer is in the log now: also what was refused, or what comes after it?"""
        refused, epoch = self._refused.get(header.producer_id), header.producer_epoch
        if refused is not None and (
            epoch > refused.epoch
            or (epoch == refused.epoch and not _is_behind(refused.sequence, header.last_sequence))
        ):
            del self._refused[header.producer_id]

    def check_marker(self, header: BatchHeader, marker: ControlMarker, transaction_version: int) -> None:
        """Whether a coordinator's end marker may follow; raises if it may not.

        From transaction version 2 on (KIP-890) a marker's epoch must be above the producer's,
        unless it repeats the marker that already closed the transaction.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return
        epoch = header.producer_epoch
        is_repeat = epoch == producer.epoch and producer.transaction_start == NONE
        if epoch < producer.epoch or (transaction_version >= 2 and epoch == producer.epoch and not is_repeat):
            raise InvalidProducerEpoch(
                f"an end marker of producer {header.producer_id} has epoch {epoch};"
                f" epoch {producer.epoch} is known"
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"an end marker of coordinator epoch {marker.coordinator_epoch} came after one of"
                f" {producer.coordinator_epoch}"
            )

    def add(self, header: BatchHeader, first_offset: int, last_offset: int) -> None:
        """Note a producer's data batch that the log now holds."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            producer = self.producers[header.producer_id] = Producer(header.producer_id)
        if self._refused:
            self._forget_refused(header)
        if header.producer_epoch != producer.epoch:
            producer.adopt_epoch(header.producer_epoch)
        timestamp = header.max_timestamp
        if header.base_sequence != NONE:
            batches = producer.batches
            sent = SentBatch(header.last_sequence, last_offset, last_offset - first_offset, timestamp)
            batches.append(sent)
            if len(batches) > REMEMBERED_BATCHES:
                del batches[0]
        producer.last_timestamp = timestamp
        producer.silent_since_ms = NONE
        if header.is_transactional and producer.transaction_start == NONE:
            producer.transaction_start = first_offset
            self._open[first_offset] = producer.producer_id
            self._first_open = min(self._first_open, first_offset)

    def end(self, header: BatchHeader, marker: ControlMarker, offset: int) -> CompletedTransaction | None:
        """Note an end marker at `offset` that the log now holds; the transaction that it closed, if any."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            producer = self.producers[header.producer_id] = Producer(header.producer_id)
        producer.adopt_epoch(header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.silent_since_ms = NONE
        first_offset = producer.transaction_start
        if first_offset == NONE:
            return None
        producer.transaction_start = NONE
        return CompletedTransaction(producer.producer_id, first_offset, offset, not marker.is_commit)

    def last_stable_before(self, completed: CompletedTransaction) -> int:
        """The last stable offset once `completed` is done: where the next open transaction starts."""
        for first_offset in self._open:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """Close a transaction. It holds the last stable offset back until its marker is committed."""
        self._open.pop(completed.first_offset, None)
        self._first_open = next(iter(self._open), _NOWHERE)
        if completed.last_offset >= self._committed:
            self._decided.extend((completed.first_offset, completed.last_offset))

    def note_committed(self, high_watermark: int) -> None:
        """All markers below the high watermark are committed: they hold back nothing any more."""
        self._committed = high_watermark
        decided = self._decided
        if decided and decided[1] < high_watermark:
            left = array("q")
            for at in range(0, len(decided), 2):
                if decided[at + 1] >= high_watermark:
                    left.extend(decided[at : at + 2])
            self._decided = left

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where every transaction is decided, and the decision committed. In any thread."""
        stable = min(high_watermark, self._first_open)
        decided = self._decided
        for at in range(0, len(decided) - 1, 2):
            if decided[at] < stable and decided[at + 1] >= high_watermark:
                stable = decided[at]
        return stable

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the producers that have been silent for `expiration_ms`, by the calls of this.

        And the batches that were not written and have not come again.
        """
        gone = [
            producer.producer_id
            for producer in self.producers.values()
            if producer.is_expired(now_ms, expiration_ms)
        ]
        for producer_id in gone:
            del self.producers[producer_id]
        for producer_id in [id_ for id_, refused in self._refused.items() if refused.is_expired(now_ms)]:
            del self._refused[producer_id]
