"""What a flush makes durable, and what its failure means."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.storage import names
from millstream.storage.os_disk import OsFile
from millstream.storage.segment import Segment
from tests.storage.logs import NOW_MS, SMALL, FaultyFile, World, append, batch, fill, offsets


def synced(world: World) -> set[str]:
    found = {Path(path).name for path in world.disk.synced}
    world.disk.synced.clear()
    return found


def test_a_flush_makes_the_bytes_and_the_names_durable(world: World) -> None:
    log = world.open()
    fill(log, 3)
    assert log.recovery_point == 0
    assert log.flush() == 3
    assert log.recovery_point == 3
    assert {"00000000000000000000.log", "orders-0"} <= synced(world)
    fill(log, 1)
    log.flush()
    assert synced(world) == {"00000000000000000000.log"}
    log.flush()
    assert synced(world) == set()


def test_a_new_segments_name_is_durable_before_its_records_count(world: World) -> None:
    log = world.open()
    fill(log, 3)
    log.flush()
    synced(world)
    fill(log, 30)
    second = log.segments[1].base_offset
    assert len(log.segments) == 2
    log.flush()
    assert synced(world) >= {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        f"{second:020d}.log",
        "orders-0",
    }
    fill(log, 1)
    log.flush()
    assert synced(world) == {f"{second:020d}.log"}


def test_only_finished_segments_are_flushed_if_asked(world: World) -> None:
    log = world.open()
    fill(log, 100)
    active = log.segments.active.base_offset
    assert log.flush(rolled_only=True) == active
    assert log.recovery_point == active
    assert f"{active:020d}.log" not in synced(world)
    assert log.flush(rolled_only=True) == active
    assert synced(world) == set()


def test_a_segment_is_not_done_with_before_its_indexes_are_durable(world: World) -> None:
    """A segment that was flushed and rolled at the same offset still needs its indexes flushed."""
    log = world.open()
    fill(log, 10)
    assert log.flush() == 10
    log.roll()
    assert log.recovery_point == 9
    synced(world)
    assert log.flush() == 10
    assert "00000000000000000000.index" in synced(world)


def test_leader_epochs_are_written_before_the_recovery_point_passes(world: World) -> None:
    log = world.open()
    path = Path(log.folder, "leader-epoch-checkpoint")
    fill(log, 3, leader_epoch=4)
    assert not path.exists()
    log.flush()
    assert path.read_text() == "0\n1\n4 0\n"
    append(log, batch(b"a"), 6)
    log.flush()
    assert path.read_text() == "0\n2\n4 0\n6 3\n"


def test_a_failed_fsync_is_final(world: World) -> None:
    log = world.open()
    fill(log, 3)
    world.disk.fails_fsync = True
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert [error.errno for error in world.failures] == [errno.EIO]
    world.disk.fails_fsync = False
    synced(world)
    for _ in range(2):
        with pytest.raises(KafkaStorageError):
            log.flush()
        with pytest.raises(KafkaStorageError):
            fill(log, 1)
    assert synced(world) == set()
    assert log.recovery_point == 0
    assert offsets(log) == [0, 1, 2]
    log.close()
    assert not synced(world)


def test_a_full_disk_is_no_failed_flush(world: World) -> None:
    log = world.open()
    fill(log, 3)
    world.disk.room_bytes = 0
    with pytest.raises(KafkaStorageError, match="full"):
        log.flush()
    assert log.failure is None
    assert not world.failures
    assert log.recovery_point == 0
    world.disk.room_bytes = 1 << 62
    assert log.flush() == 3
    assert Path(log.folder, "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_appends_go_on_while_a_flush_is_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.open()
    fill(log, 5)
    waiting, go_on = threading.Event(), threading.Event()
    fsync = FaultyFile.fsync

    def slow_fsync(file: FaultyFile) -> None:
        waiting.set()
        go_on.wait(10)
        fsync(file)

    monkeypatch.setattr(FaultyFile, "fsync", slow_fsync)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(log.flush()))
    thread.start()
    assert waiting.wait(10)
    fill(log, 100)
    assert len(log.segments) > 2
    assert log.recovery_point == 0
    go_on.set()
    thread.join()
    assert answers == [5]
    assert log.flush() == 105


def test_what_was_cut_off_during_a_flush_is_not_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.open()
    fill(log, 20)
    _during_fsync(monkeypatch, lambda: log.truncate_to(10))
    assert log.flush() <= 10
    assert log.recovery_point <= 10
    monkeypatch.undo()
    fill(log, 5)
    assert log.flush() == 15


def test_a_segment_deleted_during_a_flush_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.open(replace(SMALL, retention_ms=1))
    fill(log, 100)
    _during_fsync(monkeypatch, lambda: log.apply_retention(NOW_MS + 1000))
    assert log.flush() == 100
    assert not world.failures
    monkeypatch.undo()
    fill(log, 1)
    assert log.flush() == 101


def test_a_log_closed_during_a_flush_is_no_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.open()
    fill(log, 100)

    def delete() -> None:
        log.close(is_clean=False)
        world.disk.rename(log.folder, log.folder + "-delete")

    _during_fsync(monkeypatch, delete)
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert not world.failures


def test_flushes_are_due_by_count_and_by_time(world: World) -> None:
    log = world.open(replace(SMALL, flush_messages=5, flush_ms=1000))
    assert not log.is_flush_due(NOW_MS + 5000)
    fill(log, 4)
    assert not log.is_flush_due(NOW_MS + 999)
    assert log.is_flush_due(NOW_MS + 1000)
    fill(log, 1)
    assert log.is_flush_due(NOW_MS)
    world.clock.ms += 500
    log.flush()
    assert not log.is_flush_due(NOW_MS + 5000)
    fill(log, 1)
    assert not log.is_flush_due(NOW_MS + 1499)
    assert log.is_flush_due(NOW_MS + 1500)


def test_flushes_are_due_by_time_when_the_clock_was_set_back(world: World) -> None:
    """Else nothing would be flushed until it is as late again."""
    log = world.open(replace(SMALL, flush_ms=1000))
    fill(log, 1)
    world.clock.ms -= 3_600_000
    assert log.is_flush_due(world.clock.ms)
    log.flush()
    fill(log, 1)
    assert not log.is_flush_due(world.clock.ms + 999)
    assert log.is_flush_due(world.clock.ms + 1000)


def test_a_clock_that_is_set_back_flushes_nothing_where_no_time_is_set(world: World) -> None:
    log = world.open(SMALL)
    fill(log, 1)
    assert not log.is_flush_due(NOW_MS - 3_600_000)


def _during_fsync(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something once, inside the first fsync."""
    fsync = FaultyFile.fsync
    pending = [action]

    def interrupted(file: FaultyFile) -> None:
        if pending:
            pending.pop()()
        fsync(file)

    monkeypatch.setattr(FaultyFile, "fsync", interrupted)


def test_leader_epochs_that_could_not_be_written_down_are_by_the_next_flush(world: World) -> None:
    log = world.open()
    fill(log, 1, leader_epoch=3)
    log.flush()
    fill(log, 1, leader_epoch=5)
    opened = world.disk.open

    def none_left(path: str, *, create: bool = False) -> OsFile:
        if path.endswith(names.BESIDE) and not create:
            raise OSError(errno.EMFILE, "no descriptors", path)
        return opened(path, create=create)

    world.disk.open = none_left  # type: ignore[method-assign]
    with pytest.raises(KafkaStorageError):
        log.flush()
    world.disk.open = opened  # type: ignore[method-assign]
    assert log.failure is None
    assert log.flush() == 2
    assert world.open(recovery_point=2).epochs.entries == ((3, 0), (5, 1))


def test_a_renamed_file_of_leader_epochs_is_not_forgotten_by_a_flush_that_fails_later(world: World) -> None:
    log = world.open()
    fill(log, 1, leader_epoch=3)
    log.flush()
    fill(log, 1, leader_epoch=5)
    segment = log.segments.active
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "fsync", partial(_fail, OSError(errno.EMFILE, "no descriptors")))
        with pytest.raises(KafkaStorageError):
            log.flush()
    synced(world)
    assert log.segments.active is segment
    assert log.flush() == 2
    assert "orders-0" in synced(world)  # its name is durable


def _fail(error: OSError, *_: object, **__: object) -> None:
    raise error
