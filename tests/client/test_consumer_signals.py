"""A signal whose handler raises (Ctrl-C, an alarm) may come at any moment of a poll that blocks."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Any

import pyarrow
import pytest

import millstream.client.consumer_arrow  # noqa: F401  (no alarm rings within an import)
from millstream import Consumer
from tests.client.consuming import fill, new_topic, numbered

PARTITIONS = 2
RECORDS = 1200
PATIENCE_S = 40.0


class Interrupted(BaseException):
    """What the alarm raises, like KeyboardInterrupt."""


def _is_deaf(frame: FrameType | None) -> bool:
    """Whether Python would ignore what is raised there: while it lets go of an object."""
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "__del__" or file.endswith(("_weakrefset.py", "weakref.py")):
            return True
        frame = frame.f_back
    return False


@pytest.fixture
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        if not _is_deaf(frame):
            raise Interrupted

    gc.collect()
    gc.disable()  # an alarm within a finalizer that is no Python code would be lost too
    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


async def _filled_topic(bootstrap: str) -> str:
    topic = await new_topic(bootstrap, PARTITIONS)
    for partition in range(PARTITIONS):
        for start in range(0, RECORDS // PARTITIONS, 20):
            await fill(bootstrap, topic, partition, numbered(20, start))
    return topic


POLLS: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(9, timeout=1),
    "poll_arrow": lambda consumer: consumer.poll_arrow(timeout=1),
    "poll_batches": lambda consumer: consumer.poll_batches(timeout=1),
}


class Alarm:
    """Rings at a random moment: later, the longer nothing gets through, and sooner when something does."""

    def __init__(self, seed: str) -> None:
        self.rings = 0
        self._random = Random(seed)
        self._longest_s = 2e-4

    def run(self, work: Callable[[list[Any]], None]) -> list[Any]:
        """What `work` puts into a list until the alarm rings."""
        got: list[Any] = []
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-6, self._longest_s), 0.5)
                work(got)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            self.rings += 1
        self._longest_s = max(1e-4, self._longest_s * 0.8) if got else self._longest_s * 1.2
        return got


def _places(found: Any) -> list[tuple[int, int]]:
    """The partition and offset of each record, however it was given."""
    if isinstance(found, pyarrow.RecordBatch):  # imported before any alarm: it takes longer than they let it
        columns = [found.column(name).to_pylist() for name in ("partition", "offset")]
        return list(zip(*columns, strict=True))
    batches = [each.records if hasattr(each, "records") else [each] for each in found]
    return [(record.partition, record.offset) for batch in batches for record in batch]


def _check(bootstrap: str, alarm: Alarm, take: Callable[[Consumer, list[Any]], None]) -> None:
    """Take everything, with alarms all the time: each record is there once, in order."""
    topic = asyncio.run(_filled_topic(bootstrap))
    seen: list[list[int]] = [[] for _ in range(PARTITIONS)]
    until = time.monotonic() + PATIENCE_S
    with Consumer(
        bootstrap, offset_reset="earliest", fetch_max_wait_ms=20, partition_max_bytes=2_000
    ) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        while sum(map(len, seen)) < RECORDS and time.monotonic() < until:
            for found in alarm.run(lambda got: take(consumer, got)):
                for partition, offset in _places(found):
                    seen[partition].append(offset)
        positions = [consumer.position((topic, partition), 10) for partition in range(PARTITIONS)]
    assert seen == [list(range(RECORDS // PARTITIONS))] * PARTITIONS
    assert positions == [RECORDS // PARTITIONS] * PARTITIONS
    assert alarm.rings > 5, "the alarm rang too seldom to show anything"


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("way", POLLS)
def test_a_signal_within_a_poll_loses_and_doubles_nothing(own_bootstrap: str, way: str) -> None:
    def take(consumer: Consumer, got: list[Any]) -> None:
        got += (POLLS[way](consumer),)

    _check(own_bootstrap, Alarm(way), take)


@pytest.mark.usefixtures("_alarm")
def test_a_signal_within_an_iteration_loses_and_doubles_nothing(own_bootstrap: str) -> None:
    def take(consumer: Consumer, got: list[Any]) -> None:
        for record in consumer:
            got += ([record],)

    _check(own_bootstrap, Alarm("iterate"), take)
