"""A damaged time index is found by the batches before records are deleted or passed over by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream.storage.log import Log
from millstream.storage.time_check import confirm_timestamps
from tests.storage.logs import NOW_MS, SMALL, World, append, batch, fill, offsets

HOUR_MS = 3_600_000
CONFIG = replace(SMALL, retention_ms=HOUR_MS)
ENTRY = 12


def changed(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "earlier": lambda data: changed(data, len(data) - ENTRY + 2),
    "much later": lambda data: data[:-ENTRY] + b"\x7f" + data[-ENTRY + 1 :],
    "offset": lambda data: changed(data, len(data) - 1),
    "cut": lambda data: data[:-ENTRY],
    "padded": lambda data: data[: -2 * ENTRY] + bytes(2 * ENTRY),
    "empty": lambda data: b"",
}


def stopped(world: World) -> list[int]:
    """A log with a record every second, stopped cleanly; the base offsets of its segments."""
    log = world.open(CONFIG)
    fill(log, 200, step_ms=1000)
    assert len(log.segments) > 3
    found = [segment.base_offset for segment in log.segments]
    log.close()
    return found


def times(log: Log) -> list[int | None]:
    found = [log.offset_for_timestamp(NOW_MS + second * 1000) for second in range(0, 202, 3)]
    return [one and one.offset for one in found]


RIGHT_TIMES = [*range(0, 200, 3), None]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 1, -1])
def test_no_young_records_are_deleted_by_a_damaged_index(
    world: World, caplog: pytest.LogCaptureFixture, damage: str, number: int
) -> None:
    base = stopped(world)[number]
    path = world.file(base, ".timeindex")
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    log = world.open(CONFIG, is_clean=True, recovery_point=200)
    assert log.apply_retention(NOW_MS + HOUR_MS) == 0
    assert offsets(log) == list(range(200))
    assert times(log) == RIGHT_TIMES
    assert str(path) in caplog.text
    caplog.clear()
    assert times(log) == RIGHT_TIMES
    assert not caplog.text
    log.apply_retention(NOW_MS + HOUR_MS + 201_000)
    assert log.start_offset == 200


def test_any_changed_byte_of_a_time_index(world: World) -> None:
    base = stopped(world)[1]
    path = world.file(base, ".timeindex")
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(changed(whole, position))
        log = world.open(CONFIG, is_clean=True, recovery_point=200)
        assert times(log) == RIGHT_TIMES, f"position {position}"
        assert log.apply_retention(NOW_MS + HOUR_MS) == 0
        log.close()
        path.write_bytes(whole)


def test_a_good_index_is_believed_without_reading_the_segment_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(world)
    log = world.open(CONFIG, is_clean=True, recovery_point=200)
    assert log.needs_confirmed_ages(NOW_MS + 2 * HOUR_MS)
    log.confirm_ages(NOW_MS + 2 * HOUR_MS)
    closed = [segment for segment in log.segments if segment is not log.segments.active]
    assert all(segment.is_confirmed for segment in closed)
    assert not caplog.text


def test_what_was_appended_since_the_start_is_not_missed_in_the_index(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(world)
    log = world.open(CONFIG, is_clean=True, recovery_point=200)
    append(log, batch(b"on", timestamp=NOW_MS + 300_000))
    assert log.apply_retention(NOW_MS + HOUR_MS + 300_000) > 0
    assert log.start_offset == log.segments.active.base_offset
    assert log.apply_retention(NOW_MS + HOUR_MS + 300_001) > 0
    assert log.start_offset == 201
    assert not caplog.text


def test_a_segment_whose_batches_are_damaged_is_as_old_as_its_file(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(world)
    path = world.file(0)
    whole = path.read_bytes()
    path.write_bytes(changed(whole, len(whole) - 20))
    log = world.open(CONFIG, is_clean=True, recovery_point=200)
    confirm_timestamps(log.segments.first)
    assert str(path) in caplog.text
    modified_ms = log.segments.first.modified_ms()
    assert log.segments.first.age_timestamp() == max(modified_ms, log.segments.first.max_timestamp)
    log.apply_retention(modified_ms + 2 * HOUR_MS)
    assert log.start_offset == 200


def test_a_truncated_log_does_not_go_on_with_a_damaged_index(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    base = stopped(world)[1]
    path = world.file(base, ".timeindex")
    whole = path.read_bytes()
    path.write_bytes(changed(whole, 2))
    log = world.open(CONFIG, is_clean=True, recovery_point=200)
    log.truncate_to(base + 6)
    assert log.segments.active.max_timestamp == NOW_MS + (base + 5) * 1000
    append(log, batch(b"on", timestamp=NOW_MS + 500_000))
    found = log.offset_for_timestamp(NOW_MS + 400_000)
    assert found is not None
    assert found.offset == base + 6
