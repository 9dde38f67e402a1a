"""Records that are gone, or damaged, when a process starts that should find them all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.config.log import LogConfig
from millstream.storage.log import Log
from millstream.storage.log_dir import LogDir
from tests.storage.logs import PARTITION, TOPIC_ID, World, append, batch


class Lost:
    """What may happen to a dir while no process works in it."""

    @staticmethod
    def nothing(log: Log) -> None:
        pass

    @staticmethod
    def torn_write(log: Log) -> None:
        _change(log, lambda data: data + (5).to_bytes(8, "big") + data[8:70])

    @staticmethod
    def changed_byte(log: Log) -> None:
        _change(log, lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:])

    @staticmethod
    def changed_length(log: Log) -> None:
        """The batch seems to reach beyond the file, as a torn one does, but good ones follow it."""
        size = log.segments.active.size // 5
        _change(log, lambda data: data[: size + 9] + b"\xff" + data[size + 10 :])

    @staticmethod
    def cut_off(log: Log) -> None:
        size = log.segments.active.size // 5
        _change(log, lambda data: data[: 3 * size])

    @staticmethod
    def removed(log: Log) -> None:
        shutil.rmtree(log.folder)


def _change(log: Log, change: Callable[[bytes], bytes]) -> None:
    path = Path(log.segments.active.path)
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("what", "clean", "is_lost"),
    [
        (Lost.nothing, False, False),
        (Lost.nothing, True, False),
        (Lost.torn_write, False, False),
        (Lost.torn_write, True, True),
        (Lost.changed_byte, False, True),
        (Lost.changed_length, False, True),
        (Lost.cut_off, False, True),
        (Lost.cut_off, True, True),
        (Lost.removed, False, True),
        (Lost.removed, True, True),
    ],
)
def test_a_dir_that_lost_records_has_not_kept_all(
    world: World, what: Callable[[Log], None], clean: bool, is_lost: bool
) -> None:
    """A kill of the process explains half a write at the end, a clean stop not even that."""
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    for _ in range(5):
        append(log, batch(b"a record of some length" * 5))
    store.checkpoints.write_high_watermarks({log: 5})
    store.close(clean=clean)
    what(log)
    for _ in range(2):  # a start that is killed before anybody heard of the loss changes nothing
        store = world.store(boot_id="x")
        assert store.dirs.kept_all != is_lost
        store.close(clean=False)
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    store.checkpoints.write_high_watermarks({one: one.end_offset for one in store})
    store.close(clean=False)
    store = world.store(boot_id="x")
    assert store.dirs.kept_all, "it was told, and nothing was lost since"
    store.close()


def test_a_batch_that_a_start_finds_damaged_is_no_longer_counted_on(world: World) -> None:
    """It stays where it is, so that every start finds it."""
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    for _ in range(5):
        append(log, batch(b"a record of some length" * 5))
    store.close()
    Lost.changed_length(log)
    for _ in range(2):
        store = world.store(boot_id="x")
        assert not store.dirs.kept_all
        store.dirs.mark_boot()
        store.close(clean=False)


def test_a_log_that_ends_before_what_was_durable_has_lost_records(world: World) -> None:
    """Nobody need have written down that they were committed."""
    store = world.store(boot_id="x")
    store.dirs.mark_boot()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    for _ in range(5):
        append(log, batch(b"a record of some length" * 5))
    log.flush()
    store.checkpoints.write()
    store.close(clean=False)
    store = world.store(boot_id="x")
    assert store.dirs.kept_all
    store.close(clean=False)
    Lost.cut_off(log)
    for _ in range(2):
        store = world.store(boot_id="x")
        assert not store.dirs.kept_all
        store.close(clean=False)


@pytest.mark.parametrize("what", [Lost.cut_off, Lost.changed_byte, Lost.changed_length])
def test_what_was_lost_after_a_clean_stop_is_found_by_a_start_after_one_that_was_killed(
    world: World, what: Callable[[Log], None]
) -> None:
    """The first one has taken the mark of the clean stop, and that is all that it did."""
    store = world.store(boot_id="x")
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    for _ in range(5):
        append(log, batch(b"a record of some length" * 5))
    store.close()
    what(log)
    killed = LogDir(world.disk, f"{world.path}/a")
    killed.open("cluster", 1, TOPIC_ID, "x")
    assert killed.kept_all
    killed.release()
    for _ in range(2):
        store = world.store(boot_id="x")
        assert not store.dirs.kept_all
        store.close(clean=False)
