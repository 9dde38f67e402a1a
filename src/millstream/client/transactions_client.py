"""Transactions of a producer: what may be done when, and what errors lead to.

ready -> open -> flushing -> committing -> ready
           \\------> aborting -> ready        after an error of a record or an offset, only this way
           \\------> lost                     handed over: another process ends it
any state -> lost                             another producer has the transactional id
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from millstream.client.batch_builder import UNNUMBERED, Batch
from millstream.client.group_metadata import GroupMetadata
from millstream.client.producer_buffer import RecordBuffer
from millstream.client.producer_coordinator import LAST_PRODUCE_1, Offsets, TransactionCoordinator
from millstream.client.producer_delivery import settled
from millstream.client.producer_identity import HandedOver
from millstream.client.producer_line import Line
from millstream.deadline import Deadline
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    MillstreamError,
    ProducerFenced,
    RequestTimedOut,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
)
from millstream.model import TopicPartition

FATAL = (
    ProducerFenced,
    InvalidProducerIdMapping,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
)
"""The transactional id is another's, or not this producer's any more: nothing can be done."""

EXPIRED = (
    "the cluster does not know its transactional id any more, as when it was used for no transaction in "
    "transactional.id.expiration.ms: make a new producer with the same transactional_id"
)
UNDECIDED = "a commit was begun and nobody knows how it ended: commit again"


class TransactionAborted(MillstreamError):
    """The record's transaction was aborted, and the record not written."""


class TransactionFailed(MillstreamError):
    """Something in the transaction went wrong, which its cause says: it can only be aborted."""


class NoTransaction(MillstreamError):
    """A transactional producer sends within a transaction only: `with producer.transaction():`."""


class State(Enum):
    READY = "ready"
    OPEN = "open"
    FLUSHING = "flushing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    LOST = "lost"


RUNNING = (State.OPEN, State.FLUSHING, State.COMMITTING)
"""While records of the transaction may be written."""


class Transactions:
    """The transactions of one producer, one after the other. Belongs to the loop, but for `check_open`."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        buffer: RecordBuffer,
        *,
        wake: Callable[[], None],
        flush: Callable[[float], Awaitable[None]],
    ) -> None:
        self._coordinator = coordinator
        self._buffer = buffer
        self._wake = wake
        self._flush = flush
        self.state = State.READY
        self.error: Exception | None = None
        self.number = 0
        """How many were begun: which one it is that rows on their way belong to."""
        self._is_started = False
        self._must_raise_epoch = False
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._committing: set[asyncio.Future[None]] = set()
        self._adding: asyncio.Task[None] | None = None
        self._wanted: set[TopicPartition] = set()
        self._max_block_ms = 60_000.0

    async def init(self, deadline: Deadline) -> None:
        """Take the transactional id; what an earlier owner left open is aborted."""
        self._max_block_ms = deadline.timeout_ms
        await self._coordinator.init(deadline)

    @property
    def max_produce_version(self) -> int | None:
        return None if self._coordinator.is_version_2 else LAST_PRODUCE_1

    # ---------------------------------------------------------------- for those who send

    def check_open(self, number: int | None = None) -> None:
        """Raise unless a record may be sent now; in the transaction of this number, if one is given."""
        if self.state is State.LOST:
            raise self._lost()
        if self.state is not State.OPEN or number not in (None, self.number):
            raise NoTransaction(NoTransaction.__doc__)
        if self.error is not None:
            raise TransactionFailed(f"the transaction has to be aborted: {self.error}") from self.error

    def may_send(self, line: Line) -> bool:
        """Whether a line's partition is part of the transaction; if not, it is made one."""
        if self.error is not None or self.state not in RUNNING:
            return False
        partition = TopicPartition(line.topic, line.index)
        if self._coordinator.is_version_2 or partition in self._added:
            self._is_started = True
            return True
        self._wanted.add(partition)
        if self._adding is None:
            self._adding = asyncio.ensure_future(self._add_partitions())
        return False

    async def _add_partitions(self) -> None:
        try:
            while self._wanted:
                partitions, self._wanted = self._wanted, set()
                await self._coordinator.add_partitions(partitions, Deadline(self._max_block_ms))
                self._is_started = True
                self._added |= partitions
        except KafkaError as error:
            self._fail(error)
        finally:
            self._adding = None
            self._wake()

    def may_retry(self, _: Batch) -> bool:
        return self.error is None and self.state in RUNNING

    def on_refused(self, batch: Batch, error: Exception) -> None:
        """A batch failed: nothing but an abort can follow."""
        if batch.base_sequence != UNNUMBERED:
            self._must_raise_epoch = True
        if self.state in RUNNING:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, FATAL):
            self.state = State.LOST
        if isinstance(error, InvalidProducerIdMapping):
            error.add_note(EXPIRED)
        self.error = self.error or error
        self._drop()

    def _drop(self) -> None:
        lines = list(self._buffer.active)
        if any(batch.base_sequence != UNNUMBERED for line in lines for batch in list(line.queue)):
            self._must_raise_epoch = True  # their sequences were given and may never be written
        reason = "the transaction is aborted" + (f": {self._reason}" if self.error else "")
        self._buffer.drop(lines, TransactionAborted(reason))

    def _lost(self) -> Exception:
        return ProducerFenced(f"this producer cannot go on: {self._reason}")

    @property
    def _reason(self) -> str:
        return EXPIRED if isinstance(self.error, InvalidProducerIdMapping) else str(self.error)

    # ---------------------------------------------------------------- steps

    def begin(self) -> None:
        if self.state is State.LOST:
            raise self._lost()
        if self.state is State.COMMITTING:
            raise InvalidTxnState(UNDECIDED)
        if self.state is not State.READY:
            raise InvalidTxnState("a transaction is open already")
        self.number += 1
        self.state = State.OPEN
        self.error = None
        self._is_started = self._must_raise_epoch = False
        self._added.clear()
        self._groups.clear()

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata, deadline: Deadline) -> None:
        """Commit a group's offsets with the transaction."""
        self.check_open()
        if not offsets:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing.add(done)
        try:
            if not self._coordinator.is_version_2 and group.group not in self._groups:
                await self._coordinator.add_offsets(group.group, deadline)
                self._groups.add(group.group)
            self._is_started = True
            await self._coordinator.commit_offsets(offsets, group, deadline)
        except KafkaError as error:
            self._fail(error)
            raise
        except asyncio.CancelledError:
            # It may be on its way still, so that only an epoch that shuts it out may follow.
            self._must_raise_epoch = True
            self._fail(RequestTimedOut("sending offsets was given up half-way"))
            raise
        finally:
            self._committing.discard(done)
            done.set_result(None)

    async def _offsets_sent(self, deadline: Deadline) -> None:
        """Wait for those who send offsets at this moment: they must not come after the end."""
        if self._committing:
            _, left = await asyncio.wait(self._committing, timeout=deadline.remaining_ms / 1000)
            if left:
                raise RequestTimedOut(f"offsets were not sent in {deadline.timeout_ms:.0f} ms")

    async def commit(self, deadline: Deadline) -> None:
        """Write all records and commit.

        After a RequestTimedOut the outcome is open; it may be asked for again.
        """
        if self.state is State.LOST:
            raise self._lost()
        if self.state not in (State.OPEN, State.COMMITTING):
            raise InvalidTxnState("no transaction is open")
        if self.state is State.OPEN:
            await self._write_all(deadline)
        self._check_alive()
        self.state = State.COMMITTING
        if self._is_started:
            await self._end(deadline, is_commit=True)
        self.state = State.READY

    async def _write_all(self, deadline: Deadline) -> None:
        """Write what was sent. What other threads send meanwhile is refused: it might come too late."""
        with self._buffer.lock:
            self.state = State.FLUSHING
        try:
            await self._flush(deadline.remaining_ms / 1000)
            await self._offsets_sent(deadline)
        finally:
            if self.state is State.FLUSHING:
                self.state = State.OPEN

    async def hand_over(self, deadline: Deadline) -> HandedOver | None:
        """Write all records and leave the transaction open, for others to end; the producer is through.

        None: nothing was sent, so nothing is open.
        """
        self.check_open()
        await self._write_all(deadline)
        self._check_alive()
        self.state = State.LOST
        self.error = InvalidTxnState("its transaction was handed over")
        return self._coordinator.handed_over() if self._is_started else None

    def _check_alive(self) -> None:
        if self.state is State.LOST:
            raise self._lost()
        if self.error is not None:
            raise TransactionFailed(f"the transaction has to be aborted: {self.error}") from self.error

    async def abort(self, deadline: Deadline) -> None:
        """Let everything since `begin` be as if it had not been sent."""
        if self.state is State.LOST:
            raise self._lost()
        if self.state is State.COMMITTING:
            raise InvalidTxnState(UNDECIDED)
        if self.state not in (State.OPEN, State.ABORTING):
            raise InvalidTxnState("no transaction is open")
        with self._buffer.lock:  # what other threads send is dropped below, or refused
            self.state = State.ABORTING
        self._drop()
        for place in list(self._buffer.topics.values()):
            if place.aside:
                self._buffer.fail_topic(place.name, TransactionAborted("the transaction is aborted"))
        if self._adding is not None:
            done, _ = await asyncio.wait([self._adding], timeout=deadline.remaining_ms / 1000)
            if not done:
                raise RequestTimedOut(f"not aborted in {deadline.timeout_ms:.0f} ms")
        await settled(list(self._buffer.incomplete), deadline.remaining_ms / 1000)
        await self._offsets_sent(deadline)
        if self._is_started:
            await self._end(deadline, is_commit=False)
            self._is_started = False  # who repeats this has nothing to end
        if self._must_raise_epoch and not self._coordinator.is_version_2:
            await self._fatal_if(self._coordinator.init(deadline, is_known=True))
        self.state = State.READY
        self.error = None

    async def _end(self, deadline: Deadline, *, is_commit: bool) -> None:
        await self._fatal_if(self._coordinator.end(deadline, is_commit=is_commit))

    async def _fatal_if(self, work: Awaitable[None]) -> None:
        try:
            await work
        except InvalidProducerEpoch as error:
            self._fail(ProducerFenced(error.message))
            raise self._lost() from error
        except FATAL as error:
            self._fail(error)
            raise self._lost() from error
        except RequestTimedOut:
            raise
        except KafkaError as error:
            self.error = self.error or error
            if self.state is State.COMMITTING:
                self.state = State.OPEN  # the coordinator refused: it is to be aborted
                raise TransactionFailed(f"the transaction has to be aborted: {error}") from error
            self.state = State.LOST
            raise
