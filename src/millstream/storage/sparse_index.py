"""What offset index and time index share: fixed-size, strictly growing entries, found by binary search.

The newest entries wait in memory and are written in blocks, so that an append to the log costs no
second system call. A crash loses them: recovery rebuilds the index of every segment at or above
the recovery point from the log itself, and a segment below it was spilled and flushed before.
Older entries are searched in the file, so that an index costs no memory.

The file is never longer than its entries. Apache Kafka makes an active segment's index longer,
padded with zeros; such a tail is seen and cut off when the index is opened.

One thread changes an index; others may search it meanwhile: `_state` is replaced, never changed,
except that its list of waiting entries grows at its end.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from struct import Struct
from threading import Lock
from typing import ClassVar

from millstream.storage.disk import Disk, File
from millstream.storage.files import is_temporary

_SPILL_ENTRIES = 512
_ANY_NUMBER = 1 << 62
_PAGE_ENTRIES = 256
_COLUMNS = (itemgetter(0), itemgetter(1))

Entry = tuple[int, int]


class SparseIndex:
    """Entries of two integers, both growing, in the file `path`."""

    ENTRY: ClassVar[Struct]

    __slots__ = ("_disk", "_file", "_is_closed", "_lock", "_spill_entries", "_state", "path")

    def __init__(self, disk: Disk, path: str, lock: Lock, *, is_new: bool = False) -> None:
        """`lock` is held while the file is opened and looked at for the first time."""
        self._disk = disk
        self.path = path
        self._lock = lock
        self._is_closed = False
        self._spill_entries = _SPILL_ENTRIES
        self._file: File | None = None
        self._state: tuple[int, list[Entry]] | None = (0, []) if is_new else None

    def __len__(self) -> int:
        stored, waiting = self._state or self._load()
        return stored + len(waiting)

    def add(self, key: int, value: int) -> None:
        """Add an entry; the caller makes sure that it lies above all others."""
        waiting = (self._state or self._load())[1]
        waiting.append((key, value))
        if len(waiting) >= self._spill_entries:
            try:
                self.spill()
            except OSError as error:
                if not is_temporary(error):
                    raise  # a full disk is no loss: the entries wait in memory

    def last(self) -> Entry | None:
        stored, waiting = self._state or self._load()
        if waiting:
            return waiting[-1]
        return self._stored_entry(stored - 1) if stored else None

    def entries(self) -> list[Entry]:
        """All of them; for tools and tests."""
        stored, waiting = self._state or self._load()
        data = self._pread(0, stored) if stored else b""
        return [*self.ENTRY.iter_unpack(data), *waiting]

    def floor(self, key: int, *, column: int = 0, nowait: bool = False) -> Entry | None:
        """The last entry whose column is at most `key`, None if all are above it."""
        if nowait and self._state is None:
            raise BlockingIOError(errno.EAGAIN, "index not opened yet", self.path)
        stored, waiting = self._state or self._load()
        if waiting and waiting[0][column] <= key:
            return waiting[bisect_right(waiting, key, key=_COLUMNS[column]) - 1]
        if not stored:
            return None
        low, high = 0, (stored - 1) // _PAGE_ENTRIES
        while low < high:  # the last page whose first entry is at most key
            middle = (low + high + 1) // 2
            if self._stored_entry(middle * _PAGE_ENTRIES, nowait=nowait)[column] <= key:
                low = middle
            else:
                high = middle - 1
        first = low * _PAGE_ENTRIES
        page = self._pread(first, min(_PAGE_ENTRIES, stored - first), nowait=nowait)
        entries: list[Entry] = list(self.ENTRY.iter_unpack(page))
        found = bisect_right(entries, key, key=_COLUMNS[column])
        return entries[found - 1] if found else None

    def keep_below(self, bound: int, *, column: int) -> None:
        """Drop the entries whose column is `bound` or more."""
        stored, waiting = self._state or self._load()
        kept = [entry for entry in waiting if entry[column] < bound]
        if len(kept) == len(waiting) and (waiting or not stored):
            return
        low, high = 0, stored
        while low < high:
            middle = (low + high) // 2
            if self._stored_entry(middle)[column] < bound:
                low = middle + 1
            else:
                high = middle
        if low < stored:
            self._state = (low, [])
            self._created().truncate(low * self.ENTRY.size)
        else:
            self._state = (stored, kept)

    def clear(self) -> None:
        """Drop all entries, in memory and in the file."""
        stored, _ = self._state or self._load()
        self._state = (0, [])
        if stored:
            self._created().truncate(0)

    def replace(self, entries: Sequence[Entry]) -> None:
        """Take these entries instead of all others, in the file too.

        A search under way in another thread may find the file too short. On a full disk the entries wait
        in memory.
        """
        self._state = (0, list(entries))
        try:
            self._created().truncate(0)
            self.spill()
            self.fsync()
        except OSError as error:
            if not is_temporary(error):
                raise

    def begin_anew(self) -> None:
        """Drop all entries and the file itself, which comes to be again with the next `spill`, not before."""
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            self._disk.remove(self.path)
        except FileNotFoundError:
            pass
        self._state = (0, [])
        self._spill_entries = _ANY_NUMBER

    @property
    def is_spilled(self) -> bool:
        """Whether no entry waits in memory."""
        return self._state is None or not self._state[1]

    def spill(self) -> None:
        """Write the waiting entries to the file, which comes to exist even if there are none."""
        stored, waiting = self._state or self._load()
        file = self._created()
        if waiting:
            pack = self.ENTRY.pack
            file.append(b"".join([pack(*entry) for entry in waiting]))
            self._state = (stored + len(waiting), [])
        self._spill_entries = _SPILL_ENTRIES

    def fsync(self) -> None:
        if self._file is not None:
            self._file.fsync()

    def close(self) -> None:
        """Let go of the file for good."""
        self._is_closed = True
        file = self._file
        if file is not None:
            file.close()

    def _created(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path, create=True)
        return file

    def _load(self) -> tuple[int, list[Entry]]:
        """Look at the file for the first time: count its entries and cut off what is none."""
        with self._lock:
            if self._state is not None:
                return self._state
            if self._is_closed:
                raise FileNotFoundError(errno.ENOENT, "the index is closed", self.path)
            try:
                file = self._file = self._disk.open(self.path)
            except FileNotFoundError:
                state: tuple[int, list[Entry]] = (0, [])
            else:
                state = (self._count_entries(file), [])
            self._state = state
            return state

    def _count_entries(self, file: File) -> int:
        size = file.size()
        count = size // self.ENTRY.size
        if count > 1 and self._stored_entry(count - 1) == (0, 0):
            low, high = 0, count - 1
            while low < high:  # the first entry from which on all is zero; the very first one may be zero
                middle = (low + high) // 2
                if self._stored_entry(middle) == (0, 0):
                    high = middle
                else:
                    low = middle + 1
            count = low
        if count * self.ENTRY.size < size:
            file.truncate(count * self.ENTRY.size)
        return count

    def _stored_entry(self, number: int, *, nowait: bool = False) -> Entry:
        entry: Entry = self.ENTRY.unpack(self._pread(number, 1, nowait=nowait))
        return entry

    def _pread(self, number: int, count: int, *, nowait: bool = False) -> memoryview:
        size = self.ENTRY.size
        file = self._file
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "the index has no file", self.path)
        data = file.pread(count * size, number * size, nowait=nowait)
        if len(data) < count * size:
            if nowait:
                raise BlockingIOError(errno.EAGAIN, "index not in memory", self.path)
            raise OSError(errno.EIO, "index shorter than its entries", self.path)
        return data
