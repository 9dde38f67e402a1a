"""A registry in a SQLite file, shared by all broker processes of one machine.

All statements of a session are made by one thread, in the order of the calls. Between them, at most
TICK_S apart, it looks for what other processes wrote (watches) and for sessions that came to their end; a
process that is alone looks for others less often.
Heartbeats are another thread's, so that a slow disk does not cost the session.

A process that is stopped (SIGSTOP) in the middle of a write keeps SQLite's write lock: then reads go on,
and writes of all others wait for the session time-out and raise Unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millstream.clock import Clock, SystemClock
from millstream.registry.contract import (
    Callback,
    Node,
    Operation,
    Registry,
    RegistryError,
    SessionLost,
    Unavailable,
    check_path,
)
from millstream.registry.database import Database, is_busy, is_full, make_file
from millstream.registry.outage import Outage
from millstream.registry.session import OtherSessions, OwnSession
from millstream.registry.watches import Watches

logger = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 0.015
"""How often the thread looks at what other processes did."""

ALONE_TICK_S = 0.1
"""The same while there are none: a look takes time from whoever serves requests."""

MAX_PAUSE_S = 0.005
"""The longest pause before a busy file is tried again."""

SESSIONS_SUFFIX = "-sessions"
"""What the folder of the session files is called after the database's file."""


class _Stop(Exception):
    """The session was closed or lost while the thread waited."""


class _Worker:
    """One session: the thread, the connection that only it uses, and its queue of calls."""

    def __init__(
        self, path: str, clock: Clock, timeout_s: float, owner: SqliteRegistry, *, may_make: bool
    ) -> None:
        """`may_make` says whether a registry that is not there is a new one, or else gone."""
        self._path = path
        self._may_make = may_make
        self._timeout_s = timeout_s
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[Database], Any], asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        sessions = path + SESSIONS_SUFFIX
        self.own = OwnSession(sessions, clock, timeout_s, self._tell_lost)
        self._others = OtherSessions(sessions, clock, timeout_s)
        self._is_stopping = False
        self.is_lost = False
        self.session = 0
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.finished: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Database], T]) -> asyncio.Future[T]:
        """Have the thread make a call; from the loop only."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((function, future))
        return future

    def stop(self) -> None:
        """Have the thread end the session and itself; no call may follow. From the loop only."""
        self._is_stopping = True
        self._calls.put(None)

    async def wait(self) -> None:
        """Wait until the thread has ended."""
        await asyncio.shield(self.finished)
        self._thread.join()

    def _finish(self) -> None:
        """Refuse what was still asked; the owner knows by now that nothing more can be."""
        while not self._calls.empty():
            call = self._calls.get_nowait()
            if call is not None and not call[1].done():
                call[1].set_exception(SessionLost("the session is over; start a new one"))
        self.finished.set_result(None)

    # What follows runs in the thread.

    def _run(self) -> None:
        try:
            self._live()
        finally:
            self._post(self._finish)

    def _live(self) -> None:
        try:
            database = self._open()
        except BaseException as error:
            self._answer(self.started, error)
        else:
            self._answer(self.started, None)
            try:
                self._serve(database)
            except _Stop:
                pass
            except BaseException as error:
                logger.error("the registry's thread failed: %s", error)
                self._tell_lost()
            self._leave(database)

    def _open(self) -> Database:
        if not self._may_make:
            os.stat(self._path)
        os.makedirs(self._path + SESSIONS_SUFFIX, exist_ok=True)
        make_file(self._path)
        database = Database(self._path)
        try:
            self._patiently(database.prepare)
            self.session = self._patiently(lambda: self._begin_session(database))
            self.own.start("registry-heartbeat")
            self._look_at_others(database)
            # A broker that was killed and starts again must not meet its own ephemeral nodes.
            self._patiently(lambda: self._end_lost(database))
        except BaseException:
            self._others.close()
            self.own.close()
            database.close()
            raise
        return database

    def _begin_session(self, database: Database) -> int:
        def make_file(session: int) -> None:
            self._others.sweep(database.sessions())
            self.own.make_file(session)

        return database.begin_session(os.getpid(), make_file)

    def _serve(self, database: Database) -> None:
        next_tick = time.monotonic()
        while True:
            try:
                call = self._calls.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if call is None:
                    return
                self._make(call[0], call[1], database)
            if time.monotonic() >= next_tick:
                self._tick(database)
                next_tick = time.monotonic() + (ALONE_TICK_S if self._others.is_empty else TICK_S)

    def _make(self, function: Callable[[Database], T], future: asyncio.Future[T], database: Database) -> None:
        try:
            result = self._patiently(lambda: function(database))
        except RegistryError as error:
            if isinstance(error, SessionLost):
                self._tell_lost()
            self._answer(future, error)
        except sqlite3.Error as error:
            self._answer(future, Unavailable(f"the registry's file cannot be used: {error}"))
            if not is_full(error):
                raise
        except BaseException:
            self._answer(future, SessionLost("the session ended while the call was made"))
            raise
        else:
            try:
                self._tell_changes(database)
            finally:  # what was asked for is done, though the session may end here
                self._answer(future, None, result)

    def _patiently(self, function: Callable[[], T]) -> T:
        """Call again while another process holds the lock, up to the session time-out."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = 0.0005
        while True:
            try:
                return function()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            if self._is_stopping:
                raise _Stop
            if time.monotonic() > deadline:
                raise Unavailable("another process holds the registry's write lock; is one stopped?")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _tick(self, database: Database) -> None:
        try:
            if database.is_changed():
                self._look_at_others(database)
                self._tell_changes(database)
            self._end_lost(database)
        except sqlite3.OperationalError as error:
            if not is_busy(error) and not is_full(error):
                raise

    def _end_lost(self, database: Database) -> None:
        for session in self._others.lost():
            if database.end_session(session):
                self._tell_changes(database)
            self._others.forget(session)

    def _look_at_others(self, database: Database) -> None:
        sessions = database.sessions()
        if self.session not in sessions:
            self._tell_lost()
        self._others.know(session for session in sessions if session != self.session)

    def _tell_changes(self, database: Database) -> None:
        paths = database.changed_paths()
        if paths is None or paths:
            self._post(self._owner.tell, paths)

    def _tell_lost(self) -> None:
        self._post(self._owner.lose, self)

    def _answer(self, future: asyncio.Future[T], error: BaseException | None, result: Any = None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._post(settle)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop was closed without closing the registry

    def _leave(self, database: Database) -> None:
        """Leave as little behind as possible; what stays, others remove."""
        deadline = time.monotonic() + min(1.0, self._timeout_s)
        while time.monotonic() < deadline:
            try:
                database.end_session(self.session)
                break
            except sqlite3.Error as error:
                if not is_busy(error):
                    break
                time.sleep(MAX_PAUSE_S)
        self._others.close()
        self.own.close()
        database.close()


class SqliteRegistry(Registry):
    """A session with the registry in the file `path`, which is made if it does not exist."""

    def __init__(self, path: str, session_timeout_ms: int = 6000, clock: Clock | None = None) -> None:
        self._path = path
        self._timeout_s = session_timeout_ms / 1000
        self._clock = clock if clock is not None else SystemClock()
        self._watches = Watches()
        self._worker: _Worker | None = None
        self._ending: _Worker | None = None
        self._session = 0
        self._outage = Outage("the registry", self._clock, self.session_deadline, lambda: "")

    async def start(self) -> None:
        if self._worker is not None:
            raise RegistryError("the session has begun already")
        try:
            await self._begin()
        except RegistryError as error:
            self._outage.failed(str(error))
            raise
        self._outage.back()

    async def _begin(self) -> None:
        await self._wait_for_ending()
        worker = _Worker(self._path, self._clock, self._timeout_s, self, may_make=self._session == 0)
        try:
            await worker.started
        except BaseException as error:
            worker.stop()
            self._ending = worker
            if not isinstance(error, Exception):
                raise
            await self._wait_for_ending()
            if isinstance(error, RegistryError):
                raise
            is_damaged = type(error) is sqlite3.DatabaseError
            advice = (
                "Put a copy of it back, with which it knows the topics"
                if is_damaged
                else "See to its disk: is it mounted, sound, and can it be written?"
            )
            raise Unavailable(f"the registry {self._path} cannot be opened: {error}. {advice}") from error
        is_first = self._session == 0
        self._session = worker.session
        if worker.is_lost:
            worker.stop()
            self._ending = worker
            raise SessionLost("the session was lost as soon as it had begun")
        self._worker = worker
        if not is_first:
            self._watches.changed(None)

    async def close(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.stop()
            self._ending = worker
            self._outage.forget()
        await self._wait_for_ending()

    @property
    def session_id(self) -> int:
        return self._session

    def session_deadline(self) -> float:
        return self._worker.own.deadline if self._worker is not None else float("-inf")

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    async def get(self, path: str) -> Node:
        check_path(path)
        return await self._call(lambda database: database.get(path))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        return await self._call(lambda database: database.get_many(paths))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._call(lambda database: database.children(path))

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        for operation in operations:
            check_path(operation.path)
        session = self._session
        return await self._call(lambda database: database.multi(operations, session))

    def watch(self, path: str, callback: Callback) -> Callable[[], None]:
        check_path(path)
        return self._watches.add(path, callback)

    def tell(self, paths: list[str] | None) -> None:
        """Hear of changed paths from the thread; None means all."""
        self._watches.changed(paths)

    def lose(self, worker: _Worker) -> None:
        """Hear from the thread that its session is lost."""
        worker.is_lost = True
        if worker is not self._worker:
            return
        self._worker = None
        worker.stop()
        self._ending = worker
        self._outage.lost()
        if self.on_session_lost is not None:
            self.on_session_lost()

    async def _call(self, function: Callable[[Database], T]) -> T:
        if self._worker is None:
            raise SessionLost("the session is over; start a new one")
        return await self._worker.call(function)

    async def _wait_for_ending(self) -> None:
        if self._ending is not None:
            await self._ending.wait()
            self._ending = None
