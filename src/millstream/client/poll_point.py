"""Work that is done between two polls: the caller is then done with the records that it got.

The coordinator of a group may take partitions away at any time. What it takes is given up when the caller
asks for more records, so that callbacks and commits never cross the work on a record. The event loop
leaves what is to be done here, and whoever polls does it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Work = Callable[[], Awaitable[None]]


class PollPoint:
    """A queue of work that waits for the next poll. `is_due` is cheap to look at for every record."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.is_due = False
        self.is_waiting = False
        self.polled_at = self._loop.time()
        self._due: deque[tuple[Work, asyncio.Future[None] | None]] = deque()
        self._errors: deque[BaseException] = deque()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        self._is_attending = False

    async def run(self, work: Work) -> None:
        """Have the next poll do `work`, and wait until it is done. Its errors are the poll's."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._due.append((work, done))
        self.interrupt()
        await done

    def leave(self, work: Work) -> None:
        """Have the next poll do `work`."""
        self._due.append((work, None))
        self.interrupt()

    def fail(self, error: BaseException, *, for_good: bool = False) -> None:
        """Have the next poll raise `error`, and all that follow if it is `for_good`."""
        if for_good:
            self._failure = error
        elif not any(type(other) is type(error) and other.args == error.args for other in self._errors):
            self._errors.append(error)  # one that is met again and again is raised once for each poll
        self.interrupt()

    def clear(self) -> None:
        """Forget a failure for good: the caller begins anew."""
        self._failure = None
        self.is_due = bool(self._due or self._errors)

    def wake(self) -> None:
        """There is something new for a poll that waits."""
        self._changed.set()

    @property
    def idle_ms(self) -> float:
        """How long ago the caller asked for something; 0 while it waits for it."""
        return 0.0 if self.is_waiting else (self._loop.time() - self.polled_at) * 1000

    def has_polled(self) -> None:
        """The caller asked for something just now."""
        self.polled_at = self._loop.time()

    def interrupt(self) -> None:
        """Have whoever hands out records look again at what is ready."""
        self.is_due = True
        self._changed.set()

    async def attend(self) -> None:
        """Do what is due; raise what has failed."""
        if self._is_attending:
            raise RuntimeError("a poll is under way: a consumer has one task, and callbacks must not poll")
        self.has_polled()
        self._is_attending = True
        try:
            while self._due:
                await self._do_next()
        finally:
            self._is_attending = False
            self.is_due = bool(self._due or self._errors or self._failure)
        if self._errors:
            error = self._errors.popleft()
            self.is_due = bool(self._errors or self._failure)
            raise error
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    async def _do_next(self) -> None:
        work, done = self._due.popleft()
        if done is not None and done.done():
            return  # whoever left it has gone
        try:
            await work()
        except asyncio.CancelledError:
            self._due.appendleft((work, done))  # the poll was given up, not its work: the next one does it
            raise
        except BaseException:
            _end(done)
            raise
        _end(done)

    async def wait(self, timeout_seconds: float) -> None:
        """Until there is something new, at most so long."""
        if self.is_due:
            return
        self._changed.clear()
        self.is_waiting = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.is_waiting = False
            self.has_polled()


def _end(done: asyncio.Future[None] | None) -> None:
    if done is not None and not done.done():
        done.set_result(None)
