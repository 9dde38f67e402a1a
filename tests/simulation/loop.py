"""A deterministic asyncio event loop: one per simulated process, all in one `World`.

Each process has a loop of its own, as it has in reality, so that killing it is simple: a dead
loop runs nothing ever again. Callbacks of one loop run in the order they were scheduled, as asyncio
promises; loops, threads and the network interleave as the seed decides. An iteration of a loop
takes some virtual time, so a busy process falls behind and a program that spins still moves on.

A function given to `run_in_executor` runs at once and whole, at a virtual moment between the call
and its completion, with no running loop (as in a thread); executors of one thread keep their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.world import Event, ProcessKilled, World

if TYPE_CHECKING:
    from tests.simulation.network import Network, SimServer
    from tests.simulation.transport import SimTransport

STEP_S, STEP_RANGE_S = 5e-6, 55e-6
"""How long one iteration of a loop takes at least, and how much longer at most, besides its disk's charge."""
THREAD_START_S = (10e-6, 400e-6)
THREAD_END_S = (10e-6, 1500e-6)
DEFAULT_THREADS = 6


_Base: Any = asyncio.AbstractEventLoop
"""Untyped: most of the abstract methods are of no use here, and raise NotImplementedError."""


class _Handle(asyncio.Handle):
    """A callback of a loop that is never in debug mode: hundreds of thousands are made in a run."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class SimLoop(_Base):
    """The event loop of one process on host `name`."""

    def __init__(self, world: World, name: str, network: Network | None = None) -> None:
        self.world = world
        self.name = name
        self.network = network
        self.is_dead = False
        self.paused_until = 0.0
        self.transports: dict[SimTransport, None] = {}
        self.servers: list[SimServer] = []
        self._is_disposed = False
        self._ready: deque[asyncio.Handle] = deque()
        self._iteration: Event | None = None
        self._free_at = world.now
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._failed: list[asyncio.Task[Any]] = []
        self._threads: dict[Executor | None, _Threads] = {}
        self._exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        world.loops.append(self)

    # The life of the process

    def kill(self) -> None:
        """Nothing of this process runs ever again; the network learns of it from its owner."""
        self.is_dead = True
        self._ready.clear()
        if self._iteration is not None:
            self._iteration.cancel()

    def pause(self, seconds: float) -> None:
        """Stop the process, as SIGSTOP does, and let it go on after some time."""
        self.paused_until = self._free_at = max(self._free_at, self.world.now + seconds)
        if self._iteration is not None:
            self._iteration.cancel()
            self._iteration = None
        self._schedule()

    def unretrieved_failures(self) -> list[str]:
        """Tasks that failed and whose failure nobody looked at."""
        if self.is_dead:
            return []
        return [
            f"{self.name}: a background task failed: {_describe(task._exception)}"
            for task in self._failed
            if task._log_traceback
        ]

    def dispose(self) -> None:
        """Close the coroutines that will never run again, so that they end without a warning."""
        self.is_dead = self._is_disposed = True
        asyncio.set_event_loop(None)  # code that ends here and asks for a loop would be made a real one
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine in one that has not begun
            for task in list(self._tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
        for task in self._failed:
            task._log_traceback = False
        self._ready.clear()
        self._tasks.clear()

    # Callbacks and time

    def _schedule(self) -> None:
        if self._iteration is None and self._ready and not self.is_dead:
            self._iteration = self.world.at(max(self.world.now, self._free_at), self._iterate)

    def _iterate(self) -> None:
        self._iteration = None
        ready = self._ready
        world = self.world
        world.charged = 0.0
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                if self.is_dead:
                    return
        finally:
            events._set_running_loop(None)
        self._free_at = world.now + world.take_charge() + (STEP_S + STEP_RANGE_S * world.random.random())
        if ready and self._iteration is None:
            self._iteration = world.at(self._free_at, self._iterate)

    def _enqueue(self, handle: asyncio.Handle) -> None:
        if not self.is_dead:
            self._ready.append(handle)
            self._schedule()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            if self._iteration is None:
                world = self.world
                self._iteration = world.at(max(world.now, self._free_at), self._iterate)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self.world.at(
                max(when, self.world.now), lambda: None if timer._cancelled else self._enqueue(timer)
            )
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.now + delay, callback, *args, context=context)

    def time(self) -> float:
        return self.world.now

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap and does nothing."""

    # Futures, tasks and threads

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self.is_dead:
            coro.close()
            raise ProcessKilled(self.name)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task._exception is not None:
            self._failed.append(task)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        threads = self._threads.get(executor)
        if threads is None:
            limit = getattr(executor, "_max_workers", DEFAULT_THREADS)
            threads = self._threads[executor] = _Threads(self, limit)
        return threads.submit(func, args)

    def set_default_executor(self, executor: Executor) -> None:
        self._threads[None] = _Threads(self, getattr(executor, "_max_workers", DEFAULT_THREADS))

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass

    async def shutdown_asyncgens(self) -> None:
        pass

    # Errors and state

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dead or self._is_disposed:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.world.fail(f"{self.name}: {context.get('message')}: {_describe(context.get('exception'))}")

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def get_task_factory(self) -> None:
        return None

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    # The network

    async def create_server(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: int = 0, **options: Any
    ) -> SimServer:
        _refuse_tls(options)
        if isinstance(host, list | tuple):
            (host,) = host
        return self._attached_network().listen(self, protocol_factory, host, port)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        _refuse_tls(options)
        return await self._attached_network().connect(self, protocol_factory, host, port)

    def _attached_network(self) -> Network:
        if self.network is None:
            raise OSError(f"the process {self.name} has no network")
        return self.network


class _Threads:
    """The threads of one executor: `limit` functions at a time, started in the order given."""

    def __init__(self, loop: SimLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._busy = 0
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def submit(self, func: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._queue.append((future, func, args))
        self._start()
        return future

    def _start(self) -> None:
        world = self._loop.world
        while self._queue and self._busy < self._limit:
            future, func, args = self._queue.popleft()
            if not future.cancelled():
                self._busy += 1
                delay = world.random.uniform(*THREAD_START_S)
                world.after(delay, partial(self._run, future, func, args))

    def _run(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        loop, world = self._loop, self._loop.world
        if loop.is_dead:
            return
        if loop.paused_until > world.now:
            world.at(loop.paused_until, lambda: self._run(future, func, args))
            return
        world.take_charge()
        result: Any = None
        error: BaseException | None = None
        try:
            result = func(*args)
        except ProcessKilled:
            return
        except BaseException as raised:
            error = raised
        delay = world.take_charge() + world.random.uniform(*THREAD_END_S)
        world.after(delay, lambda: self._finish(future, result, error))

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if not self._loop.is_dead:
            self._loop.call_soon_threadsafe(_resolve, future, result, error)
            self._busy -= 1
            self._start()


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _refuse_tls(options: dict[str, Any]) -> None:
    if options.get("ssl") is not None:
        raise NotImplementedError("the simulated network has no TLS")


def _describe(error: BaseException | None) -> str:
    if error is None:
        return "no exception"
    return "".join(traceback.format_exception(error)).strip()
