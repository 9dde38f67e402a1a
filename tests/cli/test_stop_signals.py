"""Signals that come when a broker is stopping already, or has not begun."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import free_port, free_ports

STOPS_SLOWLY = """\
import asyncio, sys
from millstream.broker.server import Broker
from millstream.cli.main import main

seconds, *words = sys.argv[1:]
stop = Broker.stop

async def stop_slowly(self):
    print("stopping", flush=True)
    await asyncio.sleep(float(seconds))
    await stop(self)

Broker.stop = stop_slowly
main(words)
"""

LINGERS = """\
import atexit, sys, time
from millstream.cli.main import main

def linger():
    print("ending", flush=True)
    time.sleep(0.5)

atexit.register(linger)
main(sys.argv[1:])
"""

TOLD_TO_STOP_AT_ONCE = """\
import os, sys
from millstream.cli.main import main
from millstream.cli.pid_file import PidFile

take = PidFile.take

def take_when_told(self):
    os.kill(os.getpid(), int(sys.argv[1]))
    take(self)

PidFile.take = take_when_told
main(sys.argv[2:])
"""
"""Each broker has a signal before it has taken the number of its process, long before it listens."""


@contextmanager
def program(text: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program with pipes, ended with the block."""
    command = [sys.executable, "-c", text, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def serve(data: Path) -> list[str]:
    return ["serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(data)]


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_goes_on_when_it_is_told_again_to_stop(tmp_path: Path, first: signal.Signals) -> None:
    """As systemd does: it killed brokers that were writing everything down."""
    with program(STOPS_SLOWLY, "0.5", *serve(tmp_path)) as process:
        assert "is ready" in read(process)
        process.send_signal(first)
        assert read(process) == "stopping\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with program(STOPS_SLOWLY, "60", *serve(tmp_path)) as process:
        assert "is ready" in read(process)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
        assert read(process) == "stopping\n"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err.strip()) == (130, "", "")
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_broker_that_has_stopped_ends_well_when_it_is_told_again(tmp_path: Path) -> None:
    with program(LINGERS, *serve(tmp_path)) as process:
        assert "is ready" in read(process)
        process.send_signal(signal.SIGTERM)
        assert read(process) == "ending\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_brokers_that_are_told_to_stop_as_soon_as_they_exist_end_well(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["serve", "--listen", f"127.0.0.1:{free_ports(2)}", "--data", str(tmp_path), "--brokers", "2"]
    with program(TOLD_TO_STOP_AT_ONCE, str(int(number)), *words) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "ended with status 0" in err
    assert "Traceback" not in err
