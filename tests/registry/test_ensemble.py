"""The heart of a session with ZooKeeper, without a server: see test_zookeeper.py for one."""

from __future__ import annotations

import threading
from typing import Any

from millstream.clock import SystemClock
from millstream.registry.ensemble import Ensemble
from millstream.registry.lease import Lease


class Answered:
    """A sync that the leader answered at once."""

    exception = None

    def wait(self, timeout: float) -> bool:
        return True


class Client:
    """A kazoo client with a defect that shows itself once."""

    connected = True

    def __init__(self) -> None:
        self.calls = 0

    def sync_async(self, path: str) -> Answered:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("a defect")
        return Answered()


def test_a_heart_that_missed_a_beat_goes_on() -> None:
    """Else the session would live, kept by kazoo, and its broker would never again know that it does."""
    ensemble: Any = object.__new__(Ensemble)
    ensemble.client, ensemble.lease, ensemble._clock = Client(), Lease(), SystemClock()
    ensemble.granted_s, ensemble._stop = 0.12, threading.Event()
    ensemble.lease.connected(ensemble._clock.monotonic(), 0.12)
    deadline = ensemble.lease.deadline
    heart = threading.Thread(target=ensemble._beat)
    heart.start()
    for _ in range(300):
        if ensemble.lease.deadline > deadline:
            break
        ensemble._stop.wait(0.01)
    ensemble._stop.set()
    heart.join()
    assert ensemble.lease.deadline > deadline
