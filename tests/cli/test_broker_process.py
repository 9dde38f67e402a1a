"""A process that is a broker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker.cluster_state import ClusterState
from millstream.cli.broker_process import Quiet, run_broker
from millstream.config.broker import BrokerConfig


@pytest.fixture
def mask() -> Iterator[None]:
    """A broker's process is about to end when its broker has, and has signals held back; this one is not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.timeout(30)
@pytest.mark.usefixtures("mask")
def test_a_signal_ends_a_broker_that_is_still_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that no controller speaks to waits for it, but not for ever if it is told to end."""

    async def hear_nothing(self: ClusterState) -> None:
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(ClusterState, "start", hear_nothing)
    told: list[str] = []
    config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
    assert run_broker(config, told.append) == 0
    assert told == []


def test_memory_is_given_back_when_slow_readers_have_left_too() -> None:
    """They may hold their answers through a first rest."""
    quiet = Quiet()
    looks = [(0, 0), (0, 0), (7, 5), (9, 5), (9, 5), (9, 5), (9, 0), (9, 0), (9, 0), (9, 0), (10, 0), (10, 0)]
    rests = [number for number, look in enumerate(looks) if quiet.has_come(*look)]
    assert rests == [4, 7, 11]
