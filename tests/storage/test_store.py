from __future__ import annotations

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.log import LogConfig
from millstream.errors import KafkaStorageError
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.batch import ControlMarker, encode_marker
from millstream.storage.log import Log
from millstream.storage.log_dir import LogDirInUse
from millstream.storage.meta_properties import WrongLogDir, decode_uuid, encode_uuid
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import NoLogDir, Store
from tests.storage.logs import (
    NOW_MS,
    PARTITION,
    SMALL,
    TOPIC_ID,
    FaultyDisk,
    World,
    append,
    batch,
    fill,
    offsets,
)

OTHER_ID = UUID(int=77)


def folder_names(world: World, name: str = "a") -> set[str]:
    return {path.name for path in Path(world.path, name).iterdir() if path.is_dir()}


def test_logs_are_there_again_after_a_clean_restart(world: World) -> None:
    store = world.store()
    assert not store.dirs.were_clean
    for number in range(5):
        fill(store.create(TopicPartition("t", number), TOPIC_ID, SMALL), number * 20)
    store.close()
    store = world.store()
    assert store.dirs.were_clean
    assert len(store) == 5
    for number in range(5):
        log = store.get(TopicPartition("t", number), TOPIC_ID)
        assert log is not None
        assert offsets(log) == list(range(number * 20))
        assert log.recovery_point == number * 20
    store.close()


def test_the_mark_of_a_clean_stop_is_gone_while_the_store_is_open(world: World) -> None:
    store = world.store()
    mark = Path(world.path, "a", ".kafka_cleanshutdown")
    assert not mark.exists()
    store.close(broker_epoch=12)
    assert json.loads(mark.read_text()) == {"version": 0, "brokerEpoch": 12}
    world.disk.synced.clear()
    store = world.store()
    assert not mark.exists()
    assert f"{world.path}/a" in world.disk.synced
    assert store.dirs[0].broker_epoch == 12
    store.close(clean=False)
    assert not mark.exists()
    store = world.store()
    assert not store.dirs.were_clean
    store.close()


def test_a_kill_leaves_logs_to_recover_from_their_recovery_points(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 100)
    store.checkpoints.write()
    checkpoint = Path(world.path, "a", "recovery-point-offset-checkpoint")
    active = log.segments.active.base_offset
    assert checkpoint.read_text() == f"0\n1\norders 0 {active}\n"
    first = Path(log.folder, "00000000000000000000.log")
    store.close(clean=False)
    damaged = bytearray(first.read_bytes())
    damaged[70] ^= 1
    first.write_bytes(damaged)
    last = Path(log.folder, f"{active:020d}.log")
    last.write_bytes(last.read_bytes() + b"torn")
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.end_offset == 100
    with pytest.raises(KafkaStorageError):
        found.read(0, 1000)
    assert offsets(found, start=log.segments[1].base_offset) == list(range(log.segments[1].base_offset, 100))
    store.close()


def test_indexes_that_a_power_loss_took_after_a_flush_and_a_roll_are_derived_again(world: World) -> None:
    """The recovery point is at the end of a segment when the log goes on in another, and the power goes."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    append(log, batch(b"a", producer_id=1, epoch=0, sequence=0, is_transactional=True))
    append(log, encode_marker(ControlMarker(False, 4), producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS))
    log.flush()
    store.checkpoints.write()
    log.roll()
    store.close(clean=False)
    for suffix in (".index", ".timeindex", ".txnindex"):
        path = Path(log.folder, f"{0:020d}{suffix}")
        assert str(path) not in world.disk.synced
        path.unlink()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.aborted_transactions(0, 2) == [(1, 0)]
    first = found.offset_for_timestamp(NOW_MS)
    assert first is not None
    assert first.offset == 0
    store.close()


def latest_without_indexes(world: World, log: Log) -> int:
    """The first segment's largest timestamp, once a power loss took its indexes, which were never flushed."""
    for suffix in (".index", ".timeindex"):
        path = Path(log.folder, f"{0:020d}{suffix}")
        assert str(path) not in world.disk.synced
        path.write_bytes(b"")
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    latest = found.segments.first.max_timestamp
    store.close()
    return latest


def test_indexes_that_recovery_made_and_a_power_loss_took_are_derived_again(world: World) -> None:
    """They were durable at the clean stop, whose recovery point is still the one that is written down."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5, step_ms=10)
    store.close()
    world.store().close(clean=False)
    world.disk.synced.clear()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    found.roll()
    store.close(clean=False)
    assert latest_without_indexes(world, log) == NOW_MS + 40


def test_indexes_that_a_power_loss_took_after_a_cut_and_a_roll_are_derived_again(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5, step_ms=10)
    log.roll()
    fill(log, 1)
    log.flush()
    store.checkpoints.write()
    log.truncate_to(3)
    world.disk.synced.clear()
    log.roll()
    store.close(clean=False)
    assert latest_without_indexes(world, log) == NOW_MS + 20


def test_kills_do_not_wear_the_recovery_point_down(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5)
    log.flush()
    store.checkpoints.write()
    for _ in range(3):
        store.close(clean=False)
        store = world.store()
    checkpoint = Path(world.path, "a", "recovery-point-offset-checkpoint")
    assert checkpoint.read_text() == "0\n1\norders 0 4\n"
    store.close()


def test_what_was_cut_off_is_not_written_down_as_cleaned(world: World) -> None:
    """Recovery takes no gap below what was cleaned for a loss; what comes instead was never cleaned."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.flush()
    log.cleaned_until = 40
    store.checkpoints.write()
    log.truncate_to(10)
    checkpoint = Path(world.path, "a", "cleaner-offset-checkpoint")
    assert checkpoint.read_text() == "0\n1\norders 0 10\n"
    store.close()


def test_meta_properties_are_kafkas_and_guard_the_dir(world: World) -> None:
    world.store().close()
    text = Path(world.path, "a", "meta.properties").read_text()
    pairs = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    directory_id = pairs.pop("directory.id")
    assert pairs == {"version": "1", "cluster.id": "cluster", "node.id": "1"}
    assert encode_uuid(decode_uuid(directory_id)) == directory_id
    with pytest.raises(WrongLogDir, match="cluster"):
        world.store(cluster_id="another")
    with pytest.raises(WrongLogDir, match=r"node\.id"):
        world.store(broker_id=2)
    store = world.store()
    assert store.dirs[0].meta is not None
    assert encode_uuid(store.dirs[0].meta.directory_id) == directory_id
    store.close()


@pytest.mark.parametrize("content", [b"", b"version=1\n", b"\xff\xfe=\x00"])
def test_meta_properties_that_say_nothing_are_an_error_that_says_what_to_do(
    world: World, content: bytes
) -> None:
    world.store().close()
    Path(world.path, "a", "meta.properties").write_bytes(content)
    with pytest.raises(WrongLogDir, match=r"meta.properties does not say whose .* put a copy of it back"):
        world.store()


def test_a_dir_is_used_by_one_process(world: World) -> None:
    store = world.store()
    with pytest.raises(LogDirInUse, match="another process"):
        world.store()
    store.close()
    world.store().close()


def test_new_logs_go_where_there_are_fewest(world: World) -> None:
    store = world.store(("a", "b", "c"))
    for number in range(9):
        store.create(TopicPartition("t", number), TOPIC_ID, SMALL)
    assert [len(folder_names(world, name)) for name in "abc"] == [3, 3, 3]
    for number in (0, 3, 6):
        store.delete(TopicPartition("t", number))
    for number in range(10, 13):
        store.create(TopicPartition("t", number), TOPIC_ID, SMALL)
    assert [folder.log_count for folder in store.dirs] == [3, 3, 3]
    store.close()


def test_partition_metadata_is_kafkas(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    assert (
        Path(log.folder, "partition.metadata").read_text() == f"version: 0\ntopic_id: {encode_uuid(TOPIC_ID)}"
    )
    assert store.topic_id(PARTITION) == TOPIC_ID
    store.close()


def test_a_log_of_another_topic_id_is_set_aside(world: World) -> None:
    store = world.store()
    fill(store.create(PARTITION, OTHER_ID, SMALL), 3)
    store.close()
    store = world.store()
    assert store.get(PARTITION, TOPIC_ID) is None
    assert store.get(PARTITION) is None
    (name,) = folder_names(world)
    assert name.startswith("orders-0.")
    assert name.endswith("-stray")
    assert Path(world.path, "a", name, "00000000000000000000.log").stat().st_size > 0
    created = store.create(PARTITION, TOPIC_ID, SMALL)
    assert created.end_offset == 0
    store.close()
    store = world.store()
    assert len(store) == 1
    store.close()


def test_logs_of_no_known_topic_are_set_aside(world: World) -> None:
    store = world.store()
    store.create(PARTITION, TOPIC_ID, SMALL)
    store.create(TopicPartition("gone", 3), OTHER_ID, SMALL)
    assert store.set_aside_strays([TOPIC_ID]) == [TopicPartition("gone", 3)]
    assert store.get(TopicPartition("gone", 3)) is None
    assert len(store) == 1
    assert {name.split(".")[0] for name in folder_names(world)} == {"orders-0", "gone-3"}
    store.close()


def test_a_folder_without_a_topic_id_takes_the_one_it_is_asked_for(world: World) -> None:
    store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 3)
    store.close()
    metadata = Path(world.path, "a", "orders-0", "partition.metadata")
    for content in (b"", None):
        metadata.write_bytes(content) if content is not None else metadata.unlink()
        store = world.store()
        assert store.topic_id(PARTITION) == NO_UUID
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert offsets(found) == [0, 1, 2]
        assert encode_uuid(TOPIC_ID) in metadata.read_text()
        store.close()


def test_a_copy_without_a_topic_id_is_set_aside_unless_it_is_empty(world: World) -> None:
    """It may be of an earlier topic of that name, which a failing disk kept from being deleted."""
    metadata = Path(world.path, "a", "orders-0", "partition.metadata")
    for records in (0, 3):
        store = world.store()
        log = store.get(PARTITION) or store.create(PARTITION, TOPIC_ID, SMALL)
        if records:
            fill(log, records)
        store.close()
        metadata.write_bytes(b"version: 0\ntopic_id: abc")
        store = world.store()
        assert store.topic_id(PARTITION) == NO_UUID
        found = store.get(PARTITION, TOPIC_ID, is_copy=True)
        assert (found is None) == bool(records)
        store.close()
    (name,) = folder_names(world)
    assert name.startswith("orders-0.")
    assert name.endswith("-stray")


def test_a_deleted_log_is_renamed_and_later_removed(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    log.config = type(SMALL)(file_delete_delay_ms=5000)
    fill(log, 10)
    store.delete(PARTITION)
    (name,) = folder_names(world)
    assert name.startswith("orders-0.")
    assert name.endswith("-delete")
    with pytest.raises(KafkaStorageError):
        append(log, batch(b"a"))
    assert store.remove_deleted() == 0
    world.clock.ms += 5000
    assert store.remove_deleted() == 1
    assert folder_names(world) == set()
    store.delete(PARTITION)
    store.close()


def test_a_restart_removes_what_was_deleted_before(world: World) -> None:
    store = world.store()
    store.create(PARTITION, TOPIC_ID, SMALL)
    store.delete(PARTITION)
    store.close()
    store = world.store()
    assert len(store) == 0
    store.remove_deleted()
    assert folder_names(world) == set()
    store.close()


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
    store.checkpoints.write_high_watermarks({PARTITION: 100})
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


def test_high_watermarks_are_written_down(world: World) -> None:
    store = world.store(("a", "b"))
    for number in range(2):
        store.create(TopicPartition("t", number), TOPIC_ID, SMALL)
    marks = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 6}
    store.checkpoints.write_high_watermarks({**marks, TopicPartition("elsewhere", 0): 9})
    assert Path(world.path, "a", "replication-offset-checkpoint").read_text() == "0\n1\nt 0 5\n"
    assert store.checkpoints.read_high_watermarks() == marks
    store.close()


def test_a_dir_that_fails_takes_down_only_its_logs(world: World) -> None:
    store = world.store(("a", "b"))
    failed: list[str] = []
    store.on_dir_failure = failed.append
    logs = [store.create(TopicPartition("t", number), TOPIC_ID, SMALL) for number in range(4)]
    in_a = [log for log in logs if log.dir_path.endswith("/a")]
    in_b = [log for log in logs if log.dir_path.endswith("/b")]
    world.disk.room_bytes, world.disk.write_errno, world.disk.failing_suffix = 0, errno.EIO, ".log"
    with pytest.raises(KafkaStorageError):
        fill(in_a[0], 1)
    world.disk.room_bytes = 1 << 62
    assert failed == [f"{world.path}/a"]
    for log in in_a:
        assert log.failure is not None
        with pytest.raises(KafkaStorageError):
            fill(log, 1)
    for log in in_b:
        fill(log, 3)
    created = store.create(TopicPartition("t", 9), TOPIC_ID, SMALL)
    assert created.dir_path.endswith("/b")
    assert [folder.has_failed for folder in store.dirs] == [True, False]
    assert store.dirs[0].volume_bytes() == (-1, -1)
    store.checkpoints.write()
    store.close()
    assert not Path(world.path, "a", ".kafka_cleanshutdown").exists()
    assert Path(world.path, "b", ".kafka_cleanshutdown").exists()


def test_a_dir_that_cannot_be_opened_is_left_out(world: World) -> None:
    Path(world.path, "a").write_bytes(b"not a folder")
    store = world.store(("a", "b"))
    assert [folder.has_failed for folder in store.dirs] == [True, False]
    assert store.create(PARTITION, TOPIC_ID, SMALL).dir_path.endswith("/b")
    store.close()
    with pytest.raises(NoLogDir):
        world.store(("a",))


def test_a_full_disk_refuses_new_logs_and_nothing_else(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    world.disk.room_bytes = 0
    with pytest.raises(KafkaStorageError):
        store.create(TopicPartition("more", 0), TOPIC_ID, SMALL)
    world.disk.room_bytes = 1 << 62
    assert not store.dirs[0].has_failed
    fill(log, 3)
    store.create(TopicPartition("more", 0), TOPIC_ID, SMALL)
    store.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("fuller", ["a", "b"])
def test_of_a_log_in_two_dirs_the_one_that_reaches_further_is_served(
    world: World, fuller: str, is_clean: bool
) -> None:
    store = world.store(("a", "b"))
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5)
    log.flush()
    shutil.copytree(Path(world.path, "a", "orders-0"), Path(world.path, "b", "orders-0"))
    fill(log, 5)
    store.close(clean=is_clean)
    if fuller == "b":
        Path(world.path, "a", "orders-0").rename(Path(world.path, "c"))
        Path(world.path, "b", "orders-0").rename(Path(world.path, "a", "orders-0"))
        Path(world.path, "c").rename(Path(world.path, "b", "orders-0"))
    for _ in range(2):
        store = world.store(("a", "b"))
        assert len(store) == 1
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert offsets(found) == list(range(10))
        assert folder_names(world, fuller) == {"orders-0"}
        (aside,) = folder_names(world, "b" if fuller == "a" else "a")
        assert aside.endswith("-stray")
        assert [folder.log_count for folder in store.dirs] == ([1, 0] if fuller == "a" else [0, 1])
        store.close()


def test_of_a_log_in_two_dirs_the_one_of_the_topic_is_served(world: World) -> None:
    store = world.store(("a", "b"))
    fill(store.create(PARTITION, OTHER_ID, SMALL), 9)
    store.close(clean=False)
    Path(world.path, "a", "orders-0").rename(Path(world.path, "kept"))
    store = world.store(("b",))
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 3)
    store.close()
    Path(world.path, "kept").rename(Path(world.path, "a", "orders-0"))
    store = world.store(("a", "b"))
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert offsets(found) == [0, 1, 2]
    (aside,) = folder_names(world, "a")
    assert aside.endswith("-stray")
    store.close()


def test_logs_that_nobody_asked_for_are_closed_in_both_dirs(world: World) -> None:
    store = world.store(("a", "b"))
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 5)
    store.close(clean=False)
    shutil.copytree(Path(world.path, "a", "orders-0"), Path(world.path, "b", "orders-0"))
    store = world.store(("a", "b"))
    store.close()
    for name in ("a", "b"):
        store = world.store((name,))
        assert store.dirs.were_clean
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert found.recovery_point == found.end_offset == 5
        store.close()


class DirTrouble(FaultyDisk):
    """A disk on which no folder can be made below some dir."""

    def __init__(self) -> None:
        super().__init__()
        self.below = ""
        self.errno = errno.EIO

    def makedirs(self, path: str) -> None:
        if self.below and path.startswith(self.below):
            raise OSError(self.errno, "refused", path)
        super().makedirs(path)

    def replace_file(self, path: str, data: bytes) -> None:
        if self.below and path.startswith(self.below):
            raise OSError(self.errno, "refused", path)
        super().replace_file(path, data)


@pytest.mark.parametrize(
    ("error", "fails"), [(errno.EIO, True), (errno.ENOSPC, False), (errno.EMFILE, False)]
)
def test_a_dir_that_takes_no_new_log_is_passed_over(world: World, error: int, fails: bool) -> None:
    world.disk = disk = DirTrouble()
    store = world.store(("a", "b"))
    disk.below, disk.errno = f"{world.path}/a/", error
    for number in range(3):
        assert store.create(TopicPartition("t", number), TOPIC_ID, SMALL).dir_path.endswith("/b")
    assert [folder.has_failed for folder in store.dirs] == [fails, False]
    disk.below = f"{world.path}/"
    with pytest.raises(KafkaStorageError):
        store.create(TopicPartition("t", 9), TOPIC_ID, SMALL)
    disk.below = ""
    store.close()


def test_a_dir_whose_fsync_failed_has_not_kept_all_though_the_machine_runs_on(world: World) -> None:
    """The kernel gives up what it could not write: what a process read of it may be gone for the next."""
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    store.close(clean=False)
    store = world.store(boot_id="x")
    assert store.dirs.kept_all
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5)
    world.disk.fails_fsync = True
    with pytest.raises(KafkaStorageError):
        log.flush()
    world.disk.fails_fsync = False
    store.close()
    store = world.store(boot_id="x")
    assert not store.dirs.kept_all
    store.close()


def test_a_new_log_does_not_go_on_in_the_folder_of_one_that_could_not_be_renamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 5)

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "refused", source)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "rename", refuse)
        with pytest.raises(KafkaStorageError):
            store.delete(PARTITION)
        with pytest.raises(KafkaStorageError):
            store.create(PARTITION, OTHER_ID, SMALL)
    log = store.create(PARTITION, OTHER_ID, SMALL)
    fill(log, 2)
    store.close(clean=False)
    store = world.store()
    found = store.get(PARTITION, OTHER_ID)
    assert found is not None
    assert offsets(found) == [0, 1]
    assert sorted(name.endswith("-stray") for name in folder_names(world)) == [False, True]
    store.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_want_of_descriptors_or_memory_fails_no_dir(world: World, error: int) -> None:
    world.disk = disk = DirTrouble()
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 100)
    disk.below, disk.errno = f"{world.path}/a", error
    store.checkpoints.write()
    store.checkpoints.write_starts()
    store.checkpoints.write_high_watermarks({PARTITION: 3})
    disk.below = ""
    disk.room_bytes, disk.write_errno = 0, error
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
    disk.room_bytes = 1 << 62
    assert not store.dirs[0].has_failed
    fill(log, 1)
    assert log.flush() == 101
    store.close()
    assert Path(world.path, "a", ".kafka_cleanshutdown").exists()


def test_a_late_checkpoint_does_not_undo_a_clean_stop(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.delete_records(5)
    store.close()
    store.checkpoints.write_starts()
    store.checkpoints.write_high_watermarks({})
    store.checkpoints.write()
    store.sync_names()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert (found.start_offset, found.end_offset) == (5, 50)
    store.close()


def test_a_log_that_lost_its_end_starts_where_it_said(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    fill(log, 100)
    log.flush()
    half = log.size_bytes
    fill(log, 100)
    log.delete_records(180)
    store.checkpoints.write_starts()
    store.close(clean=False)
    os.truncate(Path(world.path, "a", "orders-0", f"{0:020d}.log"), half)
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert (found.start_offset, found.end_offset) == (180, 180)
    store.close(clean=False)  # once more, before anything was written
    for end in (180, 280):
        store = world.store()
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert (found.start_offset, found.end_offset) == (180, end)
        assert offsets(found) == list(range(180, end))
        fill(found, 100, leader_epoch=1)
        found.flush()
        store.close(clean=False)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("text", ["0\n2\np 0\n1 60\n", "0\n2\n1 60\n0 0\n", "0\n2\n0 -3\n1 60\n", "\xff"])
def test_leader_epochs_that_are_not_readable_come_from_the_batches(
    world: World, text: str, is_clean: bool
) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 60, leader_epoch=0)
    fill(log, 60, leader_epoch=1)
    log.flush()
    store.checkpoints.write()
    store.close(clean=is_clean)
    file = Path(world.path, "a", "orders-0", "leader-epoch-checkpoint")
    assert file.read_text() == "0\n2\n0 0\n1 60\n"
    file.write_text(text, encoding="latin-1")
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.epochs.entries == ((0, 0), (1, 60))
    assert offsets(found) == list(range(120))
    store.close()
    assert file.read_text() == "0\n2\n0 0\n1 60\n"


def test_what_is_not_a_log_is_left_alone(world: World) -> None:
    world.store().close()
    root = Path(world.path, "a")
    (root / "notes-1").write_text("a file")
    (root / "lost+found").mkdir()
    (root / "__cluster_metadata-0").mkdir()
    (root / "orders-0.abc-future").mkdir()
    store = world.store()
    assert len(store) == 0
    assert store.set_aside_strays([]) == []
    store.close()
    assert {"notes-1", "lost+found", "__cluster_metadata-0", "orders-0.abc-future"} <= {
        p.name for p in root.iterdir()
    }


def test_many_logs_are_closed_in_threads(world: World) -> None:
    store = world.store()
    for number in range(40):
        fill(store.create(TopicPartition("t", number), TOPIC_ID, SMALL), 30)
    with ThreadPoolExecutor(8) as pool:
        store.close(each=pool.map)
    store = world.store()
    assert store.dirs.were_clean
    assert all(offsets(log) == list(range(30)) for log in store)
    assert all(log.recovery_point == 30 for log in store)
    store.close()


def test_creating_a_log_costs_no_fsync(world: World) -> None:
    store = world.store()
    world.disk.synced.clear()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 3)
    assert world.disk.synced == []
    log.flush()
    assert {f"{log.folder}/partition.metadata", log.folder, log.dir_path} <= set(world.disk.synced)
    second = store.create(TopicPartition("t", 1), TOPIC_ID, SMALL)
    third = store.create(TopicPartition("t", 2), TOPIC_ID, SMALL)
    world.disk.synced.clear()
    for one in (second, third):
        fill(one, 1)
        one.flush()
    assert world.disk.synced.count(log.dir_path) == 1
    store.close()


def test_a_store_reads_what_another_clock_wrote(world: World) -> None:
    store: Store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 3)
    store.close()
    world.clock.ms = NOW_MS - 10_000_000
    store = world.store()
    found = store.get(PARTITION)
    assert found is not None
    assert offsets(found) == [0, 1, 2]
    store.close()
