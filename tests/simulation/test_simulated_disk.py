"""The simulated disk keeps what a real one promises, and nothing more."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.simulation.disk import Mount, SimDisk
from tests.simulation.files import Inode
from tests.simulation.world import ProcessKilled, World


def make() -> tuple[SimDisk, Mount]:
    disk = SimDisk(World(0), lambda: 1234)
    mount = disk.mount()
    mount.makedirs("/data/t-0")
    for path in ("/", "/data", "/data/t-0"):
        mount.fsync_dir(path)
    return disk, mount


def test_crash_keeps_every_byte_and_kills_the_handles() -> None:
    disk, mount = make()
    file = mount.open("/data/t-0/a", create=True)
    file.append(b"never synced")
    disk.crash()
    with pytest.raises(ProcessKilled):
        file.append(b"from the grave")
    with pytest.raises(ProcessKilled):
        mount.exists("/data")
    assert disk.mount().read_file("/data/t-0/a") == b"never synced"


def test_power_loss_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    lengths, endings = set(), set()
    for seed in range(300):
        disk, mount = make()
        file = mount.open("/data/t-0/a", create=True)
        mount.fsync_dir("/data/t-0")
        file.append(b"S" * 1000)
        file.fsync()
        for _ in range(3):
            file.append(b"U" * 400)
        disk.power_loss(Random(seed))
        data = disk.mount().read_file("/data/t-0/a")
        assert data[:1000] == b"S" * 1000
        assert len(data) <= 2200
        lengths.add(len(data))
        endings.add("torn" if data[1000:].strip(b"U") else "clean")
    assert len(lengths) > 50
    assert {1000, 2200} <= lengths
    assert endings == {"torn", "clean"}


def test_power_loss_undoes_an_unsynced_truncation_or_keeps_it() -> None:
    outcomes = set()
    for seed in range(50):
        disk, mount = make()
        file = mount.open("/data/t-0/a", create=True)
        mount.fsync_dir("/data/t-0")
        file.append(b"0123456789")
        file.fsync()
        file.truncate(4)
        disk.power_loss(Random(seed))
        outcomes.add(disk.mount().read_file("/data/t-0/a"))
    assert outcomes == {b"0123456789", b"0123"}


def test_names_survive_a_power_loss_only_in_order_and_surely_once_synced() -> None:
    outcomes = set()
    for seed in range(200):
        disk, mount = make()
        for name in ("a", "b", "c"):
            file = mount.open(f"/data/t-0/{name}", create=True)
            file.fsync()
        mount.rename("/data/t-0/a", "/data/t-0/z")
        disk.power_loss(Random(seed))
        outcomes.add("".join(sorted(disk.mount().listdir("/data/t-0"))))
        disk, mount = make()
        mount.open("/data/t-0/kept", create=True)
        mount.fsync_dir("/data/t-0")
        disk.power_loss(Random(seed))
        assert disk.mount().listdir("/data/t-0") == ["kept"]
    assert outcomes == {"", "a", "ab", "abc", "bcz"}


def test_replaced_file_is_old_or_new_whatever_happens() -> None:
    seen = set()
    for seed in range(100):
        disk, mount = make()
        mount.replace_file("/data/x", b"old")
        disk.kill_after = 1 + seed % 7
        disk.on_kill = disk.crash
        try:
            mount.replace_file("/data/x", b"new!")
        except ProcessKilled:
            seen.add("killed")
        disk.power_loss(Random(seed))
        seen.add(disk.mount().read_file("/data/x").decode())
    assert seen == {"killed", "old", "new!"}


def test_failed_fsync_never_becomes_durable_later() -> None:
    disk, mount = make()
    file = mount.open("/data/t-0/a", create=True)
    mount.fsync_dir("/data/t-0")
    file.append(b"synced.")
    file.fsync()
    file.append(b"lost")
    disk.fsync_error_probability = 1.0
    with pytest.raises(OSError, match="input/output"):
        file.fsync()
    disk.fsync_error_probability = 0.0
    assert mount.read_file("/data/t-0/a") == b"synced.lost"
    file.append(b"after")
    file.fsync()
    disk.power_loss(Random(1))
    assert disk.mount().read_file("/data/t-0/a") == b"synced.\0\0\0\0after"


def test_full_disk_refuses_growth_and_accepts_it_after_removal() -> None:
    disk, mount = make()
    mount.open("/data/big", create=True).append(bytes(900))
    disk.capacity_bytes = 1000
    file = mount.open("/data/t-0/a", create=True)
    with pytest.raises(OSError, match="no space") as caught:
        file.append(bytes(200))
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 0
    assert mount.free_bytes("/data") == 100
    mount.remove("/data/big")
    file.append(bytes(200))
    assert mount.free_bytes("/data") == 800


def test_cold_reads_without_waiting_come_short_or_not_at_all() -> None:
    disk, mount = make()
    file = mount.open("/data/t-0/a", create=True)
    file.append(b"x" * 100)
    disk.cold_probability = 0.5
    lengths: set[int] = set()
    for _ in range(200):
        try:
            lengths.add(len(file.pread(100, 0, nowait=True)))
        except BlockingIOError:
            lengths.add(0)
        assert len(file.pread(100, 0)) == 100
    assert {0, 100} <= lengths
    assert len(lengths) > 10


def test_failing_reads() -> None:
    disk, mount = make()
    file = mount.open("/data/t-0/a", create=True)
    file.append(b"x")
    disk.read_error_probability = 1.0
    with pytest.raises(OSError, match="input/output"):
        file.pread(1, 0)


def test_one_process_holds_a_lock_and_its_death_releases_it() -> None:
    disk, mount = make()
    mount.lock("/data/.lock")
    with pytest.raises(BlockingIOError):
        disk.mount().lock("/data/.lock")
    disk.crash()
    held = disk.mount().lock("/data/.lock")
    held.release()
    disk.mount().lock("/data/.lock")


def test_remove_tree_and_list() -> None:
    disk, mount = make()
    mount.open("/data/t-0/a", create=True)
    mount.open("/data/t-0/b", create=True)
    assert sorted(mount.listdir("/data/t-0")) == ["a", "b"]
    mount.rmtree("/data/t-0")
    assert not mount.exists("/data/t-0")
    with pytest.raises(FileNotFoundError):
        mount.open("/data/t-0/a")
    with pytest.raises(FileNotFoundError):
        mount.open("/data/missing")
    assert disk.folders("/data") == []


def test_what_rots_stays_so_after_a_power_loss() -> None:
    for seed in range(50):
        inode = Inode(0)
        inode.append(b"a" * 10, 0)
        inode.sync()
        inode.append(b"b" * 10, 0)
        inode.rot(b"xyz", 8)
        assert bytes(inode.data) == b"a" * 8 + b"xyz" + b"b" * 9
        inode.tear(Random(seed))
        assert bytes(inode.data[:10]) == b"a" * 8 + b"xy"
