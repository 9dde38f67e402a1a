"""The transactions of a producer, as its callers see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.client.group_metadata import GroupMetadata
from millstream.client.producer_coordinator import Offsets
from millstream.client.producer_identity import HandedOver
from millstream.client.producer_settings import ProducerSettings
from millstream.client.transactions_client import State, TransactionFailed, Transactions
from millstream.deadline import Deadline
from millstream.errors import InvalidTxnState, KafkaError, ProducerFenced


class TransactionalFace:
    """What AsyncProducer has for transactions; it fills in `_transactions` when it starts."""

    settings: ProducerSettings
    _transactions: Transactions | None = None

    def _check_running(self) -> None:
        raise NotImplementedError

    @property
    def _open_transactions(self) -> Transactions:
        self._check_running()
        if self._transactions is None:
            raise InvalidTxnState("a producer without a transactional_id has no transactions")
        return self._transactions

    @asynccontextmanager
    async def transaction(self, timeout: float | None = None) -> AsyncIterator[None]:
        """A transaction for the length of an `async with`: committed at its end, aborted after an error.

        `timeout` is that of the commit or the abort, `max_block_ms` where none is given.
        """
        self.begin_transaction()
        try:
            yield
        except BaseException:
            await self._abort_after_error(timeout)
            raise
        try:
            await self.commit_transaction(timeout)
        except TransactionFailed as failure:
            await self._abort_after_error(timeout)
            raise failure.__cause__ or failure from None

    async def _abort_after_error(self, timeout: float | None) -> None:
        """Abort, unless another producer has the id; the error that led here is the one to tell."""
        try:
            await self.abort_transaction(timeout)
        except KafkaError as error:
            if not isinstance(error, ProducerFenced):
                raise

    def begin_transaction(self) -> None:
        """Let the records and offsets from now on be written together or not at all."""
        self._open_transactions.begin()

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Write all records of the transaction and commit it.

        TransactionFailed says that it can only be aborted. After a RequestTimedOut the outcome is open, and
        committing may be tried again.
        """
        await self._open_transactions.commit(Deadline(self._block_seconds(timeout) * 1000))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Let nothing of the transaction be seen by readers of committed records."""
        await self._open_transactions.abort(Deadline(self._block_seconds(timeout) * 1000))

    async def hand_over_transaction(self, timeout: float | None = None) -> HandedOver | None:
        """Write all records of the transaction and leave it open, for another process to end.

        The producer can only be closed then. None: nothing was sent, so nothing is open.
        """
        return await self._open_transactions.hand_over(Deadline(self._block_seconds(timeout) * 1000))

    async def send_offsets(
        self, offsets: Offsets, group: str | GroupMetadata, timeout: float | None = None
    ) -> None:
        """Commit a group's offsets with the transaction: for what was read, worked on and is written in it.

        An offset is that of the next record to read. With a consumer's group metadata, a consumer that is no
        member any more is refused.
        """
        member = GroupMetadata(group) if isinstance(group, str) else group
        deadline = Deadline(self._block_seconds(timeout) * 1000)
        await self._open_transactions.send_offsets(offsets, member, deadline)

    async def _abort_at_the_end(self, deadline: Deadline) -> None:
        """Abort what is open when the producer is closed, as well as it goes; the cluster would, later."""
        if self._transactions is not None and self._transactions.state is State.OPEN:
            try:
                await self._transactions.abort(deadline)
            except KafkaError:
                pass

    def _block_seconds(self, timeout: float | None) -> float:
        return self.settings.max_block_ms / 1000 if timeout is None else timeout
