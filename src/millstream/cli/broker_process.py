"""A process that is a broker: its event loop, its memory, its end, and why it could not begin."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.broker.server import Broker
    from millstream.cli.pid_file import PidFile
    from millstream.config.broker import BrokerConfig

KEPT_BYTES = 64 * 1024 * 1024
LARGE_BYTES = 32 * 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's numbers
QUIET_SECONDS = 3.0
COLLECT_EVERY = 10_000
"""Objects made between two looks of the garbage collector at the youngest ones."""


def run_broker(
    config: BrokerConfig, ready: Callable[[str], None] | None = None, *, has_pid: bool = False
) -> int:
    """Run a broker on an event loop of its own until a signal ends it; gives the exit code.

    `ready` is told where it listens; without it, the terminal is. With `has_pid` the number of the process
    lies in the broker's folder.
    """
    from millstream.cli.cluster_layout import PID_FILE
    from millstream.cli.pid_file import PidFile
    from millstream.net.event_loop import loop_factory

    _keep_freed_memory()
    _open_many_files()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if not has_pid:
            return runner.run(_serve(config, ready))
        pid_file = PidFile(os.path.join(config.log_dirs[0], PID_FILE))
        pid_file.take()
        try:
            return runner.run(_serve(config, ready, pid_file))
        finally:
            pid_file.release()


def _keep_freed_memory() -> None:
    """Let the C library keep what a fetch's buffers free, up to KEPT_BYTES.

    Otherwise each large buffer is given back to the system, and its pages are cleared again for the
    next one, which costs more than the reading itself. All threads share one heap: each would keep as much
    in one of its own, and of those nothing is given back.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(M_ARENA_MAX, 1)


def _open_many_files() -> None:
    """Let the process open as many files and connections as the system allows it."""
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        except (OSError, ValueError):
            return  # some systems refuse what they say is allowed


async def _give_memory_back(broker: Broker) -> None:
    """Once a broker has grown quiet, what was kept for its large reads goes back to the system."""
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return  # not glibc
    quiet = Quiet()
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        read_bytes = sum(counter.value for _, counter in broker.metrics.bytes_out.members())
        if quiet.has_come(read_bytes, broker.unsent.bytes):
            await asyncio.get_running_loop().run_in_executor(None, trim, 0)


class Quiet:
    """Whether a broker rests: nothing was read since the last look, and nobody took or left what was owed."""

    def __init__(self) -> None:
        self._seen = self._told = (0.0, 0)

    def has_come(self, read_bytes: float, unsent_bytes: int) -> bool:
        """True once, at the second of two looks that see the same, which is not what was true before."""
        now, seen = (read_bytes, unsent_bytes), self._seen
        self._seen = now
        if now != seen or now == self._told:
            return False
        self._told = now
        return True


def quiet_collector() -> None:
    """What a started broker holds stays: the garbage collector need not look at it ever again."""
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 20, 50)
    gc.enable()


async def _serve(
    config: BrokerConfig, ready: Callable[[str], None] | None, pid_file: PidFile | None = None
) -> int:
    from millstream.cli.stop_signals import stop_signals

    gc.disable()  # until it has started
    with stop_signals() as stop:
        broker = await _start(config, stop)
        if broker is None:
            return 0
        quiet_collector()
        try:
            if pid_file is not None:  # a process that was about to end may have had it before
                pid_file.take()
            if ready is not None:
                ready(_where(broker))
            else:
                folders = ", ".join(config.log_dirs)
                click.echo(f"Millstream is ready on {_where(broker)}, with its data in {folders}")
            trimming = asyncio.get_running_loop().create_task(_give_memory_back(broker))
            await stop.wait()
            trimming.cancel()
        finally:
            await broker.stop()
    return 0


async def _start(config: BrokerConfig, stop: asyncio.Event) -> Broker | None:
    """A broker that has started; none if it was told to stop before it had."""
    from millstream.broker.server import Broker
    from millstream.storage.log_dir import LogDirInUse

    try:
        _make_folders(config.log_dirs)
        broker = Broker(config)
        return broker if await _started(broker, stop) else None
    except OSError as error:
        raise MillstreamError(_start_failure(error, config)) from error
    except LogDirInUse as error:
        raise MillstreamError(f"{error}, with --data DIR") from error


def _make_folders(log_dirs: Sequence[str]) -> None:
    """Make the folders of the logs; one that cannot be made, where others can, has failed as any disk may."""
    failures = []
    for folder in log_dirs:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            failures.append(error)
    if len(failures) == len(log_dirs):
        raise failures[0]


async def _started(broker: Broker, stop: asyncio.Event) -> bool:
    """Start the broker; false if it was told to end before it had started, for which it may have to wait."""
    loop = asyncio.get_running_loop()
    starting, stopping = loop.create_task(broker.start()), loop.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    await starting
    return True


def _where(broker: Broker) -> str:
    """The addresses that it listens on, and those that clients are told, where they differ."""
    listening = []
    for listener in broker.config.listeners:
        at = replace(listener, port=broker.listeners[listener.name].port)
        listening.append(str(at).partition("://")[2])
    told = [f"{endpoint.host}:{endpoint.port}" for endpoint in broker.endpoints]
    text = ", ".join(listening)
    return text if told == listening else f"{text} (clients are told {', '.join(told)})"


def _start_failure(error: OSError, config: BrokerConfig) -> str:
    addresses = ", ".join(str(listener).partition("://")[2] for listener in config.listeners)
    if error.errno == errno.EADDRINUSE:
        return (
            f"{addresses} is in use by another program, perhaps another broker. "
            "Stop that one, or choose another port with --listen HOST:PORT"
        )
    if isinstance(error, socket.gaierror):
        return f"{addresses} has a name that nobody knows. Choose another with --listen HOST:PORT"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{addresses} is not an address of this machine. Choose another with --listen HOST:PORT"
    if error.errno == errno.EACCES and error.filename is None:
        return f"this user may not listen on {addresses}. Choose a port above 1023 with --listen HOST:PORT"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return f"cannot write to {error.filename}: {error.strerror}. Choose another folder with --data DIR"
    if error.errno == errno.ENOENT and error.filename is not None:
        return f"cannot make {error.filename}: {error.strerror}. Choose another folder with --data DIR"
    if error.errno == errno.ENOSPC:
        folder = error.filename or ", ".join(config.log_dirs)
        return f"the disk of {folder} is full. Make room, or choose another with --data DIR"
    where = f": {error.filename}" if error.filename else ""
    return f"the broker cannot start: {error.strerror or error}{where}"
