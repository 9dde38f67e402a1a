"""Several log dirs, and ones that fail, fill up or belong to another broker."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.model import TopicPartition
from millstream.storage.log_dir import LogDirInUse
from millstream.storage.meta_properties import WrongLogDir, decode_uuid, encode_uuid
from millstream.storage.store import NoLogDir
from tests.storage.logs import OTHER_ID, PARTITION, SMALL, TOPIC_ID, FaultyDisk, World, fill, offsets


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
    assert [len(world.folder_names(name)) for name in "abc"] == [3, 3, 3]
    for number in (0, 3, 6):
        store.delete(TopicPartition("t", number))
    for number in range(10, 13):
        store.create(TopicPartition("t", number), TOPIC_ID, SMALL)
    assert [folder.log_count for folder in store.dirs] == [3, 3, 3]
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


@pytest.mark.parametrize("way", ["copied", "deleted", "moved elsewhere"])
def test_a_new_dir_is_used_once_no_log_is_missing(world: World, way: str) -> None:
    store = world.store(is_accepted=0)
    store.absent(PARTITION, SMALL)
    store.accept_new_dirs()
    assert [folder.is_new for folder in store.dirs] == [True]
    with pytest.raises(KafkaStorageError, match=str(PARTITION)):
        store.create(TopicPartition("new", 0), OTHER_ID, SMALL)
    if way == "copied":
        store.create(PARTITION, TOPIC_ID, SMALL, is_copy=True)
    elif way == "deleted":
        store.delete(PARTITION, TOPIC_ID)
    else:
        store.not_expected(PARTITION)
    store.create(TopicPartition("new", 0), OTHER_ID, SMALL)
    store.accept_new_dirs()
    assert [folder.is_new for folder in store.dirs] == [False]
    store.close()


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("noticed_by", ["new logs", "a look"])
def test_a_dir_that_is_not_in_its_place_any_more_has_failed(
    world: World, is_replaced: bool, noticed_by: str
) -> None:
    """As one that is unmounted: what would be made at its path is hidden once it is mounted again."""
    store = world.store(("a", "b"))
    failed: list[str] = []
    store.on_dir_failure = failed.append
    path = Path(world.path, "a")
    path.rename(Path(world.path, "away"))
    if is_replaced:
        path.mkdir()
    for name in "b", "a":
        if noticed_by == "a look":
            store.dirs.look_after(f"{world.path}/{name}")
        else:
            created = store.create(TopicPartition(name, 0), TOPIC_ID, SMALL)
            assert created.dir_path.endswith("/b")
    assert failed == [str(path)]
    assert [folder.has_failed for folder in store.dirs] == [True, False]
    assert not is_replaced or not list(path.iterdir())
    store.close()


def test_a_dir_that_cannot_be_looked_at_for_want_of_memory_has_not_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = world.store()
    folder = store.dirs[0]

    def overloaded() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), folder.path)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "check_place", overloaded)
        store.dirs.look_after(folder.path)
    assert not folder.has_failed
    assert f"looking after {folder.path}" in caplog.text
    store.create(PARTITION, TOPIC_ID, SMALL)
    store.close()


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
        assert world.folder_names(fuller) == {"orders-0"}
        (aside,) = world.folder_names("b" if fuller == "a" else "a")
        assert aside.endswith("-stray")
        assert [folder.log_count for folder in store.dirs] == ([1, 0] if fuller == "a" else [0, 1])
        store.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(("older", "newer"), [("a", "b"), ("b", "a")])
def test_of_a_log_in_two_dirs_the_one_of_the_latest_leader_is_served_though_it_is_shorter(
    world: World, older: str, newer: str, is_clean: bool
) -> None:
    """The other has what a leader before wrote and nobody copied, of which this one was cut off."""
    store = world.store((older,))
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 9)
    store.close(clean=is_clean)
    store = world.store((newer,))
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 3)
    fill(log, 2, leader_epoch=2)
    store.close(clean=is_clean)
    for _ in range(2):
        store = world.store(("a", "b"))
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert found.dir_path.endswith(f"/{newer}")
        assert offsets(found) == list(range(5))
        (aside,) = world.folder_names(older)
        assert aside.endswith("-stray")
        store.close()


@pytest.mark.parametrize("is_led", [False, True])
@pytest.mark.parametrize(("start_offset", "chosen"), [(0, "a"), (5, "a"), (12, "b")])
def test_of_a_log_in_two_dirs_one_without_records_is_served_where_the_other_ends_before_it(
    world: World, start_offset: int, chosen: str, is_led: bool
) -> None:
    store = world.store(("a",))
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 9)
    store.close()
    store = world.store(("b",))
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    log.restart_at(start_offset)
    if is_led:
        log.begin_epoch(3)
    store.close()
    store = world.store(("a", "b"))
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.dir_path.endswith(f"/{chosen}")
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
    (aside,) = world.folder_names("a")
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


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_a_dir_without_room_for_the_mark_of_the_boot_is_served(world: World, error: int) -> None:
    """Something else filled the disk while the machine started anew."""
    world.disk = disk = DirTrouble()
    world.store(boot_id="x").close()
    disk.below, disk.errno = f"{world.path}/a/", error
    if error == errno.EIO:
        with pytest.raises(NoLogDir):
            world.store(boot_id="y")
        return
    store = world.store(boot_id="y")
    disk.below = ""
    assert store.dirs.kept_all
    store.close(clean=False)
    store = world.store(boot_id="y")
    assert not store.dirs.kept_all  # nobody knows that the machine ran on since
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
    store.checkpoints.write_high_watermarks({log: 3})
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


def test_the_folder_of_a_cluster_is_no_log_dir(world: World) -> None:
    """`broker-1` has the name of a log: it was loaded as one, and set aside."""
    world.store(("cluster/broker-1",)).close()
    with pytest.raises(WrongLogDir, match=r"is the folder of a cluster, and .*/broker-1 .*--brokers N"):
        world.store(("cluster",))
    assert os.listdir(Path(world.path, "cluster")) == ["broker-1"]
    world.store(("cluster/broker-1",)).close()


def test_a_log_dir_within_a_log_dir_is_left_alone(world: World) -> None:
    world.store(("a", "a/disk-2")).close()
    inner = Path(world.path, "a", "disk-2")
    partition = TopicPartition("disk", 2)
    for _ in range(2):
        before = sorted(os.listdir(inner))
        store = world.store(("a",))
        assert store.get(partition) is None
        assert store.set_aside_strays([]) == []
        with pytest.raises(KafkaStorageError, match="is a log dir itself"):
            store.create(partition, TOPIC_ID, SMALL)
        store.close()
        assert sorted(os.listdir(inner)) == before


def test_a_log_that_became_a_log_dir_is_not_set_aside(world: World) -> None:
    inner = Path(world.path, "a", "disk-2")
    inner.mkdir(parents=True)
    store = world.store(("a", "a/disk-2"))
    assert store.set_aside_strays([], lambda _: False) == [TopicPartition("disk", 2)]
    assert (inner / "meta.properties").exists()
    store.close()
