from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from millstream.protocol.batch import Record, encode_batch
from millstream.storage.log import Log
from tests.storage.logs import NOW_MS, SMALL, World, append, batch, fill


@pytest.mark.parametrize("codec", range(5))
def test_the_first_record_at_or_after_a_time_is_found_inside_its_batch(world: World, codec: int) -> None:
    log = world.open()
    for start in (0, 100, 200):
        stamps = [NOW_MS + start + step for step in (5, 20, 10, 30)]
        append(log, encode_batch([Record(value=b"v", timestamp=stamp) for stamp in stamps], codec=codec), 9)
    found = log.offset_for_timestamp(NOW_MS + 111)
    assert found is not None
    assert (found.timestamp, found.offset, found.leader_epoch) == (NOW_MS + 120, 5, 9)
    assert _offset(log, NOW_MS + 120) == 5
    assert _offset(log, NOW_MS + 121) == 7
    assert _offset(log, 0) == 0
    assert _offset(log, NOW_MS + 230) == 11
    assert log.offset_for_timestamp(NOW_MS + 231) is None


def test_any_time_is_found_exactly_in_a_disorderly_log(world: World) -> None:
    random = Random(5)
    log = world.open()
    stamps: list[int] = []
    for _ in range(150):
        times = [
            NOW_MS + len(stamps) * 10 + random.randrange(-400, 400) for _ in range(random.randrange(1, 4))
        ]
        stamps += times
        append(log, encode_batch([Record(value=b"v" * 50, timestamp=time) for time in times]))
    assert len(log.segments) > 3
    expected = {
        time: next((offset for offset, stamp in enumerate(stamps) if stamp >= time), None)
        for time in range(min(stamps) - 3, max(stamps) + 3, 7)
    }
    for is_reopened in (False, True):
        if is_reopened:
            log.close()
            log = world.open(is_clean=True)
        assert {time: _offset(log, time) for time in expected} == expected
        largest = log.max_timestamp_offset()
        assert largest is not None
        assert (largest.timestamp, largest.offset) == (max(stamps), stamps.index(max(stamps)))


def test_an_empty_log_has_no_times(world: World) -> None:
    log = world.open()
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_records_below_the_start_and_beyond_the_limit_are_not_found(world: World) -> None:
    log = world.open()
    fill(log, 100, step_ms=10)
    log.delete_records(30)
    assert _offset(log, NOW_MS) == 30
    found = log.offset_for_timestamp(NOW_MS + 500, limit=51)
    assert found is not None
    assert found.offset == 50
    assert log.offset_for_timestamp(NOW_MS + 500, limit=50) is None
    assert log.max_timestamp_offset(limit=99) is None


def test_the_largest_timestamp_may_be_anywhere(world: World) -> None:
    log = world.open()
    fill(log, 50)
    append(log, batch(b"future", timestamp=NOW_MS + 5000))
    fill(log, 100)
    append(log, batch(b"also", timestamp=NOW_MS + 5000))
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.timestamp, largest.offset) == (NOW_MS + 5000, 50)
    log.delete_records(51)
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.timestamp, largest.offset) == (NOW_MS + 5000, 151)


def test_the_largest_timestamp_is_none_of_a_deleted_record(world: World) -> None:
    log = world.open(replace(SMALL, segment_bytes=1 << 20))
    append(log, batch(b"future", timestamp=NOW_MS + 5000))
    append(log, batch(b"late", b"too", timestamp=NOW_MS - 1))
    append(log, batch(b"now", timestamp=NOW_MS))
    log.delete_records(1)
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.timestamp, largest.offset) == (NOW_MS, 3)


def _offset(log: Log, timestamp: int) -> int | None:
    found = log.offset_for_timestamp(timestamp)
    return None if found is None else found.offset
