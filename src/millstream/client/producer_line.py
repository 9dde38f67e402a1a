"""The batches of one partition, in the order in which they are to be written."""

from __future__ import annotations

from collections import deque

from millstream.client.batch_builder import UNNUMBERED, Batch
from millstream.client.connection import Connection

SEQUENCES = 2**31
MAX_EPOCH = 32767


class Line:
    """A partition's batches: those `queue`d, of which the last may be open, and those `in_flight`.

    Batches leave the queue in order and come back to where they were. What keeps order and avoids doubles:

    - Batches in flight are all on one connection.
    - One that is sent again goes alone, as does the first of an epoch: a broker that knows nothing of a
      producer takes any sequence, and would take the second batch after it had refused the first.
    - A sequence is given once. Only after the broker refused the oldest batch, which shows that it has none
      of those behind, does the line start anew: with a higher epoch, from sequence 0.
    """

    __slots__ = (
        "in_flight",
        "in_flight_on",
        "index",
        "is_confirmed",
        "must_restart",
        "needs_leader",
        "next_number",
        "next_sequence",
        "open",
        "producer_epoch",
        "producer_id",
        "queue",
        "retry_at",
        "topic",
    )

    def __init__(self, topic: str, index: int) -> None:
        self.topic = topic
        self.index = index
        self.queue: deque[Batch] = deque()
        self.open: Batch | None = None
        self.in_flight: deque[Batch] = deque()
        self.in_flight_on: Connection | None = None
        self.next_number = 0.0
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.is_confirmed = False
        self.must_restart = False
        self.needs_leader = False
        self.retry_at = 0.0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    def may_send(self, max_in_flight: int, *, is_idempotent: bool) -> bool:
        """Whether the oldest queued batch may leave while others of this line are in flight."""
        if not self.in_flight:
            return True
        if not is_idempotent or self.must_restart or not self.is_confirmed or self.queue[0].attempts:
            return False
        return len(self.in_flight) < max_in_flight

    def take(self) -> Batch:
        """The oldest queued batch; an open one is closed. The buffer's lock is held."""
        batch = self.queue.popleft()
        if batch is self.open:
            self.open = None
        return batch

    def number(self, batch: Batch, producer_id: int, producer_epoch: int, *, is_transactional: bool) -> None:
        """Give a batch that leaves its producer and sequence, unless it has them already.

        A transactional producer has one epoch in all partitions, the coordinator's; others raise theirs by
        themselves, in each partition where it is needed (KIP-360).
        """
        if batch.base_sequence != UNNUMBERED:
            return
        if all(sent.is_done for sent in self.in_flight):  # a request outlives what timed out in it
            if self.producer_id != producer_id or (
                is_transactional and self.producer_epoch != producer_epoch
            ):
                self._begin(producer_id, producer_epoch)
            elif self.must_restart:
                self._begin(producer_id, self.producer_epoch + 1)
        batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
        batch.base_sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.count) % SEQUENCES

    def _begin(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.is_confirmed = self.must_restart = False

    def restart(self) -> None:
        """Let a higher epoch begin with the next batch that leaves: the broker has none of those queued."""
        self.must_restart = True
        for batch in list(self.queue):  # other threads add to it
            batch.forget_sequence()

    @property
    def is_exhausted(self) -> bool:
        """Whether a restart needs another producer id, since no epoch is left."""
        return self.must_restart and self.producer_epoch >= MAX_EPOCH

    def is_oldest(self, batch: Batch) -> bool:
        """Whether everything before `batch` is done."""
        others = (*self.in_flight, *self.queue)
        return all(other.number >= batch.number for other in others)

    def put_back(self, batch: Batch) -> None:
        """Queue a batch again, where its number says. The buffer's lock is held."""
        if self.must_restart:
            batch.forget_sequence()
        place = 0
        for queued in self.queue:
            if queued.number > batch.number:
                break
            place += 1
        self.queue.insert(place, batch)
