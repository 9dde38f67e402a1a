"""The file that says which process a broker is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.cli.pid_file import PidFile


def test_one_that_another_has_is_left_alone(tmp_path: Path) -> None:
    """Locks are the files', not the process's: two of this process are as two processes."""
    path = tmp_path / "broker-1" / "pid"
    first, second = PidFile(str(path)), PidFile(str(path))
    first.take()
    assert path.read_text() == f"{os.getpid()}\n"
    path.write_text("another's\n")
    second.take()
    second.release()
    assert path.read_text() == "another's\n"
    first.release()
    assert not path.exists()
    second.take()
    assert path.read_text() == f"{os.getpid()}\n"
    second.release()


def test_one_that_a_killed_process_left_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("12345678901\n")
    file = PidFile(str(path))
    file.take()
    file.take()
    assert path.read_text() == f"{os.getpid()}\n"
    path.unlink()
    path.write_text("made by hand\n")
    file.release()
    assert path.exists()


def test_a_broker_goes_on_without_one(caplog: pytest.LogCaptureFixture) -> None:
    file = PidFile("/dev/null/broker-1/pid")
    file.take()
    file.release()
    assert "does not say which process this is" in caplog.text
