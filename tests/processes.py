"""A real broker process on a port and a folder of its own, watched from outside, stopped or killed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from millstream.testing.ports import free_port as free_port
from millstream.testing.ports import free_ports as free_ports

T = TypeVar("T")

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Where the system can do it, a broker ends with the test run that started it, however that ends."""

FAST_OPTIONS = {"log.segment.delete.delay.ms": "100"}
"""Broker settings that make slow housekeeping visible within a test's patience."""


def until(claim: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """The first true value of `claim`, asked again and again until the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = claim()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what} (last seen: {value!r})")
        time.sleep(POLL_S)


def answers(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether a broker there answers ApiVersions v0; in bytes made by hand, independent of the codecs."""
    body = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with closing(socket.create_connection((host, port), timeout=timeout_s)) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as answer:
                head = answer.read(10)
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (7, 0)


class BrokerProcess:
    """One `millstream serve` with its folder; start again after `stop` or `kill` to see what survived."""

    def __init__(self, data: Path, *, port: int = 0, options: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.port = port or free_port()
        self.options = {**FAST_OPTIONS, **(options or {})}
        self.log_path = data.parent / f"{data.name}.out"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker was not started"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def output(self) -> str:
        """Everything the process has printed so far, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def command(self) -> list[str]:
        settings = [word for key, value in self.options.items() for word in ("-o", f"{key}={value}")]
        listen = f"127.0.0.1:{self.port}"
        program = [*WITH_PARENT, sys.executable, "-m", "millstream.cli.main"]
        return [*program, "serve", "--listen", listen, "--data", str(self.data), *settings]

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process and return at once."""
        assert not self.is_running, "the broker runs already"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self.process

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Start and wait until it answers; what it printed is in the error if it does not."""
        process = self.launch()
        try:
            until(lambda: not self.is_running or answers("127.0.0.1", self.port), timeout_s, "broker ready")
        except TimeoutError as late:
            self.kill()
            raise TimeoutError(f"{late}\n{self.output[-4000:]}") from None
        status = process.poll()
        if status is not None:
            raise RuntimeError(f"the broker ended with status {status}\n{self.output[-4000:]}")
        return self

    def runs_for(self, seconds: float) -> bool:
        """Let it run for a while; whether it is still there."""
        assert self.process is not None, "the broker was not started"
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        """`kill -9`: what was written stays, nothing else is done."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """A clean stop by SIGTERM; its exit status."""
        assert self.process is not None, "the broker was not started"
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"no clean stop within {timeout_s:g} s\n{self.output[-4000:]}") from None

    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def cpu_s(self) -> float:
        """User and system time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> list[str]:
        """What the process holds open, as the kernel names it."""
        folder = Path(f"/proc/{self.pid}/fd")
        found = []
        for entry in folder.iterdir():
            try:
                found.append(str(entry.readlink()))
            except FileNotFoundError:
                continue
        return found

    def partition_folder(self, topic: str, partition: int = 0) -> Path:
        """Where the broker keeps that partition."""
        return self.data / f"{topic}-{partition}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill() if error is not None else self.stop()
