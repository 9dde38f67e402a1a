"""The `millstream` program as a process, also on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "millstream.cli.main"]
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def start(*words: str, bootstrap: str = "127.0.0.1:1", cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """A running command with pipes at all ends."""
    return subprocess.Popen(
        [*COMMAND, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MILLSTREAM_BOOTSTRAP": bootstrap},
        cwd=cwd,
    )


class Terminal:
    """A command on a terminal of its own: what it shows, and what is typed."""

    def __init__(self, *words: str, bootstrap: str, command: list[str] | None = None) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command or [*COMMAND, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "MILLSTREAM_BOOTSTRAP": bootstrap, "TERM": "xterm", "COLUMNS": "100"},
            start_new_session=True,
            close_fds=True,
        )
        os.close(slave)
        self._shown = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._master)

    @property
    def shown(self) -> str:
        """All that was shown so far, without colours."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                break
            if not data:
                break
            self._shown += data
        return _ESCAPES.sub(b"", self._shown).decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str, timeout_s: float = 30) -> str:
        """Wait until `text` is shown."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown; this was: {self.shown!r}"
            time.sleep(0.01)
        return self.shown

    def end(self, timeout_s: float = 30) -> int:
        """Wait for the command's end, reading what it shows meanwhile; its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; it shows {self.shown!r}"
            _ = self.shown
            time.sleep(0.01)
        return self.process.returncode

    def interrupt(self) -> None:
        """Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
