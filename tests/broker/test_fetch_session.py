"""What fetch sessions remember has an end."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from millstream.broker import fetch_session
from millstream.broker.fetch_session import FetchSessions
from millstream.errors import FetchSessionIdNotFound
from millstream.protocol.messages import FetchRequest

VERSION = 12


class HandClock:
    """Goes on when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def request(
    partitions: Iterable[int], session_id: int = 0, epoch: int = 0, forgotten: int = -1
) -> FetchRequest:
    partition = FetchRequest.FetchPartition
    places = [partition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in partitions]
    forget = FetchRequest.ForgottenTopic(topic="t", partitions=[forgotten])
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=places)] if places else [],
        forgotten_topics_data=[forget] if forgotten >= 0 else [],
    )


def test_sessions_remember_only_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "MAX_POSITIONS", 10)
    clock = HandClock()
    sessions = FetchSessions(100, 60.0, clock, Random(1))

    def opened(count: int, instead_of: int = 0) -> int:
        session, _, positions = sessions.begin(request(range(count), instead_of), VERSION)
        assert len(positions) == count  # whether it is remembered or not
        return 0 if session is None else session.session_id

    assert not opened(11)
    first, second = opened(4), opened(6)
    assert first
    assert second
    assert not opened(1)
    assert opened(3, instead_of=first)
    third = opened(1)  # in the place that became free
    assert third
    sessions.begin(request([], second, 1, forgotten=0), VERSION)
    session, is_incremental, positions = sessions.begin(request([7], third, 1), VERSION)
    assert session is not None
    assert is_incremental
    assert len(positions) == 2
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(request([8], third, 2), VERSION)  # nor may one grow
    assert opened(1)
    assert not opened(2)
    clock.now += 61
    assert opened(2)  # those that nobody used for long make room
    assert opened(8)
    assert len(sessions) == 2
