"""A segment as compaction writes it: its four files, named `.cleaned` until they take others' place.

All four exist even if they are empty, so that after a crash a missing `.swap` file means that it is in
place already.
"""

from __future__ import annotations

from typing import Final

from millstream.protocol.filter_kernel import BatchFilter
from millstream.storage import names
from millstream.storage.disk import Buffer, Disk, File
from millstream.storage.segment import SUFFIXES
from millstream.storage.transaction_index import AbortedTransaction, encode_entry

_SYNC_BYTES: Final = 8 << 20
"""How much is written between two fsyncs, so that none of them holds up the device for long."""


class CleanedSegment:
    """The files of one cleaned segment, written from their beginning to their end."""

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self._disk = disk
        self._stem = f"{folder}/{base_offset:020d}"
        self._unsynced_bytes = 0
        self._files: dict[str, File] = {}

    def create(self) -> None:
        """Make the files; what an earlier attempt may have left in them goes."""
        for suffix in SUFFIXES:
            file = self._files[suffix] = self._disk.open(self._stem + suffix + names.CLEANED, create=True)
            if file.size():
                file.truncate(0)

    def write(self, batches: BatchFilter) -> int:
        """Write what a filter has put out; how many bytes of records that were."""
        outputs = batches.output()
        for suffix, data in zip((names.LOG, names.INDEX, names.TIME_INDEX), outputs, strict=True):
            if data:
                self._files[suffix].append(data)
        batches.taken()
        self._wrote(len(outputs[0]))
        return len(outputs[0])

    def write_batch(self, batch: Buffer) -> None:
        """Write a batch that is too large for the filter's output."""
        self._files[names.LOG].append(batch)
        self._wrote(len(batch))

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Keep an entry of the transaction index."""
        self._files[names.TRANSACTION_INDEX].append(encode_entry(aborted))

    def _wrote(self, count: int) -> None:
        self._unsynced_bytes += count
        if self._unsynced_bytes >= _SYNC_BYTES:
            self._files[names.LOG].fsync()
            self._unsynced_bytes = 0

    def finish(self, batches: BatchFilter) -> None:
        """Write the rest and make everything but the names durable."""
        batches.finish()
        self.write(batches)
        for file in self._files.values():
            file.fsync()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def rename(self, source: str, target: str) -> None:
        """Give the files another suffix, the `.log` last."""
        for suffix in reversed(SUFFIXES):
            self._disk.rename(self._stem + suffix + source, self._stem + suffix + target)

    def paths(self, suffix: str) -> list[str]:
        """The files' paths if they have this suffix, the `.log` first."""
        return [self._stem + name + suffix for name in SUFFIXES]
