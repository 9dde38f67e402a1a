"""What threads and the loop do to a log, or to a log dir, at the same time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.model import TopicPartition
from millstream.storage.log_dir import LogDir
from tests.storage.held import Held
from tests.storage.logs import OTHER_ID, PARTITION, SMALL, TOPIC_ID, FaultyFile, World, fill

POINTS = "recovery-point-offset-checkpoint"


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def saved_point(world: World) -> int:
    rows = Path(world.path, "a", POINTS).read_text().splitlines()[2:]
    return max((int(row.split()[-1]) for row in rows), default=0)


def test_a_segment_that_is_cut_off_while_it_is_flushed_is_flushed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.open()
    while len(log.segments) < 2:
        fill(log, 1)
    first, fsync = log.segments.first, FaultyFile.fsync
    flush = Held(lambda: log.flush(rolled_only=True))

    def held(self: FaultyFile) -> None:
        if self._path.endswith(".timeindex"):
            flush.wait()
        fsync(self)

    monkeypatch.setattr(FaultyFile, "fsync", held)
    flush.begin()
    log.truncate_to(5)
    flush.let_go()
    assert log.segments.active is first
    fill(log, 3, leader_epoch=1)
    world.disk.synced.clear()
    assert log.flush() == log.end_offset == 8
    assert any(path.endswith(".log") for path in world.disk.synced)


@pytest.mark.parametrize("to", [0, 5])
def test_no_flush_counts_that_begins_while_the_log_is_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch, to: int
) -> None:
    """Else a start would believe leader epochs and records that are no more."""
    store = world.store(boot_id="boot")
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 10)
    log.flush()
    fill(log, 10)
    store.checkpoints.write()
    flushed: list[int] = []
    write_known_indexes = LogDir.write_known_indexes

    def slowly(self: LogDir, known: Callable[[], object]) -> None:
        if not flushed:
            in_thread(lambda: flushed.append(log.flush()))
        write_known_indexes(self, known)  # type: ignore[arg-type]

    monkeypatch.setattr(LogDir, "write_known_indexes", slowly)
    log.truncate_to(to)
    assert flushed
    assert saved_point(world) <= to
    fill(log, 20, leader_epoch=1)
    epochs = log.epochs.entries
    store.release()  # it is killed
    found = world.store(boot_id="boot").get(PARTITION)
    assert found is not None
    assert found.end_offset == to + 20
    assert found.epochs.entries == epochs


def test_no_flush_counts_that_ends_while_the_log_is_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 20)
    fsync, loop = FaultyFile.fsync, threading.current_thread()
    flush = Held(log.flush)
    cuts: list[str] = []

    def held(self: FaultyFile) -> None:
        if self._path.endswith(".log"):
            flush.wait()
            if threading.current_thread() is loop and not cuts:
                cuts.append(self._path)
                flush.let_go()
                in_thread(store.checkpoints.write)
        fsync(self)

    monkeypatch.setattr(FaultyFile, "fsync", held)
    flush.begin()
    log.truncate_to(5)
    assert cuts
    assert saved_point(world) <= 5
    store.close()


def test_a_log_is_made_while_checkpoints_are_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 50)
    replace_file = world.disk.replace_file
    writing = Held(store.checkpoints.write)

    def held(path: str, data: bytes) -> None:
        if path.endswith(POINTS):
            writing.wait()
        replace_file(path, data)

    monkeypatch.setattr(world.disk, "replace_file", held)
    writing.begin()
    store.create(TopicPartition("other", 0), OTHER_ID, SMALL)
    writing.let_go()
    store.close()


def test_a_log_is_made_while_new_dirs_are_accepted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.store(("a", "b"), is_accepted=0)
    accepting = Held(store.accept_new_dirs)
    fsync = os.fsync

    loop = threading.current_thread()

    def held(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/a/meta.properties" in path:
            accepting.wait()
        if "/b/meta.properties" in path and threading.current_thread() is loop:
            accepting.release()
            time.sleep(0.2)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", held)
    accepting.begin()
    threading.Timer(1.0, accepting.release).start()
    store.create(PARTITION, TOPIC_ID, SMALL)
    accepting.let_go()
    for _ in range(2):
        assert [(one.has_failed, one.is_new) for one in store.dirs] == [(False, False), (False, False)]
        store.close()
        store = world.store(("a", "b"), is_accepted=0)
    store.close()


def test_dirs_know_one_that_was_accepted_while_a_log_was_made(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a log in it would be made anew, and empty, at a start without that dir."""
    store = world.store(("a", "b", "c"), is_accepted=0)
    accepting = Held(store.accept_new_dirs)
    replace_file = world.disk.replace_file

    def held(path: str, data: bytes) -> None:
        if path.endswith("b/meta.properties"):
            accepting.wait()
        replace_file(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "replace_file", held)
        accepting.begin()
        store.create(TopicPartition("t", 0), TOPIC_ID, SMALL)
        threading.Timer(0.2, accepting.release).start()
        store.create(TopicPartition("t", 1), TOPIC_ID, SMALL)
        accepting.let_go()
    log = store.create(TopicPartition("t", 2), TOPIC_ID, SMALL)
    assert log.folder == str(tmp_path / "c" / "t-2")
    store.close()
    store = world.store(("a", "b"), is_accepted=0)
    assert not store.may_create_missing
    store.close()
