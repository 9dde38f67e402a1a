"""Several brokers, each a process; this one passes signals on to them and tells how they end.

The brokers are forked after what they all need is imported: they start faster and share that memory. Each is
in a process group of its own, so that Ctrl-C reaches it once, through here, and on Linux each is told
to stop if this process dies.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from millstream.cli.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig

WATCHED = {*STOP_SIGNALS, signal.SIGCHLD}
READY_POLL_S = 0.02
PR_SET_PDEATHSIG = 1

Serve = Callable[["BrokerConfig", Callable[[str], None]], int]
"""Runs one broker to its end; it says where it listens once it is ready. Gives the exit code.

It is called with the signals that stop it held back, and lets them come once it can stop cleanly.
"""


class _Child:
    """A broker's process, and the pipe on which it says that it is ready."""

    def __init__(self, config: BrokerConfig, serve: Serve) -> None:
        self.broker_id = config.node_id
        self.where = ""
        self.status: int | None = None
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._pipe)
                os.setpgid(0, 0)
                _end_with_parent(parent)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

                def ready(where: str) -> None:
                    os.write(pipe, f"{where}\n".encode())
                    os.close(pipe)

                code = serve(config, ready)
            except Exception:
                traceback.print_exc()
            finally:
                with suppress(OSError):
                    sys.stdout.flush()
                with suppress(OSError):
                    sys.stderr.flush()
                os._exit(code)
        os.close(pipe)

    def read(self) -> None:
        """See whether it is ready."""
        if not self.where and self._pipe >= 0:
            try:
                text = os.read(self._pipe, 4096).decode()
            except BlockingIOError:
                return
            self.where = text.strip()
            os.close(self._pipe)
            self._pipe = -1

    def signal(self, number: int) -> None:
        if self.status is None:
            os.kill(self.pid, number)

    def describe_end(self) -> str:
        assert self.status is not None
        how = f"ended with status {self.status}"
        if self.status < 0:
            how = f"was killed by {signal.Signals(-self.status).name}"
        return f"broker {self.broker_id} (process {self.pid}) {how}"


def serve_many(configs: Sequence[BrokerConfig], serve: Serve, folder: str) -> int:
    """Run the brokers until all have ended; 0 if each ended well."""
    import millstream.broker.server  # noqa: F401  (what follows forks)
    from millstream.net.event_loop import loop_factory

    loop_factory()
    gc.collect()
    gc.freeze()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    sys.stdout.flush()
    sys.stderr.flush()
    children = [_Child(config, serve) for config in configs]
    is_ready = is_stopping = False
    while any(child.status is None for child in children):
        if is_ready:
            number = signal.sigwaitinfo(WATCHED).si_signo
        else:
            found = signal.sigtimedwait(WATCHED, READY_POLL_S)
            number = found.si_signo if found is not None else 0
        if number in STOP_SIGNALS:
            is_stopping = True
            for child in children:
                child.signal(number)
        ended = _collect(children)
        for child in children:
            child.read()
        if not is_ready and all(child.where for child in children):
            is_ready = True
            where = ", ".join(child.where for child in children)
            _say(f"Millstream is ready on {where}, with its data in {folder}")
        for child in ended:
            if child.status == 0 and is_stopping:
                continue
            _say(child.describe_end(), err=True)
            if not is_ready and not is_stopping:
                is_stopping = True
                for other in children:
                    other.signal(signal.SIGTERM)
    return 0 if all(child.status == 0 for child in children) else 1


def _say(text: str, *, err: bool = False) -> None:
    """Tell it if anybody reads it: brokers do not end because who read of them has gone."""
    try:
        click.echo(text, err=err)
    except OSError:
        # What could not be written is not to be tried again when the process ends, which would fail it.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


def _collect(children: Sequence[_Child]) -> list[_Child]:
    """Those that have ended since the last call."""
    ended = []
    for child in children:
        if child.status is None:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.status = os.waitstatus_to_exitcode(status)
                ended.append(child)
    return ended


def _end_with_parent(parent: int) -> None:
    """Be told to stop if the process `parent` dies, and end if it has. It may be 1, as in a container."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    except (OSError, AttributeError):
        return  # not Linux
    if os.getppid() != parent:
        os._exit(1)
