"""A segment: a run of record batches in one file, with its indexes.

The `.log` file holds whole record batches, format 2, back to back, in offset order, and nothing
else. Its name is the segment's base offset: no record in it has a smaller offset. Only the last
segment of a log, the active one, grows.

One thread appends. Others read meanwhile: `size` grows only after the bytes are in the file, and a
segment that was deleted or replaced is `is_retired` before its files go.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from threading import Lock
from typing import Final

from millstream.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from millstream.storage import names
from millstream.storage.disk import Buffer, Disk, File
from millstream.storage.files import is_temporary
from millstream.storage.offset_index import OffsetIndex
from millstream.storage.time_index import TimeIndex
from millstream.storage.transaction_index import TransactionIndex

MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
NO_TIMESTAMP: Final = -1
SUFFIXES: Final = (names.LOG, names.INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX)


class Segment:
    """One `.log` file of a log's folder and the indexes beside it, opened when they are needed."""

    __slots__ = (
        "_disk",
        "_first_timestamp",
        "_is_confirmed",
        "_is_cut",
        "_is_derived",
        "_least_age_ms",
        "_lock",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_stem",
        "_suffix",
        "_unindexed_bytes",
        "base_offset",
        "created_ms",
        "entry_count",
        "file",
        "index",
        "is_appendable",
        "is_flushed",
        "is_retired",
        "size",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, disk: Disk, folder: str, base_offset: int, size: int, created_ms: int, *, suffix: str = ""
    ) -> None:
        """A segment as its files are; new ones appear with the first append.

        `suffix` comes after all names while the segment is not yet part of the log.
        """
        is_new = size == 0
        stem = f"{folder}/{base_offset:020d}"
        self._disk = disk
        self._stem = stem
        self._suffix = suffix
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self.entry_count = 0
        """How many index entries it has; counted once it is appended to."""
        self.is_retired = False
        self.is_flushed = False
        self.is_appendable = False
        self.file: File | None = None
        self._lock = lock = Lock()
        self.index = OffsetIndex(disk, stem + names.INDEX + suffix, lock, is_new=is_new)
        self.time_index = TimeIndex(disk, stem + names.TIME_INDEX + suffix, lock, is_new=is_new)
        self.transaction_index = TransactionIndex(
            disk, stem + names.TRANSACTION_INDEX + suffix, lock, is_new=is_new
        )
        self._unindexed_bytes = 0
        self._is_derived = False
        self._is_confirmed = is_new
        self._is_cut = False
        self._least_age_ms = NO_TIMESTAMP
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP if is_new else None
        self._max_timestamp_offset = NO_TIMESTAMP

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    @property
    def path(self) -> str:
        return self._stem + names.LOG + self._suffix

    def open(self, *, nowait: bool = False) -> File:
        """The `.log` file. With `nowait` it raises BlockingIOError if it has not been opened yet."""
        file = self.file
        if file is None:
            if nowait:
                raise BlockingIOError(errno.EAGAIN, "not opened yet", self.path)
            with self._lock:
                if self.is_retired:
                    raise FileNotFoundError(errno.ENOENT, "the segment is retired", self.path)
                file = self.file
                if file is None:
                    file = self.file = self._disk.open(self.path)
        return file

    def create(self) -> File:
        """The `.log` file of the active segment, made if it does not exist yet."""
        if self.size:
            self.open()
            self.load_timestamps()
            self.entry_count = len(self.index)
        elif self.file is None:
            self.file = self._disk.open(self.path, create=True)
        self.is_appendable = True
        return self.file  # type: ignore[return-value]

    def append(
        self, data: Buffer, size: int, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Add one batch at the end. An OSError leaves the segment as it was."""
        position = self.size
        if not self.is_appendable:
            self.create()
        self.file.append(data)  # type: ignore[union-attr]
        if max_timestamp > self._max_timestamp:  # type: ignore[operator]
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self._first_timestamp = max_timestamp
        unindexed = self._unindexed_bytes
        if unindexed > index_interval_bytes:
            self.add_index_entry(last_offset, position)
            unindexed = 0
        self._unindexed_bytes = unindexed + size
        self.size = position + size

    def append_run(self, data: Buffer, batches: Sequence[BatchHeader], index_interval_bytes: int) -> None:
        """Add several batches at the end, in one write. An OSError leaves the segment as it was."""
        position = self.size
        if not self.is_appendable:
            self.create()
        self.file.append(data)  # type: ignore[union-attr]
        if not position:
            self._first_timestamp = batches[0].max_timestamp
        unindexed = self._unindexed_bytes
        for header in batches:
            last_offset = header.base_offset + header.last_offset_delta
            if header.max_timestamp > self._max_timestamp:  # type: ignore[operator]
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = last_offset
            if unindexed > index_interval_bytes:
                self.add_index_entry(last_offset, position)
                unindexed = 0
            unindexed += header.size
            position += header.size
        self._unindexed_bytes = unindexed
        self.size = position

    def note_batch(self, position: int, header: BatchHeader, index_interval_bytes: int) -> None:
        """Take a batch that the file holds into the indexes, as its append did."""
        last_offset = header.last_offset
        if header.max_timestamp > self.max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset
        if self._unindexed_bytes > index_interval_bytes:
            self.add_index_entry(last_offset, position)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size

    def add_index_entry(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`, and the largest timestamp up to there.

        A want of descriptors or memory costs an entry, and not the batch: that is in the file already.
        """
        try:
            self.index.add(last_offset - self.base_offset, position)
            self.entry_count += 1
            self.add_time_entry()
        except OSError as error:
            if not is_temporary(error):
                raise

    def add_time_entry(self) -> None:
        """Index the largest timestamp so far, unless it already is."""
        if self.max_timestamp > NO_TIMESTAMP:
            last = self.time_index.last()
            relative = self._max_timestamp_offset - self.base_offset
            if last is None or (self.max_timestamp > last[0] and relative > last[1]):
                self.time_index.add(self.max_timestamp, relative)

    def lookup(self, offset: int, *, nowait: bool = False) -> tuple[int, int]:
        """(last offset, position) of an indexed batch at or before the one that holds `offset`.

        (-1, 0), the start of the segment, if no such batch is indexed.
        """
        relative = offset - self.base_offset
        entry = self.index.floor(min(relative, MAX_RELATIVE_OFFSET), nowait=nowait)
        if entry is None or entry[0] < 0:  # a negative one is damaged
            return -1, 0
        return entry[0] + self.base_offset, entry[1]

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its records; -1 if it has none that is known."""
        known = self._max_timestamp
        return self.load_timestamps() if known is None else known

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch with the largest timestamp; -1 if it has none."""
        if self._max_timestamp is None:
            self.load_timestamps()
        return self._max_timestamp_offset

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of its first batch, by which it ages; -1 if it has none."""
        known = self._first_timestamp
        if known is None:
            head = self.open().pread(HEADER_SIZE, 0) if self.size else b""
            known = read_header(head).max_timestamp if len(head) == HEADER_SIZE else NO_TIMESTAMP
            if self.size:
                self._first_timestamp = known
        return known

    @property
    def is_confirmed(self) -> bool:
        """Whether the largest timestamp is that of its batches, and not only what the time index says."""
        return self._is_confirmed

    def confirm(self, least_age_ms: int = NO_TIMESTAMP) -> None:
        """Say that the largest timestamp was held against the batches.

        If some of them could not be read, the segment counts as no older than `least_age_ms`.
        """
        self._least_age_ms = least_age_ms
        self._is_confirmed = True

    def modified_ms(self) -> int:
        """When its file was last written to; when the segment was opened, if there is none."""
        try:
            return self._disk.mtime_ms(self.path)
        except FileNotFoundError:
            return self.created_ms

    def age_timestamp(self) -> int:
        """The timestamp by which retention and compaction judge the segment."""
        found = self.max_timestamp
        if found > NO_TIMESTAMP:
            return max(found, self._least_age_ms)
        return self.modified_ms()

    def restore_times(self, entries: Sequence[tuple[int, int]], size: int) -> None:
        """Take another time index, derived from the batches in the first `size` bytes.

        In any thread. Nothing happens if the segment changed meanwhile.
        """
        with self._lock:
            if self.is_retired or self._is_cut or self.size != size:
                return
            self.time_index.replace(entries)
            self._max_timestamp, relative = entries[-1] if entries else (NO_TIMESTAMP, 0)
            self._max_timestamp_offset = self.base_offset + relative if entries else -1
            self._is_confirmed = True

    def load_timestamps(self) -> int:
        """Take the largest timestamp from the time index, whose last entry it is."""
        last = self.time_index.last()
        with self._lock:
            if self._max_timestamp is None:
                self._max_timestamp_offset = -1 if last is None else last[1] + self.base_offset
                self._max_timestamp = NO_TIMESTAMP if last is None else last[0]
            return self._max_timestamp

    def set_timestamps(self, max_timestamp: int, max_timestamp_offset: int, unindexed_bytes: int) -> None:
        """Take what a scan of the batches found, which the time index may not hold yet."""
        self._is_derived = True
        self._is_confirmed = True
        self._max_timestamp = max_timestamp
        self._max_timestamp_offset = max_timestamp_offset
        self._unindexed_bytes = unindexed_bytes
        self._first_timestamp = None

    @property
    def is_spilled(self) -> bool:
        """Whether the indexes' files hold all that is known, as they do before the first append."""
        is_changed = self.is_appendable or self._is_derived
        return not is_changed and self.index.is_spilled and self.time_index.is_spilled

    def spill(self) -> None:
        """Write the indexes' waiting entries, with the largest timestamp as the last one."""
        self.add_time_entry()
        self.index.spill()
        self.time_index.spill()
        self.transaction_index.spill()
        self._is_derived = False

    def fsync(self, *, with_indexes: bool) -> None:
        """Make the batches durable; with their indexes if the segment will not grow any more."""
        if self.size == 0 and self.file is None:
            return
        self.open().fsync()
        if with_indexes:
            self.index.fsync()
            self.time_index.fsync()
            self.transaction_index.fsync()

    def retire(self) -> None:
        """Let go of the files for good: they may be renamed and their names given to others.

        Reads that are under way finish; one that comes too late raises, sees that the segment is
        retired, and looks the offset up again.
        """
        with self._lock:
            self.is_retired = True
            if self.file is not None:
                self.file.close()
        self.index.close()
        self.time_index.close()
        self.transaction_index.close()

    def shorten(self, size: int) -> None:
        """Say that the segment ends at `size`; the bytes beyond go with `cut`."""
        self.size = size

    def cut(self, size: int, end_offset: int) -> None:
        """Cut the files off at `size`, where the records below `end_offset` end."""
        relative = end_offset - self.base_offset
        with self._lock:  # no other thread may put another time index in place from here on
            self.shorten(size)
            self._is_cut = True
        self.is_flushed = False  # it will be gone on with
        self.open().truncate(size)
        self.index.keep_below(relative, column=0)
        self.time_index.keep_below(relative, column=1)
        self.transaction_index.keep_below(end_offset)
        self.entry_count = len(self.index)
        self.is_flushed = False

    def paths(self) -> list[str]:
        """The files that a segment may have."""
        return [self._stem + suffix + self._suffix for suffix in SUFFIXES]

    def rename(self, suffix: str) -> None:
        """Give the files, those that exist, another suffix, the `.log` last. The segment is retired."""
        self.retire()
        for name in reversed(SUFFIXES):
            try:
                self._disk.rename(self._stem + name + self._suffix, self._stem + name + suffix)
            except FileNotFoundError:
                if name == names.LOG:
                    raise
