"""Ten thousand groups in one shard: nothing that is done for all of them holds others up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Any, TypeVar

import pytest

from millstream.coordinator.groups.classic_group import State
from millstream.coordinator.groups.shard import REFRESH_STEP
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Result
from millstream.errors import NotCoordinator
from tests.coordinator.groups.consumer_host import Consumer, ConsumerHost

T = TypeVar("T")

COUNT = 10_000
MAX_SECONDS = 0.05


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A collection takes as long as everything that the tests have in memory wants."""
    gc.disable()
    yield
    gc.enable()


class Timed(ConsumerHost):
    """Measures how long the longest work of a timer takes."""

    longest = 0.0

    def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
        def timed() -> Result[Any]:
            started = thread_time()
            result = work()
            self.longest = max(self.longest, thread_time() - started)
            return result

        super().set(key, delay_ms, timed)

    def run_timers(self) -> None:
        """Do what is due, in any order: there are many timers."""
        while due := [key for key, (at, _, _) in self._timers.items() if at <= self.clock.elapsed_ms]:
            for key in due:
                if key in self._timers:
                    self.apply(self._timers.pop(key)[2]())

    def reload(self, error: Exception) -> None:
        """As its parent does, with the steps of getting ready measured."""
        self._timers.clear()
        self.shard = self.replayed()
        self.longest = 0.0
        before = thread_time()
        for _ in self.shard.prepare():
            now = thread_time()
            self.longest, before = max(self.longest, now - before), now
        started = thread_time()
        self.shard.loaded()
        self.longest = max(self.longest, thread_time() - started)
        self.run_timers()


class Counted(ConsumerHost):
    """Counts how much is written at once."""

    largest = 0

    def apply(self, result: Result[T]) -> T | Promise[T]:
        self.largest = max(self.largest, len(result.entries))
        return super().apply(result)


def test_consumer_groups_come_back_and_learn_of_topics_in_steps() -> None:
    host = Timed(t=4)
    for number in range(COUNT):
        Consumer(host, "c", "t", group=f"g{number}").step()
    host.reload(NotCoordinator())
    assert host.longest < MAX_SECONDS
    sessions = [key for key in host.timer_keys if isinstance(key, tuple) and "session" in key]
    assert len(sessions) == COUNT
    host.longest = 0.0
    host.put_topic("t", 8)
    assert host.longest < MAX_SECONDS
    assert all(group.epoch == 3 for group in host.shard.consumer.groups.values())


def test_groups_are_told_of_topics_a_few_at_a_time() -> None:
    """What a step may do is bounded by the topics that the groups in it read, by whatever way."""
    host = Counted()
    for number in range(50):
        host.topics.put(f"t{number}", 1)
    for number in range(60):
        Consumer(host, "c", group=f"g{number}", regex="t.*").step()
        Consumer(host, "c", *host.topics.known, group=f"h{number}").step()
    host.largest = 0
    host.put_topic("t0", 2)
    host.put_topic("t50", 1)
    assert all(group.epoch > 2 for group in host.shard.consumer.groups.values())
    assert all(len(host.group(f"g{number}").topics) == 51 for number in range(60))
    assert 0 < host.largest <= 2 * (REFRESH_STEP // 50 + 1)


def test_classic_groups_come_back_in_steps() -> None:
    host = Timed()
    for number in range(COUNT):
        group_id = f"g{number}"
        _, joined = host.enter(group_id, version=3)
        host.apply(host._timers.pop(("join", group_id))[2]())
        answer = joined.result()
        host.sync(group_id, answer.member_id, answer.generation_id, {answer.member_id: b"share"})
    host.reload(NotCoordinator())
    assert host.longest < MAX_SECONDS
    assert all(group.state is State.STABLE for group in host.shard.groups.values())
    assert len(host.timer_keys) > COUNT
