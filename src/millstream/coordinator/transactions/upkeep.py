"""What a shard does by itself: it aborts transactions that take too long and forgets unused ids."""

from __future__ import annotations

import logging
from typing import Any

from millstream.clock import Clock
from millstream.coordinator.rounds import Rounds
from millstream.coordinator.shard import Entry, Result, Timers
from millstream.coordinator.transactions.settings import Settings
from millstream.coordinator.transactions.transaction import Status, Transaction, tombstone

log = logging.getLogger(__name__)

STEP = 2000
"""How many ids are looked at before other work gets its turn."""

STEP_BYTES = 256 * 1024
"""How much is written at once."""

TIMEOUTS = "time-outs"
EXPIRY = "expiry"


class Upkeep:
    """Looks at the transactions of one shard, time and again."""

    def __init__(
        self, transactions: dict[str, Transaction], timers: Timers, clock: Clock, settings: Settings
    ) -> None:
        self._transactions = transactions
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._timeouts = Rounds(TIMEOUTS, timers, STEP)
        self._expiry = Rounds(EXPIRY, timers, STEP)
        self._deadlines: dict[str, float] = {}
        """Until when each open transaction may last, by a clock that does not jump."""

    # What happens to transactions

    def begun(self, transaction: Transaction) -> None:
        """A transaction is open, and if it was not before, all of its time is left."""
        if transaction.transactional_id not in self._deadlines:
            self._set_deadline(transaction, transaction.timeout_ms)

    def loaded(self, transaction: Transaction) -> None:
        """A transaction came back from the log, open: how much of its time is left the wall clock says.

        That counts this once: later the clock may be set, and before, another broker's may have been wrong.
        """
        left_ms = transaction.started_ms + transaction.timeout_ms - self._clock.now_ms()
        self._set_deadline(transaction, min(max(left_ms, -1), transaction.timeout_ms))

    def _set_deadline(self, transaction: Transaction, left_ms: int) -> None:
        self._deadlines[transaction.transactional_id] = self._clock.monotonic() + left_ms / 1000

    def ended(self, transactional_id: str) -> None:
        """A transaction is not open any more, if it was."""
        self._deadlines.pop(transactional_id, None)

    # What is done about them

    def begin(self) -> None:
        """Look after the next intervals."""
        self._look_later()
        self._expire_later()

    def _look_later(self) -> None:
        self._timers.set(TIMEOUTS, self._settings.timeout_check_ms, self._start_timeouts)

    def _expire_later(self) -> None:
        self._timers.set(EXPIRY, self._settings.expiration_check_ms, self._start_expiry)

    def _start_timeouts(self) -> Result[Any]:
        """Abort what takes longer than its producer said it would; the producer is fenced."""
        return self._timeouts.begin(self._deadlines, self._aborted, self._look_later)

    def _aborted(self, transactional_id: str) -> tuple[list[Entry], int]:
        deadline = self._deadlines.get(transactional_id)
        if deadline is None or deadline >= self._clock.monotonic():
            return [], 0
        log.info("the transaction of %r is aborted: it took too long", transactional_id)
        entry = self._transactions[transactional_id].fenced(self._clock.now_ms()).to_entry()
        return [entry], len(entry.value or b"") * STEP // STEP_BYTES

    def _start_expiry(self) -> Result[Any]:
        return self._expiry.begin(self._transactions, self._expired, self._expire_later)

    def _expired(self, transactional_id: str) -> tuple[list[Entry], int]:
        transaction = self._transactions.get(transactional_id)
        latest_ms = self._clock.now_ms() - self._settings.expiration_ms
        if transaction is None or not _is_idle(transaction) or transaction.updated_ms > latest_ms:
            return [], 0
        return [tombstone(transactional_id)], 0


def _is_idle(transaction: Transaction) -> bool:
    return transaction.status is Status.EMPTY or transaction.is_complete
