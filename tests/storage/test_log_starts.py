"""Where logs start once records were deleted, over restarts and damage."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.storage.log import Log
from millstream.storage.os_disk import OsDisk
from tests.storage.logs import OTHER_ID, PARTITION, SMALL, TOPIC_ID, World, fill, offsets


def _lose_starts(world: World, content: bytes | None) -> Log:
    """The log after a clean stop whose record of the logs' starts was lost: it began at 7 and ends at 50."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.delete_records(7)
    store.close()
    path = Path(world.path, "a", "log-start-offset-checkpoint")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    found = world.store().get(PARTITION)
    assert found is not None
    return found


def test_deleted_records_stay_deleted(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.delete_records(7)
    store.checkpoints.write_starts()
    store.close(clean=False)
    assert Path(world.path, "a", "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 7\n"
    store = world.store()
    found = store.get(PARTITION)
    assert found is not None
    assert found.start_offset == 7
    store.close()


@pytest.mark.parametrize("end", [0, 20, 35])
def test_what_comes_in_place_of_deleted_records_is_not_taken_for_deleted(world: World, end: int) -> None:
    """An unclean election cuts a log off before its start; it goes on there, and is killed."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.flush()
    log.delete_records(40)
    store.checkpoints.write_starts()
    log.truncate_to(end)
    assert (log.start_offset, log.end_offset) == (end, end)
    fill(log, 5, leader_epoch=1)
    store.close(clean=False)
    store = world.store()
    found = store.get(PARTITION)
    assert found is not None
    assert found.start_offset <= end
    assert offsets(found)[-5:] == list(range(end, end + 5))
    store.close()


def test_deleted_records_stay_deleted_if_the_disk_is_too_full_to_cut_the_log_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: OsDisk, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.flush()
    log.delete_records(40)
    with monkeypatch.context() as patch:
        patch.setattr(OsDisk, "replace_file", full)
        with pytest.raises(KafkaStorageError, match=os.strerror(errno.ENOSPC)):
            log.truncate_to(35)
    assert (log.start_offset, log.end_offset) == (40, 50)
    store.checkpoints.write_starts()
    store.close(clean=False)
    store = world.store()
    found = store.get(PARTITION)
    assert found is not None
    assert found.start_offset == 40
    store.close()


@pytest.mark.parametrize("content", [b"", b"garbage", b"0\n2\norders 0 7\n", b"0\n1\norders 0 x\n", None])
def test_a_lost_record_of_where_logs_start_is_reported(
    world: World, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """The leader epochs, which were written after the records were deleted, still tell it."""
    log = _lose_starts(world, content)
    assert "a/log-start-offset-checkpoint" in caplog.text
    assert (log.start_offset, log.end_offset) == (7, 50)


def test_a_start_beyond_the_end_of_a_cleanly_stopped_log_is_not_believed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log = _lose_starts(world, b"0\n1\norders 0 99999\n")
    assert "cannot start at 99999" in caplog.text
    assert (log.start_offset, log.end_offset) == (7, 50)
    assert offsets(log) == list(range(7, 50))


@pytest.mark.parametrize("way", ["at once", "after sync_names", "after a restart"])
def test_a_new_log_inherits_nothing_from_a_deleted_one_of_its_name(world: World, way: str) -> None:
    """Else it would count as durable what never was, or as deleted what was not."""
    store = world.store()
    old = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(old, 100)
    old.delete_records(90)
    store.checkpoints.write()
    store.checkpoints.write_high_watermarks({old: 100})
    store.delete(PARTITION)
    if way == "after sync_names":
        store.sync_names()
    if way == "after a restart":
        store.close(clean=False)
        store = world.store()
    fill(store.create(PARTITION, OTHER_ID, SMALL), 10)
    store.close(clean=False)
    files = (
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    )
    assert [Path(world.path, "a", name).read_text() for name in files] == ["0\n0\n"] * 3
    store = world.store()
    found = store.get(PARTITION, OTHER_ID)
    assert found is not None
    assert offsets(found) == list(range(10))
    store.close()
