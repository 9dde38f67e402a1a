"""One broker of a test's cluster: a real `millstream serve` process, watched from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Where the system can do it, a broker ends with the program that started it, however that ends."""

READY = b"Millstream is ready on "


class Member:
    """A process that can be started again after it was stopped or killed, with the files it left."""

    def __init__(
        self,
        broker_id: int,
        port: int,
        folder: Path,
        log_path: Path,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is what the command begins with, such as `ip netns exec NAME`."""
        self.id = broker_id
        self.host = host
        self.port = port
        self._prefix = list(prefix)
        self.folder = folder
        self._log_path = log_path
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"broker {self.id} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """Everything that it has printed, over all its starts."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def launch(self, words: Sequence[str]) -> None:
        """Start the process and return at once."""
        if self.is_running:
            raise RuntimeError(f"broker {self.id} runs already")
        command = [*WITH_PARENT, *self._prefix, sys.executable, "-m", "millstream.cli.main", "serve", *words]
        self.is_paused = False
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def wait_until_ready(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not self._is_ready():
            if not self.is_running:
                raise RuntimeError(f"broker {self.id} ended\n{self.output[-4000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {self.id} is not ready\n{self.output[-4000:]}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return READY in log.read()

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def stop(self, timeout_seconds: float) -> int:
        """Stop it cleanly; its exit status."""
        if self._process is None:
            raise RuntimeError(f"broker {self.id} was not started")
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"broker {self.id} did not stop\n{self.output[-4000:]}") from None

    def pause(self) -> None:
        """Stop its clock: it does nothing, and knows of nothing, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def wipe(self) -> None:
        """Take away all its files, as a new disk would; it must not run."""
        if self.is_running:
            raise RuntimeError(f"broker {self.id} runs; its files are in use")
        shutil.rmtree(self.folder)
