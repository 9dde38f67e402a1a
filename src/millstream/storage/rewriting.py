"""Writing batches anew without the records that compaction drops.

The kernel does this for plain batches. What is compressed is unpacked here, and packed again with its
codec only if it changed; markers and records of transactions are judged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from millstream.protocol.batch import HEADER_SIZE, BatchHeader, seal
from millstream.protocol.compression import compress
from millstream.protocol.filter_kernel import NAMELESS, NOTHING, BatchFilter
from millstream.protocol.header import CODEC_MASK, CONTROL, DELETE_HORIZON, GOOD, REASONS, TRANSACTIONAL
from millstream.storage.batch_walk import Uncleanable
from millstream.storage.cleaned_segment import CleanedSegment
from millstream.storage.cleaned_transactions import CleanedTransactions
from millstream.storage.disk import Buffer
from millstream.storage.payloads import Payloads
from millstream.storage.replay import read_marker

_HEADER: Final = Struct(">qiibIhiqqqhii")
_NO_TIMESTAMP: Final = -1


class Rewriting:
    """Takes the batches of a run of segments and writes those that stay to a cleaned one."""

    def __init__(
        self,
        cleaned: CleanedSegment,
        batches: BatchFilter,
        transactions: CleanedTransactions,
        payloads: Payloads,
        marker_epochs: Mapping[int, int],
        now_ms: int,
    ) -> None:
        """`marker_epochs`: the epochs of producers of whom only a marker is known."""
        self.written_bytes = 0
        self._cleaned = cleaned
        self._batches = batches
        self._transactions = transactions
        self._payloads = payloads
        self._marker_epochs = marker_epochs
        self._now_ms = now_ms

    @property
    def stop(self) -> int:
        return self._batches.stop

    def take_many(self, chunk: memoryview, start: int) -> int:
        return self._batches.copy_batches(chunk, start, len(chunk))

    def make_room(self) -> bool:
        self.written_bytes += self._cleaned.write(self._batches)
        return True

    def take_one(self, batch: memoryview, header: BatchHeader) -> bool:
        if header.is_control:
            kept = self._take_marker(batch, header)
        elif header.is_transactional and self._transactions.is_aborted(header):
            kept = self._drop(batch, header)
        else:
            kept = self._select(batch, header)
        self._batches.passed(header.last_offset, header.count, kept)
        return True

    def _take_marker(self, batch: memoryview, header: BatchHeader) -> int:
        if not header.count:
            return self._drop(batch, header)
        can_go, aborted = self._transactions.end(header, read_marker(batch))
        if aborted is not None:
            self._cleaned.add_aborted(aborted)
        if not can_go or self._marker_epochs.get(header.producer_id) == header.producer_epoch:
            return self._emit(batch, header)
        if not header.has_delete_horizon:
            return self._select(batch, header, needs_horizon=True)
        if header.base_timestamp > self._now_ms:
            return self._emit(batch, header)
        return self._drop(batch, header)

    def _select(self, batch: memoryview, header: BatchHeader, *, needs_horizon: bool = False) -> int:
        """Keep the records that stay; a marker, which needs a horizon, stays whole."""
        batches = self._batches
        payload, start = self._payloads.of(batch, header)
        error_kind = batches.select(payload, start, header, needs_horizon, needs_horizon)
        if error_kind != GOOD:
            raise Uncleanable(f"the batch at offset {header.base_offset}: {REASONS[error_kind]}")
        if not batches.kept:
            return self._drop(batch, header)
        if batches.kept == header.count and not batches.rebased:
            return self._emit(batch, header)
        packed = batches.selected()
        if header.codec:
            packed = memoryview(bytes(HEADER_SIZE) + bytes(compress(header.codec, packed[HEADER_SIZE:])))
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if batches.rebased:
            attributes, base_timestamp = attributes | DELETE_HORIZON, batches.horizon_ms
        changed = header._replace(
            size=len(packed),
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=batches.largest,
            count=batches.kept,
        )
        return self._write(changed, packed)

    def _drop(self, batch: memoryview, header: BatchHeader) -> int:
        """Keep no record, and the header only where it is needed."""
        stays = self._batches.keeps_empty(header.last_offset)
        if stays != NOTHING:
            empty = header._replace(
                size=HEADER_SIZE,
                attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
                base_timestamp=_NO_TIMESTAMP,
                count=0,
            )
            if stays == NAMELESS:
                empty = empty._replace(
                    attributes=empty.attributes & ~(TRANSACTIONAL | CONTROL),
                    producer_id=-1,
                    producer_epoch=-1,
                    base_sequence=-1,
                )
            self._write(empty, batch[:HEADER_SIZE])
        return 0

    def _write(self, header: BatchHeader, packed: memoryview) -> int:
        """Write a batch whose header changed; `packed` holds its records behind room for that."""
        changed = bytearray(packed)
        _HEADER.pack_into(changed, 0, *header._replace(size=header.size - 12, crc=0))
        seal(memoryview(changed))
        return self._emit(changed, header)

    def _emit(self, batch: Buffer, header: BatchHeader) -> int:
        batches = self._batches
        if not batches.emit(batch):
            self.make_room()
            if not batches.emit(batch):  # it is larger than the output
                self._cleaned.write_batch(batch)
                batches.note(header.last_offset, header.max_timestamp, len(batch))
                self.written_bytes += len(batch)
        return header.count
