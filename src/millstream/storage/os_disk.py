"""Files of the machine, with a bounded number of open descriptors.

A file's descriptor is opened when it is needed and closed when others need the room: the least
recently used one goes (by second chance, so that a use costs one attribute). A thread that uses a
descriptor holds a reference to it for as long as the system call runs, and a descriptor is closed
only when nobody refers to it any more: no descriptor number is ever reused under a running call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import threading
from collections import OrderedDict, deque
from time import perf_counter_ns
from typing import Final

from millstream.storage.disk import Buffer

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_CACHED_BYTES: Final = 64 << 20
"""How much of what this process wrote last to a file is taken to be in memory where the system cannot say."""

_SLOW_NS: Final = 100_000
_SLOW_NS_A_KB: Final = 400
"""A read that takes longer than these together was no mere copy: the system went to the device for it, or
for what lies behind it, which it does before it answers that a read would have to wait."""

_WARMING_READS: Final = 8
"""How many reads in a row must be fast before a file is again taken to be in memory."""

_SPARE_BUFFERS: Final = 4
_SPARE_BYTES: Final = 2 << 20
"""Buffers of at most this size are used again when nobody refers to them any more: filling a new one with
zeros costs a third as much as reading into it."""

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_MANY_FILES: Final = 1 << 20
_SHORT_USES: Final = 64
"""Descriptors for all but segments, indexes and who connects: the registry, pipes, links to other brokers,
readers of metrics, what is read once."""
_OPEN_TRIES: Final = 8
"""How often another file's descriptor is given up for one that could not be had: others may be faster."""


class _Descriptor:
    """An open descriptor; closed when the last reference to it goes."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, _close=os.close) -> None:  # type: ignore[no-untyped-def]
        _close(self.fd)


class OsFile:
    """A file of an OsDisk. One thread appends; any number read meanwhile."""

    __slots__ = (
        "_cold_reads",
        "_cold_tail_reads",
        "_descriptor",
        "_device",
        "_disk",
        "_is_used",
        "_path",
        "_size",
        "_written_from",
        "is_closed",
    )

    def __init__(self, disk: OsDisk, path: str, *, create: bool) -> None:
        self._disk = disk
        self._path = path
        self.is_closed = False
        self._is_used = False
        self._cold_reads = 0
        """How many fast reads are still wanted before it is believed that reads need not wait."""
        self._cold_tail_reads = 0
        """The same for what was written last, which others read while somebody reads from the start."""
        self._descriptor: _Descriptor | None = None
        descriptor = disk.descriptor(self, path, _FLAGS | os.O_CREAT if create else _FLAGS)
        status = os.fstat(descriptor.fd)
        self._size = self._written_from = status.st_size
        self._device = status.st_dev

    def append(self, data: Buffer) -> None:
        descriptor = self._descriptor or self._reopen()
        self._is_used = True
        size = self._size
        try:
            written = os.pwrite(descriptor.fd, data, size)
            if written != len(data):
                written += _write_all(descriptor.fd, memoryview(data)[written:], size + written)
        except BaseException:
            os.ftruncate(descriptor.fd, size)
            raise
        self._size = size + written

    def pread(self, size: int, offset: int, *, nowait: bool = False) -> memoryview:
        descriptor = self._descriptor or self._reopen()
        self._is_used = True
        is_tail = offset >= max(self._written_from, self._size - _CACHED_BYTES)
        if nowait and size:
            if self._device not in self._disk.devices_without_nowait:
                if self._cold_tail_reads if is_tail else self._cold_reads:
                    raise BlockingIOError(errno.EAGAIN, "not in memory of late", self._path)
                try:
                    return self._read_now(descriptor.fd, size, offset, is_tail)
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                        raise
                    self._disk.devices_without_nowait.add(self._device)
            if not is_tail:
                raise BlockingIOError(errno.EAGAIN, "not known to be in memory", self._path)
        started_ns = perf_counter_ns()
        found = os.pread(descriptor.fd, size, offset)
        cold_reads = self._cold_tail_reads if is_tail else self._cold_reads
        if cold_reads:
            is_slow = perf_counter_ns() - started_ns > _slow_ns(size)
            self._count_cold(is_tail, _WARMING_READS if is_slow else cold_reads - 1)
        if len(found) == size or not found:
            return memoryview(found)
        return _read_rest(descriptor.fd, found, size, offset)

    def _read_now(self, fd: int, size: int, offset: int, is_tail: bool) -> memoryview:
        """What is in memory. The system may read on from the device meanwhile; then the next reads had
        better be made by a thread."""
        buffer = self._disk.buffer(size)
        started_ns = perf_counter_ns()
        try:
            count = os.preadv(fd, [buffer], offset, _NOWAIT)
        except BlockingIOError:
            self._count_cold(is_tail, _WARMING_READS)
            raise
        if perf_counter_ns() - started_ns > _slow_ns(size):
            self._count_cold(is_tail, _WARMING_READS)
        return buffer[:count]

    def _count_cold(self, is_tail: bool, reads: int) -> None:
        if is_tail:
            self._cold_tail_reads = reads
        else:
            self._cold_reads = reads

    def pwrite(self, data: Buffer, offset: int) -> None:
        descriptor = self._descriptor or self._reopen()
        self._is_used = True
        _write_all(descriptor.fd, memoryview(data), offset)
        self._size = max(self._size, offset + len(data))

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        descriptor = self._descriptor or self._reopen()
        os.ftruncate(descriptor.fd, size)
        self._size = size
        self._written_from = min(self._written_from, size)

    def fsync(self) -> None:
        descriptor = self._descriptor or self._reopen()
        _fsync(descriptor.fd)

    def close(self) -> None:
        """Let go of the descriptor for good: later calls raise, calls under way finish."""
        self.is_closed = True
        self._disk.forget(self)

    def release(self) -> bool:
        """Called by the disk, which holds its lock: give up the descriptor unless it was used of late."""
        if self._is_used:
            self._is_used = False
            return False
        self._descriptor = None
        return True

    def drop(self) -> None:
        """Called by the disk, which holds its lock: give up the descriptor."""
        self._descriptor = None

    def adopt(self, descriptor: _Descriptor) -> None:
        self._descriptor = descriptor

    def _reopen(self) -> _Descriptor:
        if self.is_closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        return self._disk.descriptor(self, self._path, _FLAGS)


class OsLock:
    """An flock on a lock file; the kernel lets go of it when the process dies."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = _Descriptor(os.open(path, _FLAGS | os.O_CREAT, 0o644))
        fcntl.flock(self._descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._is_comparable = self._is_in_place()  # some file systems number a file twice

    def _is_in_place(self) -> bool:
        descriptor = self._descriptor
        return descriptor is None or os.path.samestat(os.fstat(descriptor.fd), os.stat(self._path))

    def check(self) -> None:
        if self._is_comparable and not self._is_in_place():
            raise OSError(errno.ESTALE, "another folder is in its place", self._path)

    def release(self) -> None:
        self._descriptor = None


class OsDisk:
    """The machine's folders and files, at most about `max_open_files` of them open at a time."""

    def __init__(self, max_open_files: int | None = None) -> None:
        """Never more than a quarter of what the process may open: the rest is for connections and short uses.

        A file without a descriptor is opened when it is used; a connection without one is refused.
        """
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            allowed = _MANY_FILES
        if max_open_files is None or max_open_files > allowed // 4:
            max_open_files = allowed // 4
        self.max_open_files = max(8, max_open_files)
        self.spare_descriptors = max(8, allowed - self.max_open_files - _SHORT_USES)
        """How many connections the process may hold without taking a file's place."""
        self.devices_without_nowait: set[int] = set()
        self._open_files: OrderedDict[OsFile, None] = OrderedDict()
        self._lock = threading.Lock()
        self._spare_buffers: deque[bytearray] = deque(maxlen=_SPARE_BUFFERS)

    @property
    def open_count(self) -> int:
        """How many files hold a descriptor now."""
        return len(self._open_files)

    def buffer(self, size: int) -> memoryview:
        """Room for `size` bytes with anything in it. It is its user's until no view of it is left."""
        if size < 64 * 1024 or size > _SPARE_BYTES:
            return memoryview(bytearray(size))
        spare = self._spare_buffers
        for _ in range(len(spare)):
            try:
                buffer = spare.popleft()  # so that no other thread looks at it meanwhile
            except IndexError:
                break
            found = memoryview(buffer)[:size] if len(buffer) >= size and _is_unseen(buffer) else None
            spare.append(buffer)
            if found is not None:
                return found
        made = bytearray(size)
        spare.append(made)
        return memoryview(made)

    def descriptor(self, file: OsFile, path: str, flags: int) -> _Descriptor:
        """The descriptor of `file`, opened now; another file's goes if there are too many."""
        descriptor = self._open(path, flags)
        with self._lock:
            if (open_now := file._descriptor) is not None:
                return open_now  # another thread was faster
            if file.is_closed:  # and its name perhaps another file's by now
                raise OSError(errno.EBADF, "the file is closed", path)
            while len(self._open_files) >= self.max_open_files:
                self._release_one()
            file.adopt(descriptor)
            self._open_files[file] = None
            return descriptor

    def _open(self, path: str, flags: int) -> _Descriptor:
        """Open a descriptor; if there is none to be had, files that were not used of late give theirs."""
        for _ in range(_OPEN_TRIES):
            try:
                return _Descriptor(os.open(path, flags, 0o644))
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
            with self._lock:
                if not self._open_files:
                    break
                self._release_one()
        return _Descriptor(os.open(path, flags, 0o644))

    def _release_one(self) -> None:
        """Close the descriptor that was not used for longest, or nearly so."""
        while True:
            eldest, _ = self._open_files.popitem(last=False)
            if eldest.release():
                return
            self._open_files[eldest] = None

    def forget(self, file: OsFile) -> None:
        """Close the descriptor of a file that will not be used again."""
        with self._lock:
            file.drop()
            self._open_files.pop(file, None)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        return OsFile(self, path, create=create)

    def read_file(self, path: str) -> bytes:
        descriptor = self._open(path, os.O_RDONLY | os.O_CLOEXEC)
        data = os.read(descriptor.fd, 4096)
        if len(data) < 4096:
            return data
        parts = [data]
        while more := os.read(descriptor.fd, 1 << 20):
            parts.append(more)
        return b"".join(parts)

    def replace_file(self, path: str, data: bytes) -> None:
        beside = path + ".tmp"
        descriptor = self._open(beside, _FLAGS | os.O_CREAT | os.O_TRUNC)
        _write_all(descriptor.fd, memoryview(data), 0)
        os.fsync(descriptor.fd)
        del descriptor
        os.rename(beside, path)
        self.fsync_dir(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def makedirs(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)

    def fsync_dir(self, path: str) -> None:
        descriptor = self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _fsync(descriptor.fd)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> OsLock:
        return OsLock(path)


def _is_unseen(buffer: bytearray) -> bool:
    """Whether no view of a buffer is left: then its size can be changed, and with a view it cannot."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


def _slow_ns(size: int) -> int:
    return _SLOW_NS + (size >> 10) * _SLOW_NS_A_KB


def _fsync(fd: int) -> None:
    """An fsync that fails leaves unknown what is on the device, also if memory was short."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OSError(errno.EIO, "fsync failed for want of memory") from error
        raise


def _write_all(fd: int, data: memoryview, offset: int) -> int:
    total = len(data)
    written = 0
    while written < total:
        count = os.pwrite(fd, data[written:], offset + written)
        if count == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += count
    return written


def _read_rest(fd: int, found: bytes, size: int, offset: int) -> memoryview:
    """Read on after a short read, until `size` bytes or the end of the file."""
    parts = [found]
    have = len(found)
    while have < size and (more := os.pread(fd, size - have, offset + have)):
        parts.append(more)
        have += len(more)
    return memoryview(b"".join(parts))


def read_boot_id() -> str:
    """A text that changes whenever the machine starts; empty where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
