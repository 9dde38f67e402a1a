from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.storage.os_disk import OsDisk


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    """The disk's clock: reads take the time that a test says, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr("millstream.storage.os_disk.perf_counter_ns", clock)
        yield clock


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0
        self.read_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.read_ns
        return self.now_ns


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"hello ")
    file.append(memoryview(b"world"))
    assert bytes(file.pread(100, 0)) == b"hello world"
    assert bytes(file.pread(5, 6)) == b"world"
    assert bytes(file.pread(5, 11)) == b""
    assert file.size() == 11
    file.truncate(5)
    file.append(b"!")
    assert bytes(file.pread(100, 0)) == b"hello!"
    file.pwrite(b"J", 0)
    assert disk.read_file(f"{tmp_path}/f") == b"Jello!"


def test_a_file_must_exist_unless_it_is_to_be_made(tmp_path: Path) -> None:
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/f")
    assert not disk.exists(f"{tmp_path}/f")
    disk.open(f"{tmp_path}/f", create=True)
    assert disk.exists(f"{tmp_path}/f")


def test_open_descriptors_are_bounded_and_come_back(tmp_path: Path) -> None:
    disk = OsDisk(max_open_files=10)
    before = _descriptors()
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(100)]
    for round_number in range(3):
        for number, file in enumerate(files):
            file.append(b"%d-%d;" % (number, round_number))
            assert disk.open_count <= 10
    assert _descriptors() - before <= 10
    for number, file in enumerate(files):
        assert bytes(file.pread(100, 0)) == b"%d-0;%d-1;%d-2;" % (number, number, number)
    for file in files:
        file.close()
    assert disk.open_count == 0
    assert _descriptors() <= before


def test_files_give_their_descriptors_where_there_are_no_more(tmp_path: Path) -> None:
    disk = OsDisk(max_open_files=50)
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(20)]
    disk.replace_file(f"{tmp_path}/read", b"content")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
    others: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            others.extend(os.open(tmp_path, os.O_RDONLY) for _ in range(1000))
        disk.replace_file(f"{tmp_path}/replaced", b"new")
        others.append(os.open(tmp_path, os.O_RDONLY))
        assert disk.read_file(f"{tmp_path}/read") == b"content"
        others.append(os.open(tmp_path, os.O_RDONLY))
        disk.fsync_dir(str(tmp_path))
        others.append(os.open(tmp_path, os.O_RDONLY))
        for file in files:
            file.append(b"x")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for other in others:
            os.close(other)
    assert Path(tmp_path, "replaced").read_bytes() == b"new"
    for number, file in enumerate(files):
        file.close()
        assert Path(tmp_path, str(number)).read_bytes() == b"x"


@pytest.mark.parametrize(
    ("allowed", "wanted", "files", "connections"),
    [(256, None, 64, 128), (256, 4096, 64, 128), (256, 50, 50, 142), (64, 4096, 16, 8)],
)
def test_files_leave_most_of_the_descriptors_to_connections(
    allowed: int, wanted: int | None, files: int, connections: int
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, limits[1]))
    try:
        disk = OsDisk(wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (disk.max_open_files, disk.spare_descriptors) == (files, connections)


def test_an_fsync_for_which_memory_was_short_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    file = OsDisk().open(f"{tmp_path}/f", create=True)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) as caught:
        file.fsync()
    assert caught.value.errno == errno.EIO
    file.close()


def test_the_file_that_was_just_used_is_not_the_one_that_is_closed(tmp_path: Path) -> None:
    disk = OsDisk(max_open_files=8)
    busy = disk.open(f"{tmp_path}/busy", create=True)
    opened = busy._descriptor
    for number in range(50):
        busy.append(b"x")
        disk.open(f"{tmp_path}/{number}", create=True)
    assert busy._descriptor is opened


def test_a_closed_file_stays_closed_though_its_name_is_another_files(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"old")
    file.close()
    (tmp_path / "f").write_bytes(b"new")
    with pytest.raises(OSError, match="closed") as caught:
        file.pread(3, 0)
    assert caught.value.errno == errno.EBADF


def test_threads_never_read_another_files_bytes(tmp_path: Path) -> None:
    """Descriptor numbers are reused at once: a read must not meet a descriptor that was closed under it."""
    disk = OsDisk(max_open_files=8)
    files = []
    for number in range(40):
        file = disk.open(f"{tmp_path}/{number}", create=True)
        file.append(b"%04d" % number * 1000)
        files.append(file)
    wrong: list[str] = []

    def read(step: int) -> None:
        for turn in range(1500):
            number = turn * step % 40
            if bytes(files[number].pread(4000, 0)) != b"%04d" % number * 1000:
                wrong.append(f"file {number}")

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert disk.open_count <= 8


def test_a_write_that_fails_half_way_is_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"kept")
    write = os.pwrite
    calls = []

    def short_then_full(fd: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 1:
            return write(fd, bytes(data)[:3], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", short_then_full)
    with pytest.raises(OSError, match="No space"):
        file.append(b"too much")
    monkeypatch.undo()
    assert calls == [4, 7]
    assert disk.read_file(f"{tmp_path}/f") == b"kept"
    file.append(b" and more")
    assert disk.read_file(f"{tmp_path}/f") == b"kept and more"


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, bytes(data)[:3], offset))
    file.append(b"0123456789")
    monkeypatch.undo()
    assert disk.read_file(f"{tmp_path}/f") == b"0123456789"
    assert file.size() == 10


def test_reads_without_waiting_give_what_is_in_memory(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"x" * 10_000)
    assert bytes(file.pread(20_000, 0, nowait=True)) == b"x" * 10_000
    assert bytes(file.pread(0, 0, nowait=True)) == b""


def test_a_file_that_had_to_be_read_from_the_device_is_left_to_threads_until_reads_are_fast_again(
    tmp_path: Path, clock: Clock
) -> None:
    disk = OsDisk()
    disk.open(f"{tmp_path}/f", create=True).append(b"0123456789" * 100)
    file = disk.open(f"{tmp_path}/f")
    assert bytes(file.pread(10, 0, nowait=True)) == b"0123456789"
    clock.read_ns = 1_000_000
    assert bytes(file.pread(10, 10, nowait=True)) == b"0123456789"
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            file.pread(10, 20, nowait=True)
        assert bytes(file.pread(10, 20)) == b"0123456789"
    clock.read_ns = 10_000
    for _ in range(8):
        with pytest.raises(BlockingIOError):
            file.pread(10, 30, nowait=True)
        assert bytes(file.pread(10, 30)) == b"0123456789"
    assert bytes(file.pread(10, 40, nowait=True)) == b"0123456789"


def test_what_was_just_written_is_read_at_once_however_slow_older_parts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    disk.open(f"{tmp_path}/f", create=True).append(b"old")
    file = disk.open(f"{tmp_path}/f")
    file.append(b"new")

    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(BlockingIOError):
        file.pread(3, 0, nowait=True)
    monkeypatch.undo()
    with pytest.raises(BlockingIOError):
        file.pread(3, 0, nowait=True)
    assert bytes(file.pread(3, 3, nowait=True)) == b"new"


def test_what_was_just_written_but_is_not_in_memory_any_more_is_left_to_threads_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    disk.open(f"{tmp_path}/f", create=True).append(b"old")
    file = disk.open(f"{tmp_path}/f")
    file.append(b"new")

    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(BlockingIOError):
        file.pread(3, 3, nowait=True)
    monkeypatch.undo()
    assert bytes(file.pread(3, 0, nowait=True)) == b"old"
    for _ in range(8):
        with pytest.raises(BlockingIOError):
            file.pread(3, 3, nowait=True)
        assert bytes(file.pread(3, 3)) == b"new"
    assert bytes(file.pread(3, 3, nowait=True)) == b"new"


def test_a_large_buffer_is_used_again_only_when_nobody_looks_at_it(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    size = 100_000
    for value in range(8):
        file.append(bytes([value]) * size)
    held = [file.pread(size, value * size, nowait=True)[10:] for value in range(8)]
    for value, view in enumerate(held):
        assert bytes(view) == bytes([value]) * (size - 10)
    del view
    free = id(held.pop(7).obj)
    again = file.pread(size, 0, nowait=True)
    assert id(again.obj) == free
    assert bytes(again) == bytes(size)
    assert [view[0] for view in held] == list(range(7))


def test_where_the_system_cannot_say_only_what_was_just_written_counts_as_in_memory(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"old")
    file.close()
    file = disk.open(f"{tmp_path}/f")
    disk.devices_without_nowait.add(os.stat(tmp_path).st_dev)
    file.append(b"new")
    assert bytes(file.pread(3, 3, nowait=True)) == b"new"
    with pytest.raises(BlockingIOError):
        file.pread(3, 0, nowait=True)
    assert bytes(file.pread(6, 0)) == b"oldnew"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory")
def test_a_file_system_without_nowait_is_noticed() -> None:
    disk = OsDisk()
    path = f"/dev/shm/millstream-test-{os.getpid()}"
    file = disk.open(path, create=True)
    try:
        file.append(b"abc")
        assert bytes(file.pread(3, 0, nowait=True)) == b"abc"
    finally:
        file.close()
        os.remove(path)


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    disk = OsDisk()
    lock = disk.lock(f"{tmp_path}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{tmp_path}/.lock")
    lock.release()
    disk.lock(f"{tmp_path}/.lock").release()


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.replace_file(f"{tmp_path}/f", b"one")
    disk.replace_file(f"{tmp_path}/f", b"two" * 5000)
    assert disk.read_file(f"{tmp_path}/f") == b"two" * 5000
    assert disk.listdir(str(tmp_path)) == ["f"]


def test_folders(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.makedirs(f"{tmp_path}/a/b")
    disk.makedirs(f"{tmp_path}/a/b")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        disk.makedirs(f"{tmp_path}/file")
    disk.rename(f"{tmp_path}/a/b", f"{tmp_path}/a/c")
    assert disk.listdir(f"{tmp_path}/a") == ["c"]
    disk.fsync_dir(f"{tmp_path}/a")
    disk.rmtree(f"{tmp_path}/a")
    assert not disk.exists(f"{tmp_path}/a")
    assert 0 < disk.free_bytes(str(tmp_path)) <= disk.total_bytes(str(tmp_path))
    assert disk.size(f"{tmp_path}/file") == 1
    assert disk.mtime_ms(f"{tmp_path}/file") > 1_600_000_000_000


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_buffer_is_used_again_only_when_nobody_looks_at_it() -> None:
    disk = OsDisk()
    first = disk.buffer(100_000)
    first[:] = b"1" * 100_000
    answer = first[10:20]
    del first
    for _ in range(10):
        other = disk.buffer(100_000)
        other[:] = b"2" * 100_000
        assert bytes(answer) == b"1" * 10, "a part of a view is a view"
    where = ctypes.addressof(ctypes.c_char.from_buffer(answer)) - 10
    del answer, other
    gc.collect()
    views = [disk.buffer(90_000) for _ in range(4)]
    assert where in {ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in views}, "it is used again"
    assert len({ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in views}) == 4
