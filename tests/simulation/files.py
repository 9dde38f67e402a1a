"""Files and folders that remember what has not reached the platter yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

SECTOR_BYTES = 512
PAGE_BYTES = 4096


class Inode:
    """A file's bytes as processes see them, and the changes since the last fsync.

    `_synced` is the state a power loss cannot touch; applying `_changes` in order gives `data`. A
    change is (offset, bytes) for a write, (size, None) for a truncation.
    """

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.mtime_ms = now_ms
        self._synced = bytearray()
        self._changes: list[tuple[int, bytes | None]] = []

    @property
    def unsynced_changes(self) -> int:
        return len(self._changes)

    @property
    def synced_data(self) -> bytes:
        return bytes(self._synced)

    def append(self, data: bytes, now_ms: int) -> None:
        self.pwrite(data, len(self.data), now_ms)

    def pwrite(self, data: bytes, offset: int, now_ms: int) -> None:
        self._changes.append((offset, data))
        _write(self.data, offset, data)
        self.mtime_ms = now_ms

    def rot(self, data: bytes, offset: int) -> None:
        """Other bytes lie where these did, also on the platter: no power loss undoes that."""
        _overlay(self.data, 0, data, offset)
        _overlay(self._synced, 0, data, offset)
        for place, (start, change) in enumerate(self._changes):
            if change is not None:
                changed = bytearray(change)
                _overlay(changed, start, data, offset)
                self._changes[place] = start, bytes(changed)

    def truncate(self, size: int, now_ms: int) -> None:
        self._changes.append((size, None))
        _truncate(self.data, size)
        self.mtime_ms = now_ms

    def sync(self) -> None:
        for offset, data in self._changes:
            _apply(self._synced, offset, data)
        self._changes.clear()

    def forget_unsynced(self) -> None:
        """A failed fsync: the kernel calls the pages clean, so no later fsync will write them.

        What a power loss then leaves is the state of the last good fsync: the worst case.
        """
        self._changes.clear()

    def tear(self, random: Random) -> str:
        """Become what a power loss leaves; says what was lost, or nothing."""
        before = bytes(self.data)
        self.data = bytearray(self._synced)
        kept = random.randint(0, len(self._changes))
        holes = 0
        for offset, data in self._changes[:kept]:
            if data is not None and random.random() < 0.02:
                data = _with_hole(random, data)
                holes += 1
            _apply(self.data, offset, data)
        if kept < len(self._changes):
            offset, data = self._changes[kept]
            if data is not None:
                _apply(self.data, offset, _torn(random, data))
        total = len(self._changes)
        self._changes.clear()
        self._synced = bytearray(self.data)
        if self.data == before:
            return ""
        return f"{len(before)} bytes become {len(self.data)}, {kept} of {total} changes kept, {holes} holes"


class Folder:
    """Names in a folder, and the changes of names since the last fsync of it.

    A change is (name, node) for a new name, (name, None) for a removed one; a rename within the
    folder is both at once, and a power loss keeps or loses it whole.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Folder | Inode] = {}
        self._synced: dict[str, Folder | Inode] = {}
        self._changes: list[list[tuple[str, Folder | Inode | None]]] = []

    def find(self, parts: Iterable[str]) -> Folder | Inode | None:
        node: Folder | Inode | None = self
        for part in parts:
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(part)
        return node

    def walk(self, path: str) -> Iterator[tuple[str, Inode]]:
        for name, node in self.entries.items():
            if isinstance(node, Folder):
                yield from node.walk(f"{path}/{name}")
            else:
                yield f"{path}/{name}", node

    def add(self, name: str, node: Folder | Inode) -> None:
        self._change([(name, node)])

    def drop(self, name: str) -> None:
        self._change([(name, None)])

    def move(self, name: str, target: Folder, new_name: str) -> None:
        node = self.entries[name]
        if target is self:
            self._change([(name, None), (new_name, node)])
        else:
            target.add(new_name, node)
            self.drop(name)

    def _change(self, change: list[tuple[str, Folder | Inode | None]]) -> None:
        self._changes.append(change)
        _rename(self.entries, change)

    def sync(self) -> None:
        for change in self._changes:
            _rename(self._synced, change)
        self._changes.clear()

    def tear(self, random: Random, path: str, torn: list[str]) -> None:
        before = list(self.entries)
        self.entries = dict(self._synced)
        for change in self._changes[: random.randint(0, len(self._changes))]:
            _rename(self.entries, change)
        self._changes.clear()
        self._synced = dict(self.entries)
        if list(self.entries) != before:
            torn.append(f"{path or '/'} loses names {sorted(set(before) ^ set(self.entries))}")
        for name, node in self.entries.items():
            if isinstance(node, Folder):
                node.tear(random, f"{path}/{name}", torn)
            elif line := node.tear(random):
                torn.append(f"{path}/{name}: {line}")


def _rename(entries: dict[str, Folder | Inode], change: list[tuple[str, Folder | Inode | None]]) -> None:
    for name, node in change:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _apply(data: bytearray, offset: int, change: bytes | None) -> None:
    if change is None:
        _truncate(data, offset)
    else:
        _write(data, offset, change)


def _write(data: bytearray, offset: int, change: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(change)] = change


def _overlay(held: bytearray, start: int, data: bytes, offset: int) -> None:
    """Change the part of `held`, which begins at `start`, where `data` lies from `offset` on."""
    first, end = max(start, offset), min(start + len(held), offset + len(data))
    if first < end:
        held[first - start : end - start] = data[first - offset : end - offset]


def _truncate(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _torn(random: Random, data: bytes) -> bytes:
    """A write of which a part reached the platter, its last sector perhaps as zeros or garbage."""
    cut = random.randint(0, len(data))
    ending = random.choice(("clean", "zeros", "garbage"))
    if ending == "clean":
        return data[:cut]
    start = max(0, cut - random.randint(1, SECTOR_BYTES))
    tail = bytes(cut - start) if ending == "zeros" else random.randbytes(cut - start)
    return data[:start] + tail


def _with_hole(random: Random, data: bytes) -> bytes:
    """A write of which one page did not reach the platter, though later ones did."""
    start = random.randrange(len(data)) if data else 0
    end = min(len(data), start + PAGE_BYTES)
    return data[:start] + bytes(end - start) + data[end:]
