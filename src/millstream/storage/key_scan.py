"""Putting the keys of a log's dirty part into an OffsetMap."""

from __future__ import annotations

from millstream.protocol.batch import BatchHeader
from millstream.protocol.header import GOOD, REASONS
from millstream.protocol.offset_map_kernel import OffsetMap
from millstream.protocol.walk_kernel import FULL
from millstream.storage.batch_walk import Uncleanable
from millstream.storage.cleaned_transactions import CleanedTransactions
from millstream.storage.payloads import Payloads
from millstream.storage.replay import read_marker


class KeyScan:
    """Takes batches of records: their keys count, unless they are of an aborted transaction."""

    def __init__(self, offsets: OffsetMap, transactions: CleanedTransactions, payloads: Payloads) -> None:
        self.is_full = False
        self._offsets = offsets
        self._transactions = transactions
        self._payloads = payloads

    @property
    def stop(self) -> int:
        return self._offsets.stop

    def take_many(self, chunk: memoryview, start: int) -> int:
        return self._offsets.add_batches(chunk, start, len(chunk), self._transactions.open)

    def take_one(self, batch: memoryview, header: BatchHeader) -> bool:
        offsets = self._offsets
        if header.is_control:
            self._transactions.end(header, read_marker(batch))
        elif header.is_transactional and self._transactions.is_aborted(header):
            pass
        elif header.last_offset >= offsets.first_offset:
            self._put(batch, header)
        if self.is_full:
            return False
        offsets.begin(header.next_offset)
        offsets.reach(header.last_offset)
        return True

    def make_room(self) -> bool:
        self.is_full = True
        return False

    def _put(self, batch: memoryview, header: BatchHeader) -> None:
        payload, start = self._payloads.of(batch, header)
        error_kind = self._offsets.add_records(payload, start, header)
        if error_kind == FULL:
            self.is_full = True
        elif error_kind != GOOD:
            raise Uncleanable(f"the batch at offset {header.base_offset}: {REASONS[error_kind]}")
