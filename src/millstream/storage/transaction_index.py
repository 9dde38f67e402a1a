"""The transaction index of a segment: the aborted transactions whose end marker lies in it.

On disk (`.txnindex`): entries of 34 bytes, big-endian: int16 version (0), int64 producer id, int64
first offset, int64 last offset (that of the abort marker), int64 last stable offset at the time
the marker was written. In the order of the markers, so that the last offsets grow. The file exists once
there is an entry.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import NamedTuple

from millstream.storage.disk import Disk, File
from millstream.storage.files import is_temporary

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_end = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    """A transaction whose records a reader of committed data must leave out."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entry(entry: AbortedTransaction) -> bytes:
    """An entry as the file holds it."""
    return _ENTRY.pack(_VERSION, *entry)


class TransactionIndex:
    """The aborted transactions of one segment. One thread adds, others may read meanwhile."""

    __slots__ = ("_disk", "_entries", "_file", "_lock", "_path", "_unsaved")

    def __init__(self, disk: Disk, path: str, lock: Lock, *, is_new: bool = False) -> None:
        """`lock` is held while the file is read for the first time."""
        self._disk = disk
        self._lock = lock
        self._path = path
        self._file: File | None = None
        self._unsaved = b""
        self._entries: list[AbortedTransaction] | None = [] if is_new else None

    def entries(self, *, nowait: bool = False) -> Sequence[AbortedTransaction]:
        """All entries, also those that are added later. With `nowait` it raises BlockingIOError if they have
        not been read yet.
        """
        entries = self._entries
        if entries is None:
            if nowait:
                raise BlockingIOError(errno.EAGAIN, "index not read yet", self._path)
            return self._load()
        return entries

    def ended_from(self, offset: int, *, nowait: bool = False) -> Iterator[AbortedTransaction]:
        """The entries of transactions that ended at an offset or later. There may be many before."""
        entries = self.entries(nowait=nowait)
        return (entries[place] for place in range(bisect_left(entries, offset, key=_end), len(entries)))

    def add(self, entry: AbortedTransaction) -> None:
        """Add an entry. On a full disk it waits in memory for the next `spill`."""
        if self._entries is None:
            self._load()
        assert self._entries is not None
        self._entries.append(entry)
        self._unsaved += encode_entry(entry)
        try:
            self.spill()
        except OSError as error:
            if not is_temporary(error):
                raise

    def spill(self) -> None:
        """Write the entries that wait in memory."""
        if self._unsaved:
            self._created().append(self._unsaved)
            self._unsaved = b""

    def keep_below(self, offset: int) -> None:
        """Drop what lies at `offset` or above, and all from the first entry on that makes no sense.

        A power loss may have left any bytes in place of entries that were not flushed.
        """
        kept = 0
        before = -1
        for entry in self.entries():
            if not (0 <= entry.first_offset < entry.last_offset < offset and before < entry.last_offset):
                break
            kept, before = kept + 1, entry.last_offset
        self.spill()
        if kept < len(self.entries()):
            self._entries = list(self.entries()[:kept])
            self._created().truncate(kept * _ENTRY.size)

    def fsync(self) -> None:
        if self._file is not None:
            self._file.fsync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _created(self) -> File:
        """The file, made if there is none, without an entry that a crash tore."""
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self._path, create=True)
            if file.size() % _ENTRY.size:
                file.truncate(file.size() - file.size() % _ENTRY.size)
        return file

    def _load(self) -> list[AbortedTransaction]:
        with self._lock:
            if self._entries is not None:
                return self._entries
            try:
                data = self._disk.read_file(self._path)
            except FileNotFoundError:
                data = b""
            whole = len(data) - len(data) % _ENTRY.size
            entries = [AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(data[:whole])]
            self._entries = entries
            return entries
