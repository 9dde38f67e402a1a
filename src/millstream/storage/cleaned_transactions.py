"""Transactions as compaction meets them, batch by batch in offset order.

Records of an aborted transaction go at once. A marker goes only when no batch of its transaction was
met any more, and with it the entry in the transaction index; until then both stay, so that a reader
that still holds the records knows what became of them.

The kernel follows committed transactions by itself; it asks here where one may be an aborted one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millstream.protocol.batch import BatchHeader, ControlMarker
from millstream.protocol.walk_kernel import ABORTED, ABORTING, KEPT, OpenTransactions
from millstream.storage.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from millstream.storage.log import Log

_NEVER: Final = (1 << 63) - 1


def aborted_between(log: Log, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions with records or markers in [start_offset, end_offset)."""
    return [
        entry
        for segment in log.segments.between(start_offset, log.end_offset)
        for entry in segment.transaction_index.entries()
        if entry.last_offset >= start_offset and entry.first_offset < end_offset
    ]


class CleanedTransactions:
    """Which transactions are open at the batch that a walk over a log has reached."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.open = OpenTransactions()
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._expect_next()

    def _expect_next(self) -> None:
        self.open.expect(self._waiting[-1].first_offset if self._waiting else _NEVER)

    def _reach(self, offset: int) -> None:
        if not self._waiting or self._waiting[-1].first_offset > offset:
            return
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborting[entry.producer_id] = entry
            self.open.put(entry.producer_id, ABORTING)
        self._expect_next()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a transactional batch of records is one of an aborted transaction."""
        self._reach(header.last_offset)
        is_aborted = self.open.state(header.producer_id) in (ABORTED, ABORTING)
        self.open.put(header.producer_id, ABORTED if is_aborted else KEPT)
        return is_aborted

    def end(
        self, header: BatchHeader, marker: ControlMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Whether a marker is all that is left of its transaction; the index entry that it still needs."""
        self._reach(header.last_offset)
        if marker is None:
            return False, None  # a control batch of a kind that is not known here
        aborted = None if marker.is_commit else self._aborting.pop(header.producer_id, None)
        is_met = self.open.state(header.producer_id) in (KEPT, ABORTED)
        self.open.put(header.producer_id, 0)
        return (False, aborted) if is_met else (True, None)
