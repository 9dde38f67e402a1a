"""The transaction index of a segment: the aborted transactions whose end marker lies in it.

On disk (`.txnindex`): entries of 34 bytes, big-endian: int16 version (0), int64 producer id, int64
first offset, int64 last offset (that of the abort marker), int64 last stable offset at the time
the marker was written. In the order of the markers, so that the last offsets grow. The file exists once
there is an entry.

Readers learn of aborted transactions from nowhere else, and nothing in the file shows that a byte of it
changed or that it lost its end. So what an earlier process left is checked before it is used, see
`transaction_check`.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.storage.disk import Disk, File
from millstream.storage.files import is_temporary

_ENTRY = Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size
_VERSION = 0
_end = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    """A transaction whose records a reader of committed data must leave out."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Checksum(NamedTuple):
    """What a transaction index holds, in short."""

    entry_count: int
    """How many entries it has."""
    crc: int
    """The CRC-32C of its bytes."""


NO_ENTRIES = Checksum(0, 0)


def encode_entry(entry: AbortedTransaction) -> bytes:
    """An entry as the file holds it."""
    return _ENTRY.pack(_VERSION, *entry)


def decode_entries(data: bytes) -> list[AbortedTransaction]:
    """The whole entries that a file holds."""
    whole = len(data) - len(data) % ENTRY_BYTES
    return [AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(data[:whole])]


class TransactionIndex:
    """The aborted transactions of one segment. One thread adds, others may read meanwhile."""

    __slots__ = ("_check", "_checksum", "_disk", "_entries", "_file", "_later", "_lock", "_unsaved", "path")

    def __init__(self, disk: Disk, path: str, lock: Lock, *, is_new: bool = False) -> None:
        """`lock` is held while the file is read for the first time."""
        self._disk = disk
        self._lock = lock
        self.path = path
        self._file: File | None = None
        self._unsaved = b""
        self._check: Callable[[bytes], bytes | None] | None = None
        self._checksum: Checksum | None = NO_ENTRIES if is_new else None
        self._later: list[AbortedTransaction] = []
        """Entries that were added before those in the file were read."""
        self._entries: list[AbortedTransaction] | None = [] if is_new else None

    def mistrust(self, check: Callable[[bytes], bytes | None], expected: Checksum | None) -> None:
        """Let `check` see what the file holds, before that is used, and say what it should hold if not that.

        `expected` is known to be its checksum, if it is not None. Called before anything else.
        """
        self._check = check
        self._checksum = expected

    def checksum(self) -> Checksum | None:
        """What the file holds, or ought to; None if it has not been checked yet and nothing else tells it."""
        if self._checksum is None and self._check is None:
            self._load()
        return self._checksum

    def entries(self, *, nowait: bool = False) -> Sequence[AbortedTransaction]:
        """All entries, also those that are added later. With `nowait` it raises BlockingIOError if they have
        not been read yet.
        """
        entries = self._entries
        if entries is None:
            if nowait:
                raise BlockingIOError(errno.EAGAIN, "index not read yet", self.path)
            return self._load()
        return entries

    def ended_from(self, offset: int, *, nowait: bool = False) -> Iterator[AbortedTransaction]:
        """The entries of transactions that ended at an offset or later. There may be many before."""
        entries = self.entries(nowait=nowait)
        return (entries[place] for place in range(bisect_left(entries, offset, key=_end), len(entries)))

    def add(self, entry: AbortedTransaction) -> None:
        """Add an entry. On a full disk it waits in memory for the next `spill`."""
        encoded = encode_entry(entry)
        with self._lock:
            (self._later if self._entries is None else self._entries).append(entry)
            self._unsaved += encoded
            if self._checksum is not None:
                self._checksum = Checksum(self._checksum.entry_count + 1, crc32c(encoded, self._checksum.crc))
        try:
            self.spill()
        except OSError as error:
            if not is_temporary(error):
                raise

    def spill(self) -> None:
        """Write the entries that wait in memory."""
        if self._unsaved:
            with self._lock:
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
            self._checksum = Checksum(kept, crc32c(b"".join(map(encode_entry, self._entries))))
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
            file = self._file = self._disk.open(self.path, create=True)
            if file.size() % _ENTRY.size:
                file.truncate(file.size() - file.size() % _ENTRY.size)
        return file

    def _load(self) -> list[AbortedTransaction]:
        with self._lock:
            if self._entries is not None:
                return self._entries
            try:
                data = self._disk.read_file(self.path)
            except FileNotFoundError:
                data = b""
            data = data[: len(data) - len(self._saved_later())]
            check = self._check
        right = None if check is None else check(data)  # without the lock: it may take long
        with self._lock:
            return self._take(data, right)

    def _take(self, data: bytes, right: bytes | None) -> list[AbortedTransaction]:
        """Use what was read, or what is right instead, unless another thread was faster."""
        if self._entries is None:
            if right is not None:
                self._rewrite(right + self._saved_later())
                data = right
            entries = decode_entries(data) + self._later
            self._checksum = Checksum(len(entries), crc32c(b"".join(map(encode_entry, entries))))
            self._later = []
            self._check = None
            self._entries = entries
        return self._entries

    def _saved_later(self) -> bytes:
        """What the file holds of the entries that were added before it was read."""
        later = b"".join(map(encode_entry, self._later))
        return later[: len(later) - len(self._unsaved)]

    def _rewrite(self, data: bytes) -> None:
        """Replace all that the file holds.

        At once, unless it is being appended to: half of it, or nothing, might be believed by the next start.
        """
        try:
            if self._file is None:
                self._disk.replace_file(self.path, data)
            else:
                self._file.truncate(0)
                self._file.append(data)
        except OSError as error:
            if not is_temporary(error):
                raise
