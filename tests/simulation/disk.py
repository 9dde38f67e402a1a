"""A machine's disk in memory, with two views: what processes see, and what a power loss leaves.

A written byte is seen at once (the page cache) and outlives its process. Each file keeps the
changes made since its last fsync, each folder the names changed since its last `fsync_dir`:

- `crash`: the process is gone, nothing else. Its handles are dead: any use raises ProcessKilled.
- `power_loss`: of each file's unsynced changes an arbitrary prefix survives, the last one torn in the
  middle and perhaps ending in zeros or garbage, and an unsynced page among them may read as zeros; of
  each folder's unsynced names an arbitrary prefix survives, in order.

Faults: a full disk (`capacity_bytes`), failing reads and fsyncs, a cold page cache (`nowait` reads
raise BlockingIOError or come short), a slow device (calls take virtual time), and `kill_after`: the
process dies inside its n-th next call, between two changes that its code makes one after another.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from functools import lru_cache
from random import Random

from tests.simulation.files import Folder, Inode
from tests.simulation.world import ProcessKilled, World

Buffer = bytes | bytearray | memoryview

ROOM_BYTES = 1 << 40
"""The size of a disk that is not about to be full."""


class SimDisk:
    """The disk itself, which outlives processes; a process reaches it through a `Mount`."""

    def __init__(self, world: World, wall_ms: Callable[[], int]) -> None:
        self.world = world
        self.wall_ms = wall_ms
        self.root = Folder()
        self.capacity_bytes = ROOM_BYTES
        self.used_bytes = 0
        self.cold_probability = 0.0
        self.read_error_probability = 0.0
        self.fsync_error_probability = 0.0
        self.faulty_path = "/"
        """Only files below it fail."""
        self.slowness = 1.0
        self.fsyncs = 0
        self.kill_after = 0
        self.on_kill: Callable[[], None] = lambda: None
        self.locks: dict[str, Mount] = {}
        self._mounts: list[Mount] = []

    def mount(self) -> Mount:
        mount = Mount(self)
        self._mounts.append(mount)
        return mount

    def crash(self) -> None:
        """The processes on this machine are gone; every byte they wrote stays."""
        for mount in self._mounts:
            mount.is_dead = True
        self._mounts.clear()
        self.locks.clear()
        self.kill_after = 0

    def power_loss(self, random: Random) -> None:
        """The machine stopped: keep what was synced, and of the rest what chance leaves."""
        self.crash()
        torn: list[str] = []
        self.root.tear(random, "", torn)
        self.used_bytes = sum(len(inode.data) for _, inode in self.root.walk(""))
        for line in torn:
            self.world.log(f"power loss: {line}")

    def clear(self) -> None:
        """Another disk, with nothing on it; no process may run."""
        self.root = Folder()
        self.used_bytes = 0

    def is_faulty(self) -> bool:
        """Whether a call may fail now through no fault of the caller's."""
        return bool(
            self.capacity_bytes < ROOM_BYTES or self.read_error_probability or self.fsync_error_probability
        )

    def mend(self) -> None:
        """Take every lasting fault away: room, good reads and fsyncs, the usual speed."""
        self.capacity_bytes = ROOM_BYTES
        self.read_error_probability = self.fsync_error_probability = 0.0
        self.faulty_path = "/"
        self.slowness = 1.0
        self.kill_after = 0

    def files(self, path: str) -> dict[str, bytes]:
        """The files directly in a folder, as they are now; for checks from outside."""
        node = self.root.find(_parts(path))
        if not isinstance(node, Folder):
            return {}
        return {name: bytes(entry.data) for name, entry in node.entries.items() if isinstance(entry, Inode)}

    def folders(self, path: str) -> list[str]:
        node = self.root.find(_parts(path))
        if not isinstance(node, Folder):
            return []
        return [name for name, entry in node.entries.items() if isinstance(entry, Folder)]

    def inode(self, path: str) -> Inode:
        node = self.root.find(_parts(path))
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    # What every call of a process does first

    def enter(self, cost_s: float) -> None:
        self.world.charge(cost_s * self.slowness)
        if self.kill_after:
            self.kill_after -= 1
            if not self.kill_after:
                self.on_kill()
                raise ProcessKilled

    def take(self, grown_bytes: int) -> None:
        if grown_bytes > 0 and self.used_bytes + grown_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.used_bytes += grown_bytes

    def fails(self, probability: float, path: str) -> bool:
        return path.startswith(self.faulty_path) and self.chance(probability)

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self.world.random.random() < probability


class SimFile:
    """An open file of one process."""

    def __init__(self, mount: Mount, inode: Inode, path: str) -> None:
        self._mount = mount
        self._inode = inode
        self._path = path
        self._is_closed = False

    def _enter(self, cost_s: float) -> SimDisk:
        disk = self._mount.enter(cost_s)
        if self._is_closed:
            raise OSError(errno.EBADF, "file is closed", self._path)
        return disk

    def append(self, data: Buffer) -> None:
        disk = self._enter(4e-6)
        view = memoryview(data).cast("B")
        disk.take(len(view))
        self._inode.append(bytes(view), disk.wall_ms())

    def pread(self, size: int, offset: int, *, nowait: bool = False) -> memoryview:
        disk = self._enter(2e-6)
        if disk.fails(disk.read_error_probability, self._path):
            raise OSError(errno.EIO, "input/output error", self._path)
        data = bytes(memoryview(self._inode.data)[offset : offset + size])
        if nowait and data and disk.chance(disk.cold_probability):
            if len(data) > 1 and disk.world.random.random() < 0.5:
                return memoryview(data)[: disk.world.random.randrange(1, len(data))]
            raise BlockingIOError(errno.EAGAIN, "not in memory", self._path)
        if not nowait and disk.cold_probability:
            disk.world.charge(200e-6 * disk.slowness)
        return memoryview(data)

    def pwrite(self, data: Buffer, offset: int) -> None:
        disk = self._enter(4e-6)
        view = memoryview(data).cast("B")
        disk.take(max(0, offset + len(view) - len(self._inode.data)))
        self._inode.pwrite(bytes(view), offset, disk.wall_ms())

    def size(self) -> int:
        self._enter(1e-6)
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        disk = self._enter(4e-6)
        disk.take(size - len(self._inode.data))
        self._inode.truncate(size, disk.wall_ms())

    def fsync(self) -> None:
        disk = self._enter(_fsync_s(self._mount.disk))
        disk.fsyncs += 1
        if disk.fails(disk.fsync_error_probability, self._path):
            disk.world.log(f"fsync of {self._path} fails")
            self._inode.forget_unsynced()
            raise OSError(errno.EIO, "input/output error", self._path)
        self._inode.sync()

    def close(self) -> None:
        """Close for good; closing twice, or after the process's death, does nothing."""
        self._is_closed = True


def _fsync_s(disk: SimDisk) -> float:
    return disk.world.random.uniform(100e-6, 4e-3)


class Mount:
    """The disk as one process sees it, until the process dies."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.is_dead = False

    def enter(self, cost_s: float) -> SimDisk:
        if self.is_dead:
            raise ProcessKilled
        self.disk.enter(cost_s)
        return self.disk

    def _folder(self, path: str) -> Folder:
        node = self.disk.root.find(_parts(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
        return node

    def _inode(self, path: str) -> Inode:
        node = self.disk.root.find(_parts(path))
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def open(self, path: str, *, create: bool = False) -> SimFile:
        disk = self.enter(6e-6)
        folder, name = self._folder(posixpath.dirname(path)), posixpath.basename(path)
        if create and name not in folder.entries:
            folder.add(name, Inode(disk.wall_ms()))
        return SimFile(self, self._inode(path), path)

    def read_file(self, path: str) -> bytes:
        disk = self.enter(10e-6)
        inode = self._inode(path)
        if disk.fails(disk.read_error_probability, path):
            raise OSError(errno.EIO, "input/output error", path)
        return bytes(inode.data)

    def replace_file(self, path: str, data: bytes) -> None:
        """As the steps it is made of, so that a kill or a power loss may fall between them."""
        beside = path + ".tmp"
        file = self.open(beside, create=True)
        file.truncate(0)
        file.append(data)
        file.fsync()
        self.rename(beside, path)
        self.fsync_dir(posixpath.dirname(path))

    def exists(self, path: str) -> bool:
        self.enter(1e-6)
        return self.disk.root.find(_parts(path)) is not None

    def size(self, path: str) -> int:
        self.enter(1e-6)
        return len(self._inode(path).data)

    def mtime_ms(self, path: str) -> int:
        self.enter(1e-6)
        node = self.disk.root.find(_parts(path))
        return 0 if isinstance(node, Folder) else self._inode(path).mtime_ms

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, in no useful order, as a file system gives them."""
        disk = self.enter(10e-6)
        if disk.fails(disk.read_error_probability, path):
            raise OSError(errno.EIO, "input/output error", path)
        names = sorted(self._folder(path).entries)
        disk.world.random.shuffle(names)
        return names

    def makedirs(self, path: str) -> None:
        self.enter(10e-6)
        folder = self.disk.root
        for name in _parts(path):
            node = folder.entries.get(name)
            if node is None:
                node = Folder()
                folder.add(name, node)
            if not isinstance(node, Folder):
                raise FileExistsError(errno.EEXIST, "a file has this name", path)
            folder = node

    def rename(self, source: str, target: str) -> None:
        disk = self.enter(10e-6)
        old, new = self._folder(posixpath.dirname(source)), self._folder(posixpath.dirname(target))
        if posixpath.basename(source) not in old.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", source)
        replaced = new.entries.get(posixpath.basename(target))
        if isinstance(replaced, Folder) and replaced.entries:
            raise OSError(errno.ENOTEMPTY, "folder not empty", target)
        if isinstance(replaced, Inode):
            disk.used_bytes -= len(replaced.data)
        old.move(posixpath.basename(source), new, posixpath.basename(target))

    def remove(self, path: str) -> None:
        disk = self.enter(10e-6)
        disk.used_bytes -= len(self._inode(path).data)
        self._folder(posixpath.dirname(path)).drop(posixpath.basename(path))

    def rmtree(self, path: str) -> None:
        """Remove a folder and all in it, name by name, so that a kill may fall between them."""
        folder = self._folder(path)
        for name, node in list(folder.entries.items()):
            if isinstance(node, Folder):
                self.rmtree(posixpath.join(path, name))
            else:
                self.remove(posixpath.join(path, name))
        self.enter(10e-6)
        self._folder(posixpath.dirname(path)).drop(posixpath.basename(path))

    def fsync_dir(self, path: str) -> None:
        disk = self.enter(_fsync_s(self.disk))
        if disk.fails(disk.fsync_error_probability, path):
            raise OSError(errno.EIO, "input/output error", path)
        self._folder(path).sync()

    def free_bytes(self, path: str) -> int:
        disk = self.enter(2e-6)
        return max(0, disk.capacity_bytes - disk.used_bytes)

    def total_bytes(self, path: str) -> int:
        return self.enter(2e-6).capacity_bytes

    def lock(self, path: str) -> SimLock:
        disk = self.enter(10e-6)
        if path in disk.locks:
            raise BlockingIOError(errno.EAGAIN, "another process holds this lock", path)
        self.open(path, create=True).close()
        disk.locks[path] = self
        return SimLock(self, path)


class SimLock:
    """A held lock file, let go of when its process dies."""

    def __init__(self, mount: Mount, path: str) -> None:
        self._mount = mount
        self._path = path

    def check(self) -> None:
        if not self._mount.exists(self._path):
            raise OSError(errno.ENOENT, "the lock file is gone", self._path)

    def release(self) -> None:
        locks = self._mount.disk.locks
        if locks.get(self._path) is self._mount:
            del locks[self._path]


@lru_cache(10_000)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in posixpath.normpath(path).split("/") if part not in ("", "."))
