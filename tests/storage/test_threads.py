"""Readers and flushes in threads while the loop's thread appends, rolls, deletes, truncates and swaps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

from millstream.errors import NotLeaderOrFollower, OffsetOutOfRange
from millstream.protocol.batch import decode_records
from millstream.storage.log import Log
from tests.storage.logs import NOW_MS, SMALL, FaultyDisk, World, append, batch


class Crowd:
    """Threads that repeat something until they are told to stop; what went wrong is kept.

    They take turns quickly, so that much comes in between of each other's steps.
    """

    def __init__(self, *actions: Callable[[], None]) -> None:
        self.wrong: list[BaseException] = []
        self.turns = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(action,)) for action in actions]

    def __enter__(self) -> Crowd:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0002)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._interval)

    def _repeat(self, action: Callable[[], None]) -> None:
        while not self._is_over.is_set() and not self.wrong:
            try:
                action()
                self.turns += 1
            except BaseException as error:
                self.wrong.append(error)


def value(offset: int, generation: int = 0) -> bytes:
    return b"%d/%d " % (offset, generation) + b"x" * (offset % 200)


def reader(log: Log, seed: int, generations: range = range(1)) -> Callable[[], None]:
    random = Random(seed)

    def read() -> None:
        start, end = log.start_offset, log.end_offset
        offset = (
            random.randint(start, end) if random.random() < 0.5 else max(start, end - random.randrange(40))
        )
        for _ in range(5):
            try:
                found = log.read(offset, random.choice((1, 300, 5000, 100_000)), nowait=random.random() < 0.3)
            except (OffsetOutOfRange, BlockingIOError):
                return
            expected = None
            for record in decode_records(found.data):
                assert expected is None or record.offset == expected
                expected = record.offset + 1
                assert record.value in {value(record.offset, generation) for generation in generations}
            assert not found.data or found.first_offset <= offset
            offset = found.next_offset

    return read


def test_readers_see_every_record_while_the_log_grows_and_shrinks(world: World) -> None:
    world.disk = FaultyDisk(max_open_files=8)  # descriptors come and go under the readers
    log = world.open(replace(SMALL, retention_bytes=20_000))
    flushed: list[int] = []

    def flush() -> None:
        point = log.flush(rolled_only=len(flushed) % 2 == 0)
        flushed.append(point)

    def look_up() -> None:
        found = log.offset_for_timestamp(NOW_MS + log.start_offset + 20)
        assert found is None or found.timestamp >= NOW_MS + log.start_offset

    def empty_trash() -> None:
        world.trash.empty()

    crowd = Crowd(reader(log, 1), reader(log, 2), reader(log, 3), flush, look_up, empty_trash)
    with crowd:
        for offset in range(3000):
            append(log, batch(value(offset), timestamp=NOW_MS + offset))
            if offset % 500 == 499:
                log.apply_retention(NOW_MS)
            if crowd.wrong:
                break
    assert not crowd.wrong, crowd.wrong[0]
    assert crowd.turns > 100
    assert log.start_offset > 0
    assert log.end_offset == 3000
    assert all(later >= earlier - 1 for earlier, later in pairwise(flushed))  # a roll may take one back


def test_readers_survive_truncations(world: World) -> None:
    world.disk = FaultyDisk(max_open_files=8)
    log = world.open()
    random = Random(9)
    generations = range(200)

    def flush() -> None:
        log.flush()

    crowd = Crowd(reader(log, 1, generations), reader(log, 2, generations), flush)
    with crowd:
        for generation in range(30):
            for _ in range(random.randrange(20, 120)):
                append(log, batch(value(log.end_offset, generation)), generation)
            log.truncate_to(random.randint(max(0, log.end_offset - 150), log.end_offset))
            assert log.recovery_point <= log.end_offset
            if crowd.wrong:
                break
    assert not crowd.wrong, crowd.wrong[0]
    assert crowd.turns > 20
    assert log.flush() == log.end_offset


def test_readers_of_a_log_that_is_closed_are_told(world: World) -> None:
    log = world.open()
    for offset in range(200):
        append(log, batch(value(offset)))
    crowd = Crowd(reader(log, 1), reader(log, 2))
    with crowd:
        while crowd.turns < 20 and not crowd.wrong:
            pass
        log.close()
        for _ in range(1000):
            if crowd.wrong:
                break
            threading.Event().wait(0.005)
    assert crowd.wrong
    assert isinstance(crowd.wrong[0], NotLeaderOrFollower)
