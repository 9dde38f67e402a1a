"""A session with a ZooKeeper ensemble, through kazoo and its threads.

kazoo keeps the connection in a thread of its own, goes on to the next server when one fails, and calls back
from other threads; here all of that is brought to the event loop. Another thread sends a sign of life
BEATS times in a time-out, and cuts a connection that stays silent, so that kazoo tries the next server while
the session still lives. The thread does not depend on the event loop: a busy broker keeps its session.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, Sync
from kazoo.protocol.states import KazooState

from millstream.clock import Clock
from millstream.registry.contract import Unavailable
from millstream.registry.lease import BEATS, Lease

logger = logging.getLogger(__name__)

SILENCE = 1 / 3
"""The share of the time-out that a connection may leave a sign of life unanswered."""

CONNECT = 1 / 4
"""The share of the time-out that reaching one server may take."""

CLOSE_TIMEOUT_S = 1.0
"""How long a server may take to answer that the session is closed."""

STOP_TIMEOUT_S = 3.0
"""How long an end of the session is waited for; kazoo's threads end by themselves later if need be."""


class _KazooLogger(logging.LoggerAdapter[logging.Logger]):
    """kazoo warns of every attempt that fails; what matters of that is said here, once."""

    def log(self, level: int, msg: object, *arguments: object, **options: Any) -> None:
        super().log(logging.INFO if level == logging.WARNING else level, msg, *arguments, **options)


class Owner(Protocol):
    """Who is told what becomes of the session, on the event loop."""

    def connected(self, ensemble: Ensemble) -> None: ...

    def suspended(self, ensemble: Ensemble) -> None: ...

    def lost(self, ensemble: Ensemble) -> None: ...


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with an eye on when a connection was begun and a hand on its socket."""

    def __init__(self, clock: Clock, connect_timeout_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self.began_at = float("-inf")
        self.server = ""
        """The last server that was tried."""
        self.failure = ""
        """Why it could not be reached."""
        self.connection: socket.socket | None = None

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        options["timeout"] = min(options.get("timeout") or self._connect_timeout_s, self._connect_timeout_s)
        self.began_at = self._clock.monotonic()
        host, port = options["address"]
        self.server = f"{options.get('hostname') or host}:{port}"
        try:
            self.connection = super().create_connection(*arguments, **options)
        except OSError as error:
            self.failure = f"{self.server}: {error.strerror or error}"
            raise
        return self.connection

    def cut(self) -> None:
        """Break the connection; kazoo's thread sees it and makes another."""
        connection = self.connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Ensemble:
    """One session: a kazoo client, its lease and the thread that keeps it. Made on the event loop."""

    def __init__(self, servers: str, timeout_s: float, clock: Clock, owner: Owner) -> None:
        self._clock = clock
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._handler = _Handler(clock, timeout_s * CONNECT)
        self.client = KazooClient(
            hosts=servers,
            timeout=timeout_s,
            handler=self._handler,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5},
            logger=_KazooLogger(logging.getLogger(f"{__name__}.kazoo"), {}),
        )
        self._watch_negotiation()
        self._watch_names()
        self._servers = servers
        self.lease = Lease()
        self.session_id = 0
        self.is_connected = False
        self.is_over = False
        self._pending: set[asyncio.Future[Any]] = set()
        self._changed = asyncio.Event()
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._ending: asyncio.Future[None] | None = None
        self._ender = threading.Thread(target=self._end, name="registry-end", daemon=True)

    async def start(self) -> None:
        """Begin the session, or raise Unavailable after the time-out."""
        self.client.add_listener(self._state_changed)
        self.client.start_async()
        if not await self.wait_for_connection(self._loop.time() + self._timeout_s):
            reason = f" ({self.failure})" if self.failure else ""
            raise Unavailable(
                f"no ZooKeeper server answers within {self._timeout_s:g} s at {self._servers}{reason}"
            )
        self._heart = threading.Thread(target=self._beat, name="registry-heartbeat", daemon=True)
        self._heart.start()

    @property
    def failure(self) -> str:
        """Why the last server that was tried could not be reached; empty if it was."""
        return self._handler.failure

    async def wait_for_connection(self, deadline: float) -> bool:
        """Wait until there is a connection, or the session is over, or the deadline passes."""
        while not self.is_connected and not self.is_over:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return self.is_connected

    async def stop(self) -> None:
        """End the session and the threads."""
        if self._ending is None:
            self._over()
            self.lease.end()
            self._stop.set()
            self._ending = self._loop.create_future()
            self._ender.start()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.shield(self._ending)
            self._ender.join()
        except TimeoutError:
            logger.warning("ZooKeeper's client did not end within %s s", STOP_TIMEOUT_S)

    def future(self, result: Any) -> asyncio.Future[Any]:
        """A result of kazoo's, to be awaited; a session that comes to its end fails it at once."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        result.rawlink(lambda result: self.post(_settle, future, result))
        return future

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the event loop call a function; from any thread."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop was closed without closing the registry

    # ------------------------------------------------ on the event loop, told by kazoo's thread

    def _connected(self, session_id: int) -> None:
        if not self.is_over:
            self.session_id = session_id
            self.is_connected = True
            self._changed.set()
            self._owner.connected(self)

    def _suspended(self) -> None:
        if not self.is_over:
            self.is_connected = False
            self._owner.suspended(self)

    def _lost(self) -> None:
        if not self.is_over:
            self._over()
            self._owner.lost(self)

    def _over(self) -> None:
        self.is_over = True
        self.is_connected = False
        for future in list(self._pending):
            if not future.done():
                future.set_exception(SessionExpiredError())
        self._changed.set()

    def _ended(self) -> None:
        assert self._ending is not None
        if not self._ending.done():
            self._ending.set_result(None)

    # ------------------------------------------------ in other threads

    def _watch_negotiation(self) -> None:
        """Note the time-out that the server grants, or why it grants none: kazoo keeps it to itself.

        A server closes the connection when it has no majority, and when its data is older than what this
        session has seen.
        """
        connection = self.client._connection
        invoke = connection._invoke

        def noting(timeout: float, request: Any, xid: int | None = None) -> Any:
            try:
                result = invoke(timeout, request, xid)
            except ConnectionDropped:
                self._handler.failure = (
                    f"{self._handler.server} refuses sessions: it is without a majority, or lost its data"
                )
                raise
            except self._handler.timeout_exception:
                self._handler.failure = f"{self._handler.server} does not answer"
                raise
            if isinstance(request, Connect):
                self.granted_s = result[0].time_out / 1000
                self._handler.failure = ""
            return result

        connection._invoke = noting
        self.granted_s = self._timeout_s

    def _watch_names(self) -> None:
        """Note which names lead nowhere: kazoo passes them by."""
        connection = self.client._connection
        expand = connection._expand_client_hosts

        def noting() -> Any:
            found = expand()
            known = {host for host, _, _ in found}
            unknown = [host for host, _ in self.client.hosts if host.strip() not in known]
            if unknown:
                self._handler.failure = f"the name {unknown[0]} is not known"
            return found

        connection._expand_client_hosts = noting

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.lease.connected(self._handler.began_at, self.granted_s)
            self._sync_first()
            self.post(self._connected, self.client.client_id[0])
        elif state == KazooState.SUSPENDED:
            self.post(self._suspended)
        else:
            self.lease.end()
            self.post(self._lost)

    def _sync_first(self) -> None:
        """Have a `sync` sent before anything else: what was written through another server may be under way.

        Called by kazoo's thread when a connection begins, before that sends anything. A read may wait to be
        sent already: kazoo fails what was under way first, and tells later that the connection broke. So the
        `sync` goes to the front of what waits, where kazoo itself only ever adds to the end.
        """
        self.client._queue.appendleft((Sync("/"), self._handler.async_result()))
        waker = self.client._connection._write_sock
        if waker is not None:  # else the client is being closed
            with suppress(OSError):
                waker.send(b"\0")

    def _beat(self) -> None:
        """Send a sign of life, wait for the answer, and again until the session ends."""
        while not self._stop.wait(self.granted_s / BEATS):
            try:
                if not self._beat_once():
                    return
            except Exception:  # kazoo keeps the session alive: without a heart nobody would count on it
                logger.exception("a sign of life could not be sent; it is tried again")

    def _beat_once(self) -> bool:
        """Send one sign of life, and wait for the answer; false if the session is over."""
        if not self.client.connected:
            return True
        connection, sent_at = self.lease.connection, self._clock.monotonic()
        result = self.client.sync_async("/")
        if not result.wait(self.granted_s * SILENCE):
            if connection == self.lease.connection and not self._stop.is_set():
                logger.warning("ZooKeeper's server is silent; trying another")
                self._handler.cut()
            return True
        error = result.exception
        if error is None:
            self.lease.answered(sent_at, connection)
        elif isinstance(error, SessionExpiredError):
            self.lease.end()
            self.post(self._lost)
            return False
        return True

    def _end(self) -> None:
        patience = threading.Timer(CLOSE_TIMEOUT_S, self._handler.cut)
        patience.daemon = True
        patience.start()
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            logger.warning("the session with ZooKeeper did not end well: %s", error)
        patience.cancel()
        patience.join()
        if self._heart is not None:
            self._heart.join()
        self.post(self._ended)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)
