"""What becomes of a record that was sent.

A `Delivery` is light: it names a place in a batch, and all records of a batch share one outcome. Nothing is
made for a waiter before there is one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, NamedTuple

from millstream.errors import RequestTimedOut
from millstream.protocol.client_kernel import Place

NO_OFFSET = -1


class Delivered(NamedTuple):
    """Where a record was written. The offset is -1 where no broker told it (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Outcome:
    """Something that will be known, once, and those who wait for it.

    Waiters may come from any thread; each is called once, in the thread that settles the outcome or, if that
    was before, in its own. Lists are changed by single operations only, so that no lock is needed.
    """

    __slots__ = ("_waiters", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._waiters: list[Callable[[], object]] = []

    def add_waiter(self, waiter: Callable[[], object]) -> None:
        self._waiters.append(waiter)
        if self.is_done:
            self._call_waiters()

    def settle(self) -> None:
        """Say that it is known now."""
        self.is_done = True
        self._call_waiters()

    def _call_waiters(self) -> None:
        waiters = self._waiters
        while waiters:
            try:
                waiter = waiters.pop(0)
            except IndexError:
                return  # another thread took the last one
            waiter()

    def delivered(self, index: int, timestamp_ms: int) -> Delivered:
        """The result of one record; raises the error of all."""
        raise NotImplementedError


class Unplaced(Outcome):
    """Records that wait until their topic is known: they move to batches, or fail together."""

    __slots__ = ("error", "has_moved")

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.has_moved = False

    def add_waiter(self, waiter: Callable[[], object]) -> None:
        super().add_waiter(waiter)
        if self.has_moved:  # between the waiter's look at where its record is and now
            self._call_waiters()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.settle()

    def moved(self) -> None:
        """The deliveries have other outcomes now: let those who wait look again."""
        self.has_moved = True
        self._call_waiters()

    def delivered(self, index: int, timestamp_ms: int) -> Delivered:
        raise fresh_error(self.error)


class Delivery(Place):
    """One record on its way. Await it, or ask for its `result`, to know where it was written.

    Nobody has to: `flush` and `close` wait for all records, and a delivery that nobody asks costs nothing.
    """

    __slots__ = ()

    def place(self, outcome: Outcome, index: int, timestamp_ms: int) -> None:
        """Take another outcome; the old one then tells those who wait."""
        self.outcome, self.index, self.timestamp_ms = outcome, index, timestamp_ms

    def done(self) -> bool:
        """Whether the record was written or failed."""
        is_done: bool = self.outcome.is_done
        return is_done

    def result(self, timeout: float | None = None) -> Delivered:
        """Where the record was written, waiting up to `timeout` seconds; its error if it failed.

        This blocks the thread. In a coroutine, await the delivery instead.
        """
        if not self.outcome.is_done:
            self._block(timeout)
        return self._delivered()

    def _delivered(self) -> Delivered:
        delivered: Delivered = self.outcome.delivered(self.index, self.timestamp_ms)
        return delivered

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error with which the record failed, None if it was written; waits like `result`."""
        if not self.outcome.is_done:
            self._block(timeout)
        try:
            self._delivered()
        except Exception as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with this delivery once it is done: at once, if it is.

        It runs in the producer's loop and must be quick.
        """
        self.outcome.add_waiter(partial(self._call_back, callback))

    def _call_back(self, callback: Callable[[Delivery], object]) -> None:
        if not self.outcome.is_done:  # it was placed in a batch meanwhile
            self.outcome.add_waiter(partial(self._call_back, callback))
            return
        try:
            callback(self)
        except BaseException as error:
            loop = asyncio._get_running_loop()
            is_programs = threading.current_thread() is threading.main_thread()
            if loop is None or (is_programs and not isinstance(error, Exception)):
                raise  # else sys.exit() would end a producer's own thread, and leave its callers waiting
            loop.call_exception_handler({"message": "a delivery's callback failed", "exception": error})

    def _block(self, timeout: float | None) -> None:
        if asyncio._get_running_loop() is not None:
            raise asyncio.InvalidStateError("the record is not delivered yet: await its delivery")
        known = threading.Event()
        self.add_done_callback(lambda _: known.set())
        if not known.wait(timeout):
            raise RequestTimedOut(f"the record was not delivered in {timeout} seconds")

    def __await__(self) -> Generator[Any, None, Delivered]:
        if not self.outcome.is_done:
            loop = asyncio.get_running_loop()
            known: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(partial(_resolve, loop, known))
            yield from known
        return self._delivered()

    def __repr__(self) -> str:
        return f"<Delivery {'done' if self.done() else 'on its way'}>"


async def settled(outcomes: Iterable[Outcome], timeout: float) -> None:
    """Wait until outcomes are known, or have passed their records on."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            for outcome in outcomes:
                if not outcome.is_done:
                    known: asyncio.Future[None] = loop.create_future()
                    outcome.add_waiter(partial(_resolve, loop, known))
                    await known
    except TimeoutError:
        raise RequestTimedOut(f"records were still on their way after {timeout:g} seconds") from None


def _resolve(loop: asyncio.AbstractEventLoop, known: asyncio.Future[None], *_: Delivery) -> None:
    if asyncio._get_running_loop() is loop:
        _set(known)
    else:
        loop.call_soon_threadsafe(_set, known)


def _set(known: asyncio.Future[None]) -> None:
    if not known.done():
        known.set_result(None)


def fresh_error(error: Exception | None) -> Exception:
    """The error to raise, without the traces of those who raised it before."""
    if error is None:
        raise RuntimeError("a record that is done has neither a place nor an error")
    return error.with_traceback(None)
