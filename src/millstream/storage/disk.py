"""The small interface through which storage reaches files, so that a simulation can tear them.

Durability, as every implementation keeps it: bytes written survive the death of the process at
once; they survive a power loss only after `File.fsync`. A new, renamed or removed name survives a
power loss only after `Disk.fsync_dir` of its folder. A failed fsync is final: the file's log dir
must be treated as failed, and the fsync must not be tried again.
"""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file that grows at its end."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. If that fails, the file is cut back and OSError raised."""
        ...

    def pread(self, size: int, offset: int, *, nowait: bool = False) -> memoryview:
        """Up to `size` bytes at `offset`; fewer only at the end of the file.

        With `nowait` it never waits for the device: it may give fewer bytes, and raises
        BlockingIOError where none are in memory.
        """
        ...

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Overwrite bytes in place (index entries); never used on records."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock file. The machine lets go of it when the process dies."""

    def check(self) -> None:
        """OSError if there is another file at its path, or none: the folder was moved or unmounted."""
        ...

    def release(self) -> None: ...


class Disk(Protocol):
    """The folders and files of one machine."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending; FileNotFoundError unless it exists or `create`."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Write beside, fsync, rename over `path`, fsync the folder: old or new, never between."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]: ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None: ...

    def fsync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int:
        """How much room is left for files under `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """How large the file system under `path` is."""
        ...

    def lock(self, path: str) -> Lock:
        """Hold the lock file `path`, made if it is missing; BlockingIOError if another process holds it."""
        ...
