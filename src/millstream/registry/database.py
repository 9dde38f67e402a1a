"""The tree in a SQLite file: the statements, all made by one thread.

Tables of `registry.db` (WAL mode, `user_version` 1):

    nodes     parent, name -> data, version, created, modified, session   (the root is ('', ''))
    counter   the number of the last write
    changes   write, path: which paths the last KEPT_WRITES writes changed, for watches
    sessions  id of every session that is not over; its lock and heartbeat are in `registry.db-sessions/<id>`

Each write takes the next number and notes the paths that it changes, in the same transaction; readers of
other processes see through `data_version` that there is something new, and what in `changes`. A write is
on the disk when it returns (synchronous=FULL), except the beginning of a session, which dies with the
power anyway.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence

from millstream.registry.contract import (
    ANY,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    RegistryError,
    SessionLost,
    split,
)

FORMAT = 1
KEPT_WRITES = 1000

_SCHEMA = (
    "CREATE TABLE nodes (parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,"
    " version INTEGER NOT NULL, created INTEGER NOT NULL, modified INTEGER NOT NULL,"
    " session INTEGER NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID",
    "CREATE INDEX owned ON nodes (session) WHERE session != 0",
    "CREATE TABLE counter (write INTEGER NOT NULL)",
    "CREATE TABLE changes (write INTEGER NOT NULL, path TEXT NOT NULL,"
    " PRIMARY KEY (write, path)) WITHOUT ROWID",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, process INTEGER NOT NULL)",
    "INSERT INTO nodes VALUES ('', '', x'', 0, 0, 0, 0)",
    "INSERT INTO counter VALUES (0)",
    f"PRAGMA user_version = {FORMAT}",
)

_FIND = "SELECT data, version, created, modified, session FROM nodes WHERE parent = ? AND name = ?"


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process holds a lock that will pass."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _key(path: str) -> tuple[str, str]:
    return ("", "") if path == "/" else split(path)


class Database:
    """A connection. Every method may raise sqlite3.OperationalError when the file is busy."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
        self._seen_version = -1
        self._seen_write = 0

    def prepare(self) -> None:
        """Make the file a registry if it is new."""
        run = self._db.execute
        run("PRAGMA synchronous = FULL")
        if run("PRAGMA user_version").fetchone()[0] == 0:
            _make_schema(self._db)
        found = run("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            raise RegistryError(f"the registry's file has format {found}; this version reads {FORMAT}")
        self._seen_write = self._last_write()
        self._seen_version = self._data_version()

    def close(self) -> None:
        self._db.close()

    def get(self, path: str) -> Node:
        data, version, created, modified, session = self._find(path)
        return Node(data, version, created, modified, session != 0)

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._db.execute("BEGIN")
        try:
            rows = [self._db.execute(_FIND, _key(path)).fetchone() for path in paths]
        finally:
            self._db.execute("COMMIT")
        return [None if row is None else Node(row[0], row[1], row[2], row[3], row[4] != 0) for row in rows]

    def children(self, path: str) -> list[str]:
        self._find(path)
        rows = self._db.execute(
            "SELECT name FROM nodes WHERE parent = ? AND name != '' ORDER BY name", (path,)
        )
        return [name for (name,) in rows]

    def multi(self, operations: Sequence[Operation], session: int) -> list[int]:
        """Apply the operations of a session in one transaction."""
        with _Transaction(self._db):
            if not self._has_session(session):
                raise SessionLost("another process declared the session lost")
            return self._apply(operations, session)

    def changed_paths(self) -> list[str] | None:
        """What changed since the last call; None if it is too long ago to say."""
        last, seen = self._last_write(), self._seen_write
        self._seen_write = last
        if last == seen:
            return []
        if last - seen > KEPT_WRITES:
            return None
        rows = self._db.execute("SELECT DISTINCT path FROM changes WHERE write > ?", (seen,))
        return [path for (path,) in rows]

    def is_changed(self) -> bool:
        """Whether another connection has written since the last call."""
        version = self._data_version()
        if version == self._seen_version:
            return False
        self._seen_version = version
        return True

    def sessions(self) -> list[int]:
        return [session for (session,) in self._db.execute("SELECT id FROM sessions")]

    def begin_session(self, process: int, make_file: Callable[[int], None]) -> int:
        """Enter a new session; `make_file` must make others see it alive before they can see its row."""
        self._db.execute("PRAGMA synchronous = NORMAL")
        try:
            with _Transaction(self._db):
                session = self._db.execute("INSERT INTO sessions (process) VALUES (?)", (process,)).lastrowid
                assert session is not None
                make_file(session)
                return session
        finally:
            self._db.execute("PRAGMA synchronous = FULL")

    def end_session(self, session: int) -> bool:
        """Take a session and its nodes away; False if another process did already."""
        if not self._has_session(session):
            return False
        with _Transaction(self._db):
            if not self._has_session(session):
                return False
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session,))
            rows = self._db.execute("SELECT parent, name FROM nodes WHERE session = ?", (session,))
            owned = [f"{parent}/{name}".replace("//", "/") for parent, name in rows]
            if owned:
                self._apply([Delete(path) for path in owned], session)
            return True

    def _apply(self, operations: Sequence[Operation], session: int) -> list[int]:
        write = self._last_write() + 1
        changed: set[str] = set()
        versions = [self._apply_one(operation, session, write, changed) for operation in operations]
        if changed:
            run = self._db.execute
            run("UPDATE counter SET write = ?", (write,))
            self._db.executemany(
                "INSERT INTO changes VALUES (?, ?)", ((write, path) for path in sorted(changed))
            )
            run("DELETE FROM changes WHERE write <= ?", (write - KEPT_WRITES,))
        return versions

    def _apply_one(self, operation: Operation, session: int, write: int, changed: set[str]) -> int:
        path = operation.path
        if isinstance(operation, Create):
            self._create(operation, session, write)
            changed.update((path, split(path)[0]))
            return 0
        version = int(self._find(path)[1])
        if operation.version not in (ANY, version):
            raise BadVersion(f"{path} has version {version}, not {operation.version}", path)
        if isinstance(operation, Check):
            return operation.version
        parent, name = _key(path)
        if isinstance(operation, Delete):
            if path == "/":
                raise RegistryError("the root cannot be deleted", path)
            if self._db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmpty(f"{path} has children", path)
            self._db.execute("DELETE FROM nodes WHERE parent = ? AND name = ?", (parent, name))
            changed.update((path, parent))
            return ANY
        self._db.execute(
            "UPDATE nodes SET data = ?, version = version + 1, modified = ? WHERE parent = ? AND name = ?",
            (bytes(operation.data), write, parent, name),
        )
        changed.add(path)
        return version + 1

    def _create(self, operation: Create, session: int, write: int) -> None:
        path = operation.path
        parent, name = _key(path)
        if self._db.execute(_FIND, (parent, name)).fetchone():
            raise NodeExists(f"there is a node {path} already", path)
        if self._find(parent)[4]:
            raise NoChildrenAllowed(f"{parent} is ephemeral and has no children", path)
        owner = session if operation.ephemeral else 0
        self._db.execute(
            "INSERT INTO nodes VALUES (?, ?, ?, 0, ?, ?, ?)",
            (parent, name, bytes(operation.data), write, write, owner),
        )

    def _find(self, path: str) -> tuple[bytes, int, int, int, int]:
        row: tuple[bytes, int, int, int, int] | None = self._db.execute(_FIND, _key(path)).fetchone()
        if row is None:
            raise NoNode(f"there is no node {path}", path)
        return row

    def _has_session(self, session: int) -> bool:
        return self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone() is not None

    def _last_write(self) -> int:
        return int(self._db.execute("SELECT write FROM counter").fetchone()[0])

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])


def make_file(path: str) -> None:
    """Put a new registry at `path` with two flushes, its own and its name's, unless there is a file already.

    It is made beside, flushed and linked, so that nobody ever sees it half made. Where that cannot be done,
    `prepare` makes it in place, with a flush at every step.
    """
    if os.path.exists(path):
        return
    beside = f"{path}.{os.getpid()}-{threading.get_ident()}.new"
    try:
        db = sqlite3.connect(beside, timeout=0, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")
            _make_schema(db)
        finally:
            db.close()
        descriptor = os.open(beside, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(beside, path)
        _flush_folder(os.path.dirname(path) or ".")
    except OSError:
        pass  # another process was first, or the file system has no links
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def _flush_folder(path: str) -> None:
    """Make the names in a folder durable: the first write of a registry must not outlive its file's name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_schema(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    with _Transaction(db):
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _SCHEMA:
                db.execute(statement)


class _Transaction:
    """A write transaction from its first statement on, rolled back on any error."""

    __slots__ = ("_db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._db.execute("COMMIT")
                return
            except sqlite3.Error:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
