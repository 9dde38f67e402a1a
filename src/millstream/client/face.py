"""A blocking face over asyncio: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from millstream.errors import MillstreamError, RequestTimedOut
from millstream.net.event_loop import loop_factory

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""What a call gets beyond its own deadline: the coroutine is to end by itself, and to say why."""


ROUNDS = 3
"""How often what still runs is cancelled at the end: a call that comes at that moment is met, too."""


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


class Call(Generic[T]):
    """A coroutine that runs on a loop for a thread that waits for it.

    The thread may give it up at any moment, a signal having come, even before the loop has heard of it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, T]],
        on_done: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._work = work
        self._on_done = on_done
        self._task: asyncio.Task[T] | None = None
        self._is_given_up = False

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if not self._is_given_up:
            self._task = self._loop.create_task(self._work())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # taken, though nobody may ask any more
        self._on_done()

    def result(self) -> T:
        """What came of it, once it is done."""
        if self._task is None:
            raise RuntimeError("it was given up before it began")
        return self._task.result()

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._is_given_up = True
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the loop is closed, and has cancelled it

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class LoopThread:
    """Runs coroutines for threads that block until they are done.

    The coroutines keep their own deadlines; `timeout` in `run` is that deadline again, so that a loop
    that hangs does not hang its callers.
    """

    def __init__(self, name: str) -> None:
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._is_closed = False
        self._is_elsewhere = False
        self._last: asyncio.Task[None] | None = None
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
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            for _ in range(ROUNDS):
                tasks = asyncio.all_tasks(self._loop)
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
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

    def abandon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one last coroutine and end, without anyone waiting for it: its owner is gone."""
        if self._is_closed:
            return
        self._is_closed = True

        def end() -> None:
            self._last = self._loop.create_task(work())
            self._last.add_done_callback(lambda _: self._loop.stop())

        self._loop.call_soon_threadsafe(end)
