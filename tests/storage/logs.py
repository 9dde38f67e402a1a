"""Logs, batches and faults for the storage tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

from millstream.config.log import LogConfig
from millstream.model import TopicPartition
from millstream.protocol.batch import Record, decode_records, encode_batch, read_header
from millstream.storage.disk import Buffer
from millstream.storage.loading import load_log
from millstream.storage.log import Appended, Log
from millstream.storage.os_disk import OsDisk, OsFile
from millstream.storage.store import Store
from millstream.storage.surroundings import Surroundings
from millstream.storage.trash import Trash

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID("12345678-1234-4678-9234-567812345678")
OTHER_ID = UUID(int=77)
SMALL = LogConfig(segment_bytes=4096, index_interval_bytes=256, file_delete_delay_ms=0)


class TestClock:
    """A clock that moves when it is told to."""

    __test__ = False

    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class FaultyFile(OsFile):
    """A file of a FaultyDisk."""

    __slots__ = ()

    def append(self, data: Buffer) -> None:
        disk = self._disk
        assert isinstance(disk, FaultyDisk)
        if self._path.endswith(disk.failing_suffix) and len(data) > disk.room_bytes:
            if disk.room_bytes:  # as a full disk does: a part is written, the rest is refused
                with open(self._path, "r+b") as file:
                    file.seek(self.size())
                    file.write(bytes(data)[: disk.room_bytes])
                self.truncate(self.size())
            raise OSError(disk.write_errno, os.strerror(disk.write_errno), self._path)
        super().append(data)

    def fsync(self) -> None:
        disk = self._disk
        assert isinstance(disk, FaultyDisk)
        disk.synced.append(self._path)
        if disk.fails_fsync:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        super().fsync()


class FaultyDisk(OsDisk):
    """The machine's disk, with faults that a test switches on, and a list of what was made durable."""

    def __init__(self, max_open_files: int | None = None) -> None:
        super().__init__(max_open_files)
        self.failing_suffix = ""
        self.room_bytes = 1 << 62
        self.write_errno = errno.ENOSPC
        self.fails_fsync = False
        self.synced: list[str] = []

    def open(self, path: str, *, create: bool = False) -> OsFile:
        return FaultyFile(self, path, create=create)

    def fsync_dir(self, path: str) -> None:
        self.synced.append(path)
        super().fsync_dir(path)


class World:
    """One folder for logs, opened and opened again as after a restart."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.clock = TestClock()
        self.disk = FaultyDisk()
        self.trash = Trash(self.disk, self.clock)
        self.failures: list[OSError] = []

    def folder_names(self, name: str = "a") -> set[str]:
        """The folders in a log dir."""
        return {path.name for path in Path(self.path, name).iterdir() if path.is_dir()}

    @property
    def around(self) -> Surroundings:
        return Surroundings(self.disk, self.clock, Random(1), self.trash, _nothing, self.failures.append)

    def open(
        self,
        config: LogConfig = SMALL,
        *,
        is_clean: bool = False,
        recovery_point: int | None = None,
        start_offset: int = 0,
        cleaned_until: int = 0,
        partition: TopicPartition = PARTITION,
    ) -> Log:
        folder = f"{self.path}/{partition}"
        self.disk.makedirs(folder)
        return load_log(
            self.around,
            folder,
            partition,
            config,
            is_clean=is_clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            cleaned_until=cleaned_until,
        )

    def store(self, dirs: tuple[str, ...] = ("a",), **options: int | str) -> Store:
        store = Store(
            [f"{self.path}/{name}" for name in dirs],
            self.disk,
            self.clock,
            SMALL,
            cluster_id=str(options.get("cluster_id", "cluster")),
            broker_id=int(options.get("broker_id", 1)),
            random=Random(2),
            boot_id=str(options.get("boot_id", "")),
        )
        store.open()
        if options.get("is_accepted", True):
            store.accept_new_dirs()
        return store

    def file(self, offset: int, suffix: str = ".log") -> Path:
        return Path(self.path, str(PARTITION), f"{offset:020d}{suffix}")


def _nothing() -> None:
    """Nothing to do."""


def batch(
    *values: bytes,
    timestamp: int = NOW_MS,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    is_transactional: bool = False,
    codec: int = 0,
) -> bytearray:
    """A batch of these values, all of one time."""
    return encode_batch(
        [Record(value=value, timestamp=timestamp) for value in values],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def append(log: Log, data: bytearray, leader_epoch: int = 0, **options: int) -> Appended:
    return log.append(memoryview(data), read_header(data), leader_epoch, **options)


def fill(log: Log, count: int, *, size: int = 100, leader_epoch: int = 0, step_ms: int = 0) -> None:
    """Append one-record batches, the value of each beginning with its offset."""
    for _ in range(count):
        offset = log.end_offset
        value = b"%d " % offset + b"x" * size
        append(log, batch(value, timestamp=NOW_MS + offset * step_ms), leader_epoch)


def offsets(log: Log, start: int | None = None, max_bytes: int = 1000) -> list[int]:
    """The offsets of all records, read in slices."""
    return [record.offset for record in records(log, start, max_bytes)]


def records(log: Log, start: int | None = None, max_bytes: int = 1000) -> Iterator[Record]:
    """All records, read in slices."""
    offset = log.start_offset if start is None else start
    while True:
        found = log.read(offset, max_bytes)
        if not found.data:
            return
        yield from decode_records(found.data, from_offset=offset, include_control=True)
        offset = found.next_offset
