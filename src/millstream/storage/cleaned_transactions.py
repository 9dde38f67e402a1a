"""Transactions as compaction meets them, batch by batch in offset order.

Records of an aborted transaction go at once. A marker goes only when no batch of its transaction was
met any more, and with it the entry in the transaction index; until then both stay, so that a reader
that still holds the records knows what became of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.protocol.batch import BatchHeader, ControlMarker
from millstream.storage.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from millstream.storage.log import Log


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
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._is_met: set[int] = set()
        """The producers of whose open transaction a batch was met."""

    def _reach(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborting.setdefault(entry.producer_id, entry)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a transactional batch of records is one of an aborted transaction."""
        self._reach(header.last_offset)
        self._is_met.add(header.producer_id)
        return header.producer_id in self._aborting

    def end(
        self, header: BatchHeader, marker: ControlMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Whether a marker is all that is left of its transaction; the index entry that it still needs."""
        self._reach(header.last_offset)
        if marker is None:
            return False, None  # a control batch of a kind that is not known here
        aborted = None if marker.is_commit else self._aborting.pop(header.producer_id, None)
        if header.producer_id not in self._is_met:
            return True, None
        self._is_met.remove(header.producer_id)
        return False, aborted
