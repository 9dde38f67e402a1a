"""Folders of logs that are taken away are missed, and no others."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from millstream.config.log import LogConfig
from millstream.model import TopicPartition
from millstream.storage import log_list
from millstream.storage.log_list import LogList
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import Store
from tests.storage.logs import OTHER_ID, PARTITION, TOPIC_ID, FaultyDisk, TestClock, World, append, batch

LIST = ".millstream_logs"


@pytest.mark.parametrize("clean", [False, True])
def test_a_log_that_no_checkpoint_speaks_of_is_missed(world: World, clean: bool) -> None:
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    append(log, batch(b"a record"))
    store.close(clean=clean)
    shutil.rmtree(log.folder)
    for _ in range(2):  # a start that is killed before anybody heard of it changes nothing
        store = world.store(boot_id="x")
        assert not store.dirs.kept_all
        store.close(clean=False)
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    store.close(clean=False)
    store = world.store(boot_id="x")
    assert store.dirs.kept_all, "it was told, and nothing was lost since"
    store.close()


class Killed(BaseException):
    """The process ends in the middle of a change."""


class MortalDisk(OsDisk):
    """Ends the process before one of the changes that it is asked for."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.changes_left = changes

    def _change(self) -> None:
        self.changes_left -= 1
        if self.changes_left < 0:
            raise Killed


def _mortal(name: str) -> Callable[..., object]:
    real = getattr(OsDisk, name)

    def change(self: MortalDisk, *words: object, **named: object) -> object:
        self._change()
        return real(self, *words, **named)

    return change


for each in ("open", "replace_file", "rename", "remove", "rmtree", "makedirs"):
    setattr(MortalDisk, each, _mortal(each))


def lives(store: Store) -> None:
    """What makes and takes away logs."""
    other = TopicPartition("other", 3)
    store.dirs.mark_boot()
    append(store.create(PARTITION, TOPIC_ID, LogConfig(file_delete_delay_ms=0)), batch(b"a record"))
    store.create(other, TOPIC_ID, LogConfig())
    store.delete(PARTITION, TOPIC_ID)
    store.sync_names()
    store.remove_deleted()
    store.create(PARTITION, OTHER_ID, LogConfig())
    assert store.get(other, OTHER_ID) is None  # of another topic: set aside
    store.create(other, OTHER_ID, LogConfig())
    store.set_aside_strays([TOPIC_ID])


def test_a_kill_at_any_moment_takes_no_folder_away(tmp_path: Path) -> None:
    for changes in range(1000):
        path = tmp_path / str(changes)
        disk = MortalDisk(changes)
        store = Store([str(path)], disk, TestClock(), random=Random(1), boot_id="x")
        is_over = False
        try:
            store.open()
            lives(store)
            is_over = True
        except Killed:
            pass
        store.release()
        again = Store([str(path)], OsDisk(), TestClock(), random=Random(2), boot_id="x")
        again.open()
        assert again.missed == [], f"killed before change {changes}"
        again.release()
        if is_over:
            return
    pytest.fail("it never ended")


def test_on_a_full_disk_logs_are_deleted_and_not_missed(world: World) -> None:
    disk = world.disk = FaultyDisk()
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    store.create(PARTITION, TOPIC_ID, LogConfig(file_delete_delay_ms=0))
    store.create(TopicPartition("kept", 0), TOPIC_ID, LogConfig())
    disk.failing_suffix, disk.room_bytes = LIST, 0
    store.delete(PARTITION)
    with pytest.raises(Exception, match=os.strerror(errno.ENOSPC)):
        store.create(TopicPartition("new", 0), TOPIC_ID, LogConfig())
    disk.room_bytes = 1 << 62
    store.remove_deleted()
    store.create(TopicPartition("new", 0), TOPIC_ID, LogConfig())
    store.close(clean=False)
    store = world.store(boot_id="x")
    assert (store.missed, store.dirs.kept_all) == ([], True)
    assert len(store) == 2
    store.close()


def test_a_folder_that_was_moved_to_another_dir_is_not_missed(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]

    def opened() -> Store:
        store = Store(dirs, OsDisk(), TestClock(), random=Random(1), boot_id="x")
        store.open()
        store.dirs.mark_boot()
        return store

    store = opened()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    store.close()
    source = Path(log.folder)
    (target,) = (Path(path) for path in dirs if Path(path) != source.parent)
    shutil.move(source, target / source.name)
    store = opened()
    assert (store.missed, store.dirs.kept_all) == ([], True)
    store.close()


def test_the_file_does_not_grow_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_list, "MAX_SPARE_LINES", 20)
    store = world.store(boot_id="x")
    path = Path(store.dirs[0].path) / LIST
    store.create(TopicPartition("kept", 0), TOPIC_ID, LogConfig())
    for _ in range(100):
        store.create(PARTITION, TOPIC_ID, LogConfig(file_delete_delay_ms=0))
        store.delete(PARTITION)
        assert len(path.read_text().splitlines()) <= 23
    store.close()
    assert world.store(boot_id="x").dirs.kept_all


@pytest.mark.parametrize("torn", range(1, len(f"+{PARTITION}\n") + 1))
def test_a_line_that_a_power_loss_tore_takes_no_other_with_it(tmp_path: Path, torn: int) -> None:
    """Also where nothing but its end is gone: what comes next would be part of it."""
    other = TopicPartition("u", 0)
    before = LogList(OsDisk(), str(tmp_path))
    before.add(other)
    before.add(PARTITION)
    path = tmp_path / LIST
    os.truncate(path, path.stat().st_size - torn)
    after = LogList(OsDisk(), str(tmp_path))
    after.read()
    after.begin({other, PARTITION})
    after.remove(other)
    assert list(LogList(OsDisk(), str(tmp_path)).read()) == [PARTITION]


@pytest.mark.parametrize("suffix", [LIST, ""])
def test_a_list_that_no_start_could_write_anew_is_not_believed_later(world: World, suffix: str) -> None:
    """Its last line was torn: what is noted behind it would be taken for a part of that.

    On a disk that is really full no file beside it is written either.
    """
    other = TopicPartition("other", 0)
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    path = Path(store.dirs[0].path) / LIST
    store.create(PARTITION, TOPIC_ID, LogConfig(file_delete_delay_ms=0))
    store.create(other, TOPIC_ID, LogConfig())
    store.close(clean=False)
    os.truncate(path, path.stat().st_size - 1)

    real = OsDisk.replace_file

    def full(disk: OsDisk, path: str, data: bytes) -> None:
        if path.endswith(suffix):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        real(disk, path, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OsDisk, "replace_file", full)
        store = world.store(boot_id="x")
    assert store.dirs[0].is_full
    for each in (PARTITION, other):
        store.delete(each)
    store.sync_names()
    store.close(clean=True)
    store = world.store(boot_id="x")
    assert (store.missed, store.dirs.kept_all) == ([], True)
    store.close()
