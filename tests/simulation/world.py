"""Virtual time from one seed: whatever happens in a simulation happens here, one event at a time.

A `World` owns the heap of coming events, the random numbers that decide every delay, and the
trace. Two worlds with the same seed, given the same program, do the same things in the same
order, and so have the same trace hash. Time moves only from one event to the next.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from millstream.errors import KafkaError
from tests.simulation.guard import no_escape

if TYPE_CHECKING:
    from tests.simulation.loop import SimLoop


class SimulationFailed(AssertionError):
    """The program under simulation broke a rule: its message says which, the trace says how."""


class Deadlock(SimulationFailed):
    """Nothing is scheduled any more, and the program has not ended."""


class ProcessKilled(BaseException):
    """Raised out of whatever a process was doing when it was killed; nothing it does later counts."""


class Event:
    """Something that will happen at a virtual time, unless it is cancelled before."""

    __slots__ = ("action", "is_cancelled")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Trace:
    """What happened: the hash covers every line, the ring keeps the last ones to read."""

    def __init__(self, keep: int) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=keep)
        self.count = 0

    def add(self, now: float, text: str) -> None:
        line = f"{now:12.6f} {text}"
        self._digest.update(line.encode())
        self.lines.append(line)
        self.count += 1

    def note(self, now: float, text: str) -> None:
        """A line to read that does not count in the hash (a log message may hold an address)."""
        self.lines.append(f"{now:12.6f} # {text}")

    def hash(self) -> str:
        return self._digest.hexdigest()


class World:
    """One simulation run."""

    def __init__(self, seed: int, *, trace_lines: int = 400) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.trace = Trace(trace_lines)
        self.failures: list[str] = []
        self.loops: list[SimLoop] = []
        self._heap: list[tuple[float, int, Event]] = []
        self._order = 0
        self.charged = 0.0
        """How long the code that runs now takes, as far as it has said."""

    def at(self, when: float, action: Callable[[], None]) -> Event:
        event = Event(action)
        self._order = order = self._order + 1
        heappush(self._heap, (when, order, event))
        return event

    def after(self, delay: float, action: Callable[[], None]) -> Event:
        return self.at(self.now + delay, action)

    def log(self, text: str) -> None:
        self.trace.add(self.now, text)

    def fail(self, text: str) -> None:
        """Record that the run has failed; it ends before the next event."""
        self.trace.note(self.now, f"FAILED: {text}")
        self.failures.append(text)

    def charge(self, seconds: float) -> None:
        """Make the code that runs now take this long: its loop or thread is busy until then."""
        self.charged += seconds

    def take_charge(self) -> float:
        charged, self.charged = self.charged, 0.0
        return charged

    def run(self, main: Coroutine[Any, Any, Any], *, limit_s: float = 3600.0) -> Any:
        """Run `main` in a process of its own until it ends, and everything else meanwhile."""
        from tests.simulation.loop import SimLoop

        loop = SimLoop(self, "main")
        notes = _LogNotes(self)
        logging.getLogger("millstream").addHandler(notes)
        try:
            with _no_collections():
                task = loop.create_task(main)
                with no_escape(self.fail):
                    self._run_until(task.done, limit_s)
                result = task.result()
                gc.collect()  # failures that nobody has looked at are told when they are let go of
            self._check_background_tasks()
            if self.failures:
                raise SimulationFailed(self.failures[0])
            return result
        finally:
            logging.getLogger("millstream").removeHandler(notes)
            for each in self.loops:
                each.dispose()
            self._heap.clear()

    def _run_until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        heap = self._heap
        while not is_done():
            if not heap:
                raise Deadlock(f"nothing is scheduled at {self.now:.6f} s, and the program has not ended")
            when, _, event = heappop(heap)
            if event.is_cancelled:
                continue
            if when > limit_s:
                raise SimulationFailed(f"the program has not ended after {limit_s} virtual seconds")
            if when > self.now:
                self.now = when
            event.action()
            if self.failures:
                raise SimulationFailed(self.failures[0])

    def _check_background_tasks(self) -> None:
        for loop in self.loops:
            for text in loop.unretrieved_failures():
                raise SimulationFailed(text)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Look for cycles that are garbage once, in the end: it takes a tenth of the time otherwise."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _LogNotes(logging.Handler):
    """The program's own log messages, among the lines of the trace.

    An exception that is logged is a failure of the run, unless a disk, a peer or a killed process may
    cause it.
    """

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name} {record.levelname}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f" ({error!r})"
        self._world.trace.note(self._world.now, text)
        if error is not None and not isinstance(error, OSError | KafkaError | ProcessKilled):
            trace = "".join(traceback.format_exception(error))
            self._world.fail(f"an error that nobody expected was logged: {text}\n{trace}")
