"""Heartbeats and verdicts, with a clock in hand: the owner's deadline comes before the others' verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.registry.session import OtherSessions, OwnSession

TIMEOUT_S = 6.0


class HandClock:
    """A clock that stands still unless it is told to go on, or jumps when somebody looks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.jumps: list[float] = []

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        if self.jumps:
            self.now += self.jumps.pop(0)
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def begun(folder: str, clock: HandClock, session: int = 1) -> OwnSession:
    own = OwnSession(folder, clock, TIMEOUT_S, lambda: None)
    own.make_file(session)
    return own


def test_a_heartbeat_counts_from_before_it_was_written(folder: str, clock: HandClock) -> None:
    own = begun(folder, clock)
    assert 100 < own.deadline < 100 + TIMEOUT_S
    first = own.deadline
    clock.now += 1
    clock.jumps = [0, 0.5]
    assert own._beat()
    assert own.deadline == first + 1
    own.close()


def test_a_heartbeat_after_the_deadline_does_not_count(folder: str, clock: HandClock) -> None:
    own = begun(folder, clock)
    clock.now = own.deadline + 0.001
    deadline = own.deadline
    assert not own._beat()
    assert own.deadline == deadline
    own.close()


def test_a_heartbeat_that_took_beyond_the_deadline_does_not_count(folder: str, clock: HandClock) -> None:
    """The others may have given their verdict while the write hung."""
    own = begun(folder, clock)
    deadline = own.deadline
    clock.now = deadline - 0.1
    clock.jumps = [0, 0.2]
    assert not own._beat()
    assert own.deadline == deadline
    own.close()


def test_others_wait_for_the_time_out_from_when_they_saw_the_beat(folder: str, clock: HandClock) -> None:
    own = begun(folder, clock)
    others = OtherSessions(folder, clock, TIMEOUT_S)
    others.know([1])
    assert others.lost() == []
    for _ in range(5):
        clock.now += TIMEOUT_S / 2
        assert own._beat()
        assert others.lost() == []
    clock.now += TIMEOUT_S
    assert own.deadline < clock.now
    assert others.lost() == []
    clock.now += 0.001
    assert others.lost() == [1]
    others.close()
    own.close()


def test_a_session_is_judged_by_its_own_time_out(folder: str, clock: HandClock) -> None:
    """Brokers may be configured differently, at least while that is changed: nobody ends what still holds."""
    own = begun(folder, clock)
    for hasty_s in (0.3, TIMEOUT_S * 10):
        others = OtherSessions(folder, clock, hasty_s)
        others.know([1])
        assert others.lost() == []
        clock.now += TIMEOUT_S * 0.8
        assert others.lost() == []
        assert own._beat()
        assert others.lost() == []
        clock.now += TIMEOUT_S + 0.001
        assert others.lost() == [1]
        others.close()
        own.close()
        own = begun(folder, clock)
    own.close()


def test_who_was_paused_looks_again_before_a_verdict(folder: str, clock: HandClock) -> None:
    own = begun(folder, clock)
    others = OtherSessions(folder, clock, TIMEOUT_S)
    others.know([1])
    assert others.lost() == []
    for _ in range(10):
        clock.now += TIMEOUT_S / 2
        assert own._beat()
    assert others.lost() == []
    others.close()
    own.close()


def test_a_released_lock_or_a_missing_file_is_a_death(folder: str, clock: HandClock) -> None:
    own, second = begun(folder, clock), begun(folder, clock, 2)
    others = OtherSessions(folder, clock, TIMEOUT_S)
    others.know([1, 2, 3])
    assert others.lost() == [3]
    os.close(own._descriptor)
    own._descriptor = -1
    assert sorted(others.lost()) == [1, 3]
    others.forget(1)
    others.forget(3)
    assert others.lost() == []
    assert os.listdir(folder) == ["2"]
    second.close()
    others.close()


def test_heartbeats_that_cannot_be_written_cost_the_session_only_after_the_time_out(folder: str) -> None:
    import threading

    from millstream.clock import SystemClock

    lost = threading.Event()
    own = OwnSession(folder, SystemClock(), 2.0, lost.set)
    own.make_file(1)
    written, own._descriptor = own._descriptor, os.open(folder + "/1", os.O_RDONLY)  # refuses every write
    own.start("heart")
    assert not lost.wait(1.2)
    own._descriptor, refusing = written, own._descriptor
    os.close(refusing)
    assert not lost.wait(1.5)
    os.close(written)
    own._descriptor = os.open(folder + "/1", os.O_RDONLY)
    assert lost.wait(30)
    own.close()


def test_the_thread_keeps_the_heart_beating_and_tells_a_loss(folder: str) -> None:
    import threading

    from millstream.clock import SystemClock

    lost = threading.Event()
    clock = SystemClock()
    own = OwnSession(folder, clock, 1.0, lost.set)
    own.make_file(1)
    own.start("heart")
    first = own.deadline
    assert not lost.wait(1.5)
    assert own.deadline > first + 1.0
    own.deadline = clock.monotonic() - 1
    assert lost.wait(30)
    assert own.deadline == float("-inf")
    own.close()
    assert os.listdir(folder) == []
