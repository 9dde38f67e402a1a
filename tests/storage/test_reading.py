from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import cast

import pytest

from millstream.config.log import LogConfig
from millstream.protocol.batch import decode_records
from millstream.storage.log import Log
from millstream.storage.reading import Slice
from tests.storage.logs import SMALL, FaultyFile, World, append, batch, fill

LARGE = replace(SMALL, segment_bytes=1 << 22)


def read_at_once(log: Log, offset: int, max_bytes: int) -> Slice:
    """What is in memory. If the machine stalls meanwhile a disk seems to be slow, until some other reads show
    that it is not."""
    for _ in range(50):
        try:
            return log.read(offset, max_bytes, nowait=True)
        except BlockingIOError:
            log.read(offset, max_bytes)
    raise AssertionError("it is not in memory")


def test_a_read_that_cannot_wait_is_repeated_in_a_thread_once(world: World) -> None:
    log = world.open()
    fill(log, 100)
    log.close()
    log = world.open(is_clean=True)
    with pytest.raises(BlockingIOError):
        log.read(0, 500, nowait=True)
    found: list[int] = []
    thread = Thread(target=lambda: found.append(log.read(0, 500).next_offset))
    thread.start()
    thread.join()
    assert read_at_once(log, 0, 500).next_offset == found[0]


def test_what_was_just_written_is_read_without_waiting(world: World) -> None:
    log = world.open()
    fill(log, 100)
    for offset in range(100):
        assert read_at_once(log, offset, 300).first_offset == offset


def test_a_short_read_that_holds_one_batch_is_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.open(LARGE)
    fill(log, 50)
    size = len(log.read(0, 1).data)
    available = [0]
    pread = FaultyFile.pread

    def short(file: FaultyFile, size: int, offset: int, *, nowait: bool = False) -> memoryview:
        if not nowait:
            return pread(file, size, offset)
        if available[0] <= 0:
            raise BlockingIOError(11, "cold")
        return pread(file, min(size, available[0]), offset)

    monkeypatch.setattr(FaultyFile, "pread", short)
    for available[0] in (0, 5, size - 1):
        with pytest.raises(BlockingIOError):
            log.read(0, 10 * size, nowait=True)
    available[0] = size + 8  # a batch, and what shows that its offsets are right
    assert log.read(0, 10 * size, nowait=True).next_offset == 1
    available[0] = 3 * size + 20
    assert log.read(0, 10 * size, nowait=True).next_offset == 3
    assert log.read(0, 10 * size).next_offset == 10


def test_batches_larger_than_the_first_guess_are_read_whole(world: World) -> None:
    log = world.open(LARGE)
    append(log, batch(b"a" * 300_000))
    append(log, batch(b"b" * 10))
    assert log.read(0, 1).next_offset == 1
    assert not log.read(0, 1000, min_one=False).data
    assert log.read(0, 1000).next_offset == 1
    assert log.read(0, 400_000).next_offset == 2


def test_a_reader_who_goes_on_needs_no_index(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.open(LARGE)
    fill(log, 200)
    offset = log.read(0, 2000).next_offset
    monkeypatch.setattr(type(log.segments.active), "lookup", _no_lookup)
    while offset < 200:
        found = log.read(offset, 2000)
        assert found.first_offset == offset
        offset = found.next_offset


def test_remembered_places_are_few(world: World) -> None:
    log = world.open(LARGE)
    fill(log, 300)
    for offset in range(300):
        log.read(offset, 1)
    assert len(log.segments.positions) <= 64


def test_a_gap_is_skipped_to_the_next_batch(world: World) -> None:
    log = world.open()
    _append_at(log, 5)
    _append_at(log, 50)
    log.roll(80)
    _append_at(log, 90)
    assert [log.read(offset, 1).first_offset for offset in (0, 5, 6, 50, 51, 79, 90)] == [
        5,
        5,
        50,
        50,
        90,
        90,
        90,
    ]
    assert [record.offset for record in decode_records(log.read(0, 1 << 20).data)] == [5, 50]
    assert log.read(51, 1 << 20).next_offset == 91


def _append_at(log: Log, base_offset: int) -> None:
    data = batch(b"v")
    data[0:8] = base_offset.to_bytes(8, "big")
    log.append_as_follower(memoryview(data))


def _no_lookup(*_: object, **__: object) -> tuple[int, int]:
    raise AssertionError("the index was asked")


@pytest.mark.parametrize("bit", range(32))
def test_a_changed_position_in_the_index_skips_no_record(world: World, bit: int) -> None:
    """Neither in the middle of a log, nor at its end."""
    log = world.open()
    fill(log, 60)
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    for base in (bases[0], bases[-1]):
        file = world.file(base, ".index")
        data = bytearray(file.read_bytes())
        assert len(data) >= 16
        for entry in range(0, len(data), 8):
            data[entry + 4 + bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(data)
    log = world.open(is_clean=True, recovery_point=60)
    for offset in reversed(range(60)):  # so that none is known from the read before
        assert log.read(offset, 300).first_offset == offset
    log.close()


@pytest.mark.parametrize("bit", [31, 30, 10, 3])
def test_a_changed_position_in_the_index_loses_no_producer(world: World, bit: int) -> None:
    config = LogConfig(index_interval_bytes=256, retention_ms=-1)
    log = world.open(config)
    for number in range(40):
        append(log, batch(b"x" * 100, producer_id=number, epoch=0, sequence=0))
        if number == 20:
            log.snapshots.take(log.producers, 21)
    log.close()
    for path in Path(log.folder).glob("*40.snapshot"):
        path.unlink()
    file = world.file(0, ".index")
    data = bytearray(file.read_bytes())
    for entry in range(0, len(data), 8):
        data[entry + 4 + 3 - bit // 8] ^= 1 << (bit % 8)
    file.write_bytes(data)
    log = world.open(config, is_clean=True, recovery_point=40)
    assert sorted(log.producers.producers) == list(range(40))
    log.close()


@pytest.mark.parametrize("nowait", [False, True])
def test_what_is_read_beyond_the_limit_is_not_kept_in_memory(world: World, nowait: bool) -> None:
    """Answers that wait for slow readers are counted by their own size."""
    log = world.open(LARGE)
    for size in (70_000, 1_000_000, 1_000_000):
        append(log, batch(bytes(size)))

    def read(limit: int) -> memoryview:
        if nowait:
            read_at_once(log, 0, 1 << 22)  # in a buffer that is used again
            read_at_once(log, 0, 1 << 20)
        return log.read(0, 1 << 22, limit=limit).data

    little, all_of_it = read(1), read(3)
    assert 70_000 < len(little) < 71_000
    assert all_of_it[: len(little)] == little
    assert len(cast("bytes", little.obj)) <= 4 * len(little)
    assert len(cast("bytes", all_of_it.obj)) <= 4 * len(all_of_it)
