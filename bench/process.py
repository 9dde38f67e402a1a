"""Processes of the brokers under test: ports, ends, and what the kernel counted for them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from dataclasses import dataclass

import psutil


def wait_for_exit(
    process: subprocess.Popen[bytes], with_signal: signal.Signals, timeout_seconds: float
) -> None:
    """Signal one process and reap it; SIGKILL if it does not end in time."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(with_signal)
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds (user and system, all threads) that a process had used at one moment."""

    cpu_seconds: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        times = psutil.Process(pid).cpu_times()
        return cls(times.user + times.system)

    def since(self, earlier: Usage) -> float:
        return self.cpu_seconds - earlier.cpu_seconds


def resident_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def device_bytes_read(pid: int) -> int:
    """Bytes that the process made the storage device read: what did not come from the page cache."""
    return int(psutil.Process(pid).io_counters().read_bytes)
