"""What a shard does by itself: it aborts transactions that take too long and forgets unused ids."""

from __future__ import annotations

import logging
from typing import NamedTuple

from millstream.clock import Clock
from millstream.coordinator.shard import Entry, Result, Timers
from millstream.coordinator.transactions.settings import Settings
from millstream.coordinator.transactions.transaction import Status, Transaction, tombstone

log = logging.getLogger(__name__)

MAX_LOOKED_AT = 2000
"""How many ids are looked at before other work gets its turn."""

MAX_ENTRY_BYTES = 256 * 1024
"""How much is written at once."""

TIMEOUTS = "time-outs"
EXPIRY = "expiry"


class _Deadline(NamedTuple):
    """When a transaction's time is over, and which one that is: it began so long ago."""

    started_ms: int
    at_s: float


class Upkeep:
    """Looks at the transactions of one shard, time and again."""

    def __init__(
        self,
        transactions: dict[str, Transaction],
        ongoing: dict[str, None],
        timers: Timers,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._transactions = transactions
        self._ongoing = ongoing
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._left: list[str] = []
        self._deadlines: dict[str, _Deadline] = {}

    def begin(self) -> None:
        """Look after the next intervals."""
        self._timers.set(TIMEOUTS, self._settings.timeout_check_ms, self._abort_late)
        self._timers.set(EXPIRY, self._settings.expiration_check_ms, self._start_expiry)

    def _abort_late(self) -> Result[None]:
        """Abort what takes longer than its producer said it would; the producer is fenced."""
        self._timers.set(TIMEOUTS, self._settings.timeout_check_ms, self._abort_late)
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        for ended in self._deadlines.keys() - self._ongoing.keys():
            del self._deadlines[ended]
        entries: list[Entry] = []
        nbytes = 0
        for transactional_id in self._ongoing:
            transaction = self._transactions[transactional_id]
            if self._deadline(transaction, now_ms, now_s) < now_s:
                log.info("the transaction of %r is aborted: it took too long", transactional_id)
                entry = transaction.fenced(now_ms).to_entry()
                entries.append(entry)
                nbytes += len(entry.value or b"")
                if nbytes > MAX_ENTRY_BYTES:
                    self._timers.set_idle(TIMEOUTS, self._abort_late)
                    break
        return Result(None, entries, is_atomic=False)

    def _deadline(self, transaction: Transaction, now_ms: int, now_s: float) -> float:
        """Until when a transaction may last, by a clock that does not jump.

        How much of its time is left by the wall clock counts once, when it is first looked at: after that the
        clock may be set, and before, another broker's may have been wrong.
        """
        known = self._deadlines.get(transaction.transactional_id)
        if known is None or known.started_ms != transaction.started_ms:
            left_ms = transaction.started_ms + transaction.timeout_ms - now_ms
            at_s = now_s + min(max(left_ms, -1), transaction.timeout_ms) / 1000
            known = self._deadlines[transaction.transactional_id] = _Deadline(transaction.started_ms, at_s)
        return known.at_s

    def _start_expiry(self) -> Result[None]:
        self._left = list(self._transactions)
        self._timers.set_idle(EXPIRY, self._go_on)
        return Result(None)

    def _go_on(self) -> Result[None]:
        latest_ms = self._clock.now_ms() - self._settings.expiration_ms
        entries: list[Entry] = []
        for _ in range(min(MAX_LOOKED_AT, len(self._left))):
            transaction = self._transactions.get(self._left.pop())
            if transaction is not None and _is_idle(transaction) and transaction.updated_ms <= latest_ms:
                entries.append(tombstone(transaction.transactional_id))
        if self._left:
            self._timers.set_idle(EXPIRY, self._go_on)
        else:
            self._timers.set(EXPIRY, self._settings.expiration_check_ms, self._start_expiry)
        return Result(None, entries, is_atomic=False)


def _is_idle(transaction: Transaction) -> bool:
    return transaction.status is Status.EMPTY or transaction.is_complete
