"""A registry in memory, for simulations and tests: one tree, shared by the sessions of one process.

Nothing is durable. The sessions may live on event loops of different threads. A session can be cut off
from the tree and lost, as one of a process that is paused or behind a broken network would be.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence

from millstream.registry.contract import (
    ANY,
    BadVersion,
    Callback,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Registry,
    RegistryError,
    SessionLost,
    Unavailable,
    check_path,
    split,
)
from millstream.registry.watches import Watches


class _Entry:
    __slots__ = ("children", "created", "data", "modified", "session", "version")

    def __init__(self, data: bytes, created: int, session: int) -> None:
        self.data = data
        self.version = 0
        self.created = self.modified = created
        self.session = session
        self.children: set[str] = set()

    def node(self) -> Node:
        return Node(self.data, self.version, self.created, self.modified, self.session != 0)


class MemoryTree:
    """The nodes, and the sessions that look at them. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {"/": _Entry(b"", 0, 0)}
        self._sessions: dict[int, MemoryRegistry] = {}
        self._next_session = 1
        self._write = 0

    def open(self, registry: MemoryRegistry) -> int:
        with self._lock:
            session = self._next_session
            self._next_session += 1
            self._sessions[session] = registry
            return session

    def expire(self, session: int) -> None:
        """End a session, however it came to its end: its ephemeral nodes go, in one write."""
        with self._lock:
            if self._sessions.pop(session, None) is None:
                return
            owned = [path for path, entry in self._entries.items() if entry.session == session]
            if owned:
                self._apply([Delete(path) for path in owned], session)

    def is_open(self, session: int) -> bool:
        return session in self._sessions

    def get(self, path: str) -> Node:
        check_path(path)
        with self._lock:
            return self._find(path).node()

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        with self._lock:
            found = map(self._entries.get, paths)
            return [None if entry is None else entry.node() for entry in found]

    def children(self, path: str) -> list[str]:
        check_path(path)
        with self._lock:
            return sorted(self._find(path).children)

    def multi(self, operations: Sequence[Operation], session: int) -> list[int]:
        for operation in operations:
            check_path(operation.path)
        with self._lock:
            return self._apply(operations, session)

    def _find(self, path: str) -> _Entry:
        entry = self._entries.get(path)
        if entry is None:
            raise NoNode(f"there is no node {path}", path)
        return entry

    def _matching(self, path: str, version: int) -> _Entry:
        entry = self._find(path)
        if version not in (ANY, entry.version):
            raise BadVersion(f"{path} has version {entry.version}, not {version}", path)
        return entry

    def _apply(self, operations: Sequence[Operation], session: int) -> list[int]:
        undo: list[Callable[[], None]] = []
        changed: dict[str, None] = {}
        write = self._write + 1
        try:
            versions = [self._apply_one(operation, session, write, undo, changed) for operation in operations]
        except RegistryError:
            for step in reversed(undo):
                step()
            raise
        if changed:
            self._write = write
        for registry in self._sessions.values():
            registry.tell(list(changed))
        return versions

    def _apply_one(
        self,
        operation: Operation,
        session: int,
        write: int,
        undo: list[Callable[[], None]],
        changed: dict[str, None],
    ) -> int:
        path = operation.path
        parent, name = split(path)
        if isinstance(operation, Create):
            if path in self._entries:
                raise NodeExists(f"there is a node {path} already", path)
            above = self._find(parent)
            if above.session:
                raise NoChildrenAllowed(f"{parent} is ephemeral and has no children", path)
            self._entries[path] = _Entry(bytes(operation.data), write, session if operation.ephemeral else 0)
            above.children.add(name)

            def remove() -> None:
                above.children.discard(name)
                del self._entries[path]

            undo.append(remove)
            changed[path] = changed[parent] = None
            return 0
        entry = self._matching(path, operation.version)
        if isinstance(operation, Check):
            return operation.version
        if isinstance(operation, Delete):
            if path == "/":
                raise RegistryError("the root cannot be deleted", path)
            if entry.children:
                raise NotEmpty(f"{path} has children", path)
            siblings = self._entries[parent].children
            del self._entries[path]
            siblings.discard(name)

            def put_back() -> None:
                siblings.add(name)
                self._entries[path] = entry

            undo.append(put_back)
            changed[path] = changed[parent] = None
            return ANY
        old = entry.data, entry.version, entry.modified

        def restore() -> None:
            entry.data, entry.version, entry.modified = old

        undo.append(restore)
        entry.data, entry.version, entry.modified = bytes(operation.data), entry.version + 1, write
        changed[path] = None
        return entry.version


class MemoryRegistry(Registry):
    """One session with a MemoryTree."""

    def __init__(self, tree: MemoryTree | None = None, session_timeout_ms: int = 6000) -> None:
        self._tree = tree if tree is not None else MemoryTree()
        self._timeout_s = session_timeout_ms / 1000
        self._watches = Watches()
        self._session = 0
        self._is_open = False
        self._deadline = math.inf
        self._expiry: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        if self._is_open:
            raise RegistryError("the session has begun already")
        self._loop = asyncio.get_running_loop()
        is_first = self._session == 0
        self._session = self._tree.open(self)
        self._is_open = True
        self._deadline = math.inf
        if not is_first:
            self._watches.changed(None)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._forget_expiry()
            self._tree.expire(self._session)

    @property
    def session_id(self) -> int:
        return self._session

    def session_deadline(self) -> float:
        return self._deadline if self._is_open else -math.inf

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    async def get(self, path: str) -> Node:
        self._check_session()
        return self._tree.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._check_session()
        return self._tree.get_many(paths)

    async def children(self, path: str) -> list[str]:
        self._check_session()
        return self._tree.children(path)

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        self._check_session()
        return self._tree.multi(operations, self._session)

    def watch(self, path: str, callback: Callback) -> Callable[[], None]:
        check_path(path)
        return self._watches.add(path, callback)

    def tell(self, paths: list[str]) -> None:
        """Hear of changed paths, from whichever thread changed them."""
        loop = self._loop
        if loop is None or self._expiry is not None:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            self._watches.changed(paths)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._watches.changed, paths)

    def cut_off(self) -> None:
        """Take the connection away: calls fail, and after the time-out the session is lost."""
        if self._is_open and self._expiry is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.time() + self._timeout_s
            self._expiry = loop.call_later(self._timeout_s, self.lose)

    def reconnect(self) -> None:
        """Give the connection back. If the session was lost meanwhile, it stays lost."""
        if self._expiry is not None:
            self._forget_expiry()
            self._deadline = math.inf
            self._watches.changed(None)

    def lose(self) -> None:
        """Lose the session at once, as after a time-out."""
        if not self._is_open:
            return
        self._is_open = False
        self._forget_expiry()
        self._tree.expire(self._session)
        if self.on_session_lost is not None:
            asyncio.get_running_loop().call_soon(self.on_session_lost)

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _check_session(self) -> None:
        if not self._is_open:
            raise SessionLost("the session is over; start a new one")
        if self._expiry is not None:
            raise Unavailable("the registry cannot be reached")
