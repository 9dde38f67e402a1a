from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.storage.log import Log
from millstream.storage.sparse_index import SparseIndex
from tests.storage.logs import NOW_MS, SMALL, World, append, batch, fill, offsets

HOUR_MS = 3_600_000
COMPACT = frozenset({"compact"})


def filled(world: World, **config: object) -> Log:
    """A log with a record every second."""
    log = world.open(replace(SMALL, **{"retention_ms": -1, **config}))  # type: ignore[arg-type]
    fill(log, 200, step_ms=1000)
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_old_segments_go_by_their_latest_timestamp(world: World) -> None:
    log = filled(world, retention_ms=HOUR_MS)
    before = bases(log)
    last_of_third = NOW_MS + (before[3] - 1) * 1000
    assert log.apply_retention(last_of_third + HOUR_MS) > 0
    assert bases(log) == before[2:]
    assert log.apply_retention(last_of_third + HOUR_MS) == 0
    assert log.apply_retention(last_of_third + HOUR_MS + 1) > 0
    assert bases(log) == before[3:]
    assert log.start_offset == before[3]
    assert offsets(log) == list(range(before[3], 200))


def test_a_late_record_keeps_its_segment_and_all_after_it(world: World) -> None:
    log = world.open(replace(SMALL, retention_ms=HOUR_MS))
    append(log, batch(b"late", timestamp=NOW_MS + HOUR_MS))
    fill(log, 100)
    assert log.apply_retention(NOW_MS + HOUR_MS + 1) == 0
    assert log.start_offset == 0


def test_an_expired_active_segment_is_rolled_then_deleted(world: World) -> None:
    log = filled(world, retention_ms=HOUR_MS)
    log.apply_retention(NOW_MS + 100 * HOUR_MS)
    assert bases(log) == [200]
    assert (log.start_offset, log.end_offset) == (200, 200)
    assert offsets(log) == []
    assert log.apply_retention(NOW_MS + 200 * HOUR_MS) == 0
    assert append(log, batch(b"next")).base_offset == 200


def test_a_full_disk_gets_room_though_the_active_segment_cannot_be_rolled(world: World) -> None:
    log = filled(world, retention_ms=HOUR_MS)
    active = log.segments.active.base_offset
    world.disk.room_bytes = 0
    assert log.apply_retention(NOW_MS + 100 * HOUR_MS) > 0
    assert bases(log) == [active]
    assert offsets(log) == list(range(active, 200))
    with pytest.raises(KafkaStorageError, match="full"):
        log.apply_retention(NOW_MS + 100 * HOUR_MS)
    world.disk.room_bytes = 1 << 62
    log.apply_retention(NOW_MS + 100 * HOUR_MS)
    assert bases(log) == [200]


def test_size_is_kept_at_or_above_the_limit(world: World) -> None:
    log = filled(world)
    size = log.size_bytes
    first = log.segments.first.size
    log.config = replace(log.config, retention_bytes=size - first + 1)
    assert log.apply_retention(NOW_MS) == 0
    log.config = replace(log.config, retention_bytes=size - first)
    assert log.apply_retention(NOW_MS) == first
    log.config = replace(log.config, retention_bytes=1)
    log.apply_retention(NOW_MS)
    assert len(log.segments) == 1
    assert log.segments.active.size > 0


def test_uncommitted_segments_stay(world: World) -> None:
    log = filled(world, retention_ms=1)
    second = bases(log)[1]
    assert log.apply_retention(NOW_MS + HOUR_MS, second - 1) == 0
    log.apply_retention(NOW_MS + HOUR_MS, second)
    assert log.start_offset == second


def test_a_compacted_topic_keeps_old_records_but_not_deleted_ones(world: World) -> None:
    log = filled(world, retention_ms=1, retention_bytes=1, cleanup_policy=COMPACT)
    before = bases(log)
    assert log.apply_retention(NOW_MS + HOUR_MS) == 0
    log.delete_records(before[2] + 1)
    log.apply_retention(NOW_MS + HOUR_MS)
    assert bases(log) == before[2:]
    assert log.start_offset == before[2] + 1


def test_deleted_files_are_renamed_now_and_removed_after_a_delay(world: World) -> None:
    log = filled(world, retention_bytes=1, file_delete_delay_ms=60_000)
    folder = Path(log.folder)
    first = log.segments.first
    log.read(0, 100)
    log.apply_retention(NOW_MS)
    assert not world.file(0).exists()
    assert (folder / "00000000000000000000.log.deleted").exists()
    assert first.is_retired
    assert world.trash.empty() == 0
    world.clock.ms += 60_000
    assert world.trash.empty() > 0
    assert not list(folder.glob("*.deleted"))
    assert {path.suffix for path in folder.iterdir()} <= {".log", ".index", ".timeindex", ".snapshot"}


def test_leader_epochs_before_the_start_go(world: World) -> None:
    log = world.open(replace(SMALL, retention_bytes=1))
    fill(log, 20, leader_epoch=1)
    fill(log, 100, leader_epoch=2)
    log.apply_retention(NOW_MS)
    assert log.epochs.entries == ((2, log.start_offset),)


def test_snapshots_go_with_their_segments(world: World) -> None:
    log = filled(world, retention_bytes=1)
    assert len(log.snapshots.offsets) > 3
    log.apply_retention(NOW_MS)
    world.trash.empty()
    assert log.snapshots.offsets == [log.segments.active.base_offset]
    assert [path.name for path in Path(log.folder).glob("*.snapshot")] == [
        f"{log.segments.active.base_offset:020d}.snapshot"
    ]


def test_age_is_known_after_a_restart(world: World) -> None:
    log = filled(world, retention_ms=HOUR_MS)
    log.close()
    log = world.open(replace(SMALL, retention_ms=HOUR_MS), is_clean=True)
    assert log.apply_retention(NOW_MS + HOUR_MS) == 0
    log.apply_retention(NOW_MS + HOUR_MS + 201_000)
    assert (log.start_offset, log.end_offset) == (200, 200)


def test_what_a_bad_disk_says_is_an_error_of_the_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes through many logs goes on with the next one."""
    log = filled(world, retention_ms=HOUR_MS)
    log.close()
    log = world.open(log.config, is_clean=True, recovery_point=200)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(SparseIndex, "_load", fail)
    with pytest.raises(KafkaStorageError, match="cannot be read"):
        log.apply_retention(NOW_MS + 100 * HOUR_MS)
    assert log.failure is None
    monkeypatch.undo()
    monkeypatch.setattr(world.disk, "rename", fail)
    with pytest.raises(KafkaStorageError, match="has failed"):
        log.apply_retention(NOW_MS + 100 * HOUR_MS)
    assert [error.errno for error in world.failures] == [errno.EIO]
