"""A blocking face over asyncio: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

from millstream.errors import MillstreamError, RequestTimedOut

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""What a call gets beyond its own deadline: the coroutine is to end by itself, and to say why."""


class Closed(MillstreamError):
    """The object was closed; it takes no more calls."""


_LIVE: WeakSet[Any] = WeakSet()


def tell_of_fork(owner: Any) -> None:
    """Have `owner._forked()` called in a process that was forked off: its threads do not run there."""
    _LIVE.add(owner)


def _forked() -> None:
    for owner in list(_LIVE):
        owner._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class LoopThread:
    """Runs coroutines for threads that block until they are done.

    The coroutines keep their own deadlines; `timeout` in `run` is that deadline again, so that a loop
    that hangs does not hang its callers.
    """

    def __init__(self, name: str) -> None:
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._is_closed = False
        self._is_elsewhere = False
        tell_of_fork(self)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_current(self) -> bool:
        """Whether this is called on the loop: by a callback."""
        return threading.current_thread() is self._thread

    def _forked(self) -> None:
        self._is_closed = self._is_elsewhere = True

    def closed(self, what: str) -> Closed:
        """The error for a call that comes too late."""
        if self._is_elsewhere:
            return Closed(f"{what} belongs to the process before the fork: make one of your own")
        return Closed(f"{what} is closed")

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        A caller that is interrupted (Ctrl-C) cancels the coroutine.
        """
        if self._is_closed:
            work.close()
            raise self.closed("it")
        if self.is_current:
            work.close()
            raise RuntimeError("a blocking call from its own event loop would never end")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(None if timeout is None else timeout + GRACE_SECONDS)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # the coroutine's own
            future.cancel()
            raise RequestTimedOut(f"not done in {timeout} seconds") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Have the loop call something; nothing happens once it is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._is_closed:
                raise

    def close(self) -> None:
        """Stop the loop, cancel what still runs on it, and wait for the thread. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
