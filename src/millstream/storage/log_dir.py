"""A log dir: a folder with the folders of logs, its checkpoints, and the marks of a clean stop.

`.kafka_cleanshutdown` (JSON: `version` 0, `brokerEpoch`) exists only between a clean stop and the next
start: its removal is made durable before anything is written.

`.millstream_boot` holds the boot id of the machine that last worked here. If that is the machine's still, and
only the process ended, everything that was written is there, flushed or not. After a power loss it is written
once the cluster knows of that (`mark_boot`): else a process that ended before would hide it from the next.

`.millstream_edition` holds a number that grows with every start and every clean stop: see editions.py.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Container, Iterable
from typing import Final
from uuid import UUID

from millstream.errors import MillstreamError
from millstream.model import CLUSTER_METADATA, TopicPartition
from millstream.storage import checkpoints, names
from millstream.storage.disk import Disk, Lock
from millstream.storage.files import fsync_file, is_temporary, write_file
from millstream.storage.log_list import LogList
from millstream.storage.meta_properties import MetaProperties, OtherDir, WrongLogDir, encode_uuid
from millstream.storage.transaction_checkpoint import (
    TRANSACTION_INDEXES,
    KnownIndexes,
    encode_known,
    parse_known,
)

log = logging.getLogger(__name__)


_ALWAYS_WRITTEN = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS)
"""What every stop leaves behind, even if it says nothing."""


ROOM_BYTES: Final = 8 << 20
"""How much has to be free in a dir that was full before it is used again."""


class LogDirInUse(MillstreamError):
    """Another process works in the log dir."""


def is_log_dir(disk: Disk, path: str) -> bool:
    """Whether a folder says whose log dir it is: then it is nobody's log, though it may have a log's name."""
    return disk.exists(f"{path}/{names.META_FILE}")


class LogDir:
    """One of a broker's log dirs. If it fails, only its logs go down."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self.has_failed = False
        self.is_full = False
        """Whether the last that was written here was refused for want of room."""
        self.was_clean = False
        """Whether the last stop was a clean one."""
        self.kept_all = False
        """Whether what was written before the last stop is there: that was clean, or the machine ran on."""
        self.broker_epoch = -1
        """The broker's epoch at its last clean stop."""
        self.meta: MetaProperties | None = None
        self.edition = 0
        """The number that a copy of the dir carries, too; one that is made later has a greater one."""
        self.is_outdated = False
        """Whether the broker has worked without it since: it is an older copy, or was away."""
        self.log_count = 0
        self.logs = LogList(disk, self.path)
        self._disk = disk
        self._boot_id = self._marked_boot = ""
        self._lock: Lock | None = None
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._known_indexes = b""
        self._coming: dict[str, dict[TopicPartition, int]] = {}
        """What is being written into checkpoint files, or was last."""
        self._checkpointing = threading.Lock()
        self._choosing = threading.Lock()
        """Held for a moment, while it is found out what to write."""
        self._syncing = threading.Lock()
        self._is_released = False
        self.renames = self.synced_renames = 0
        """How many deleted logs' folders were renamed, and how many of these are durable."""
        self._folders_made = 0
        self._folders_synced = 0

    def open(self, cluster_id: str, node_id: int, new_directory_id: UUID, boot_id: str = "") -> None:
        """Take the folder: lock it, see whose it is and how it was left.

        `boot_id` changes whenever the machine starts; empty if that is not known.
        """
        disk = self._disk
        disk.makedirs(self.path)
        meta_path = f"{self.path}/{names.META_FILE}"
        if not disk.exists(meta_path):
            self._refuse_a_clusters_folder()
        try:
            self._lock = disk.lock(f"{self.path}/{names.LOCK_FILE}")
        except BlockingIOError as error:
            raise LogDirInUse(
                f"another process works in {self.path}: stop it, or give this broker its own data folder"
            ) from error
        if disk.exists(meta_path):
            data = disk.read_file(meta_path)
            self.meta = MetaProperties.parse(data, meta_path, new_directory_id)
            self.meta.check(self.path, cluster_id, node_id)
            if self.meta.directory_id == new_directory_id:  # an old file, without one
                line = f"\ndirectory.id={encode_uuid(new_directory_id)}\n"
                self._write_if_there_is_room(names.META_FILE, data.rstrip() + line.encode())
        else:
            self._sync_names_above()
            self.meta = MetaProperties(cluster_id, node_id, new_directory_id, is_new=True)
            disk.replace_file(meta_path, self.meta.encode())
        if disk.exists(f"{self.path}/{names.ROOM_FILE}"):
            disk.remove(f"{self.path}/{names.ROOM_FILE}")
        self._take_clean_mark()
        self._take_boot_mark(boot_id)
        self.edition = self._read_edition()

    def _refuse_a_clusters_folder(self) -> None:
        """A folder `broker-1` has a log's name. One that says whose it is holds all that a broker has."""
        for _, name in self.partition_folders()[0]:
            path = f"{self.path}/{name}"
            if is_log_dir(self._disk, path):
                raise WrongLogDir(
                    f"{self.path} is the folder of a cluster, and {path} that of one of its brokers:"
                    " start them with --brokers N, or give this broker its own data folder"
                )

    @property
    def is_new(self) -> bool:
        """Whether the dir was made by this start, or by one since which a log has been missing."""
        return self.meta is not None and self.meta.is_new

    def know(self, dirs: Iterable[OtherDir], *, is_settled: bool) -> None:
        """Remember the broker's other dirs among these, instead of those known so far.

        If that `is_settled`, the dir is no longer a new one: it has no more to hold than it does.
        """
        meta = self.meta
        if meta is None:
            return
        others = frozenset(one for one in dirs if one.directory_id != meta.directory_id)
        known = meta._replace(others=others, is_new=meta.is_new and not is_settled)
        if known != meta:
            self._disk.replace_file(f"{self.path}/{names.META_FILE}", known.encode())
            self.meta = known

    def _sync_names_above(self) -> None:
        """Make a new dir's own name durable, and those of the folders above it that may be new too."""
        above = self.path
        while above not in ("", ".", "/"):
            above = os.path.dirname(above) or "."
            try:
                self._disk.fsync_dir(above)
            except PermissionError:  # a folder that this process could not have made
                return

    def _take_clean_mark(self) -> None:
        path = f"{self.path}/{names.CLEAN_FILE}"
        if self._disk.exists(path):
            try:
                self.broker_epoch = int(json.loads(self._disk.read_file(path))["brokerEpoch"])
            except (ValueError, KeyError, TypeError):
                self.broker_epoch = -1  # older versions of Kafka leave it empty
            self._disk.remove(path)
            self._disk.fsync_dir(self.path)
            self.was_clean = True

    def _take_boot_mark(self, boot_id: str) -> None:
        path = f"{self.path}/{names.BOOT_FILE}"
        found = self._disk.read_file(path).decode(errors="replace") if self._disk.exists(path) else ""
        self._boot_id, self._marked_boot = boot_id, found
        self.kept_all = self.was_clean or (found == boot_id != "")
        is_to_mark = self.kept_all and boot_id and found != boot_id
        if is_to_mark and self._write_if_there_is_room(names.BOOT_FILE, boot_id.encode()):
            self._marked_boot = boot_id

    def _write_if_there_is_room(self, name: str, data: bytes) -> bool:
        """Write down what the next start would be better off with, though it can do without."""
        try:
            self._disk.replace_file(f"{self.path}/{name}", data)
        except OSError as error:
            if not is_temporary(error):
                raise
            log.warning("%s/%s could not be written: %s", self.path, name, error)
            return False
        return True

    def mark_boot(self) -> None:
        """From now on whoever starts in this boot finds all that was written, as far as this dir kept it."""
        if self._boot_id and self._marked_boot != self._boot_id and not self.has_failed:
            self._disk.replace_file(f"{self.path}/{names.BOOT_FILE}", self._boot_id.encode())
            self._marked_boot = self._boot_id

    def _read_edition(self) -> int:
        path = f"{self.path}/{names.EDITION_FILE}"
        if not self._disk.exists(path):
            return 0
        try:
            return int(self._disk.read_file(path))
        except ValueError as error:
            log.error("%s says nothing: %s", path, error)
            return 0

    def write_edition(self, number: int) -> None:
        """From now on earlier copies of the dir are older ones."""
        self._disk.replace_file(f"{self.path}/{names.EDITION_FILE}", b"%d" % number)
        self.edition = number

    def lost_records(self) -> None:
        """Something is gone that was written before: nobody who has copies is to count on those here.

        Nor after another start in this boot, which would not find it out again; until `mark_boot`.
        """
        self.kept_all = False
        if self._marked_boot:
            self._disk.remove(f"{self.path}/{names.BOOT_FILE}")
            self._marked_boot = ""

    def fail(self) -> None:
        """Serve nothing more; nor can the next process count on what this one wrote, if the machine runs on.

        A kernel that could not write something gives it up. So the mark of the boot goes, if it can: it is
        enough that the next process does not see it.
        """
        self.has_failed = True
        try:
            self._disk.remove(f"{self.path}/{names.BOOT_FILE}")
        except OSError:
            pass  # there is none, or nothing can be written at all: then the next process cannot start here

    def partition_folders(self) -> tuple[list[tuple[TopicPartition, str]], list[str]]:
        """The folders of logs, with their names, and those that wait for removal."""
        logs: list[tuple[TopicPartition, str]] = []
        deleted: list[str] = []
        for name in self._disk.listdir(self.path):
            partition = names.parse_folder(name)
            if partition is not None:
                if partition.topic != CLUSTER_METADATA:
                    logs.append((partition, name))
            elif name.endswith(names.DELETE_FOLDER):
                deleted.append(name)
        return logs, deleted

    def folder_made(self) -> None:
        """A log's folder was made; its name is not durable yet."""
        self._folders_made += 1

    def sync_names(self) -> None:
        """Make the names of all folders made so far durable; once for many logs. In any thread."""
        made = self._folders_made
        if made != self._folders_synced:
            with self._syncing:
                if self._folders_synced < made:
                    made = self._folders_made
                    self._disk.fsync_dir(self.path)
                    self._folders_synced = made

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint file; a file that is not readable says nothing."""
        return self.find_offsets(name) or {}

    def find_offsets(self, name: str) -> dict[TopicPartition, int] | None:
        """A checkpoint file; None if it is not readable, or is not there though a clean stop wrote it."""
        path = f"{self.path}/{name}"
        try:
            found = checkpoints.read_offsets(self._disk, path)
        except checkpoints.BadCheckpoint as error:
            log.warning("the checkpoint is not readable, and counts for nothing: %s", error)
            return None
        if name in _ALWAYS_WRITTEN and not self._disk.exists(path):
            if self.was_clean:
                log.warning("the checkpoint %s is missing", path)
                return None
            return {}
        self._written[name] = found
        return dict(found)

    def write_offsets(self, name: str, offsets: Callable[[], dict[TopicPartition, int]]) -> None:
        """Replace a checkpoint file, unless it already says so. In any thread.

        `offsets` is called when nobody else writes: what it finds then is not undone by an older answer.
        Once the dir is released, it is no longer this process's, and nothing is written.
        """
        with self._checkpointing:
            if not self._is_released:
                with self._choosing:
                    rows = self._coming[name] = offsets()
                self._replace(name, rows)

    def read_known_indexes(self) -> dict[TopicPartition, KnownIndexes]:
        """What is known of the logs' transaction indexes; nothing if the file is not readable."""
        path = f"{self.path}/{TRANSACTION_INDEXES}"
        try:
            self._known_indexes = self._disk.read_file(path)
            return parse_known(self._known_indexes)
        except FileNotFoundError:
            return {}
        except checkpoints.BadCheckpoint as error:
            log.warning(
                "%s is not readable, and transaction indexes are checked by the logs: %s", path, error
            )
            return {}

    def write_known_indexes(self, known: Callable[[], dict[TopicPartition, KnownIndexes]]) -> None:
        """Replace that file, unless it already says so. In any thread, as `write_offsets`."""
        with self._checkpointing:
            if not self._is_released:
                data = encode_known(known())
                if data != self._known_indexes:
                    self._disk.replace_file(f"{self.path}/{TRANSACTION_INDEXES}", data)
                    self._known_indexes = data

    def has_offsets_of(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint file speaks of a partition, also one that is just being written."""
        with self._choosing:
            return any(partition in rows for rows in (*self._written.values(), *self._coming.values()))

    def keep_offsets_of(self, partitions: Callable[[], Container[TopicPartition]]) -> None:
        """Take the offsets of logs that are no more out of the checkpoint files. In any thread.

        A new log of the same name must not inherit them: it would count as durable what never was,
        or as deleted what was not.
        """
        with self._checkpointing:
            if self._is_released:
                return
            kept = partitions()
            with self._choosing:
                self._coming.clear()
            for name, rows in list(self._written.items()):
                self._replace(name, {one: offset for one, offset in rows.items() if one in kept})

    def _replace(self, name: str, rows: dict[TopicPartition, int]) -> None:
        if self._written.get(name) != rows:
            checkpoints.write_offsets(self._disk, f"{self.path}/{name}", rows)
            self._written[name] = rows

    def mark_clean(self, broker_epoch: int) -> None:
        """Say that everything in this dir was written down."""
        self.logs.flush()
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._disk.replace_file(f"{self.path}/{names.CLEAN_FILE}", content.encode())

    def check_place(self) -> None:
        """OSError if the dir is not at its path any more: what is made there by name would be lost to it."""
        if self._lock is not None:
            self._lock.check()

    def volume_bytes(self) -> tuple[int, int]:
        """The size of the file system and what is free of it; -1 if the dir has failed."""
        if self.has_failed:
            return -1, -1
        return self._disk.total_bytes(self.path), self._disk.free_bytes(self.path)

    def has_room(self) -> bool:
        """Whether much can be written here: a little is, and removed again. Nobody else lacks room for it."""
        path = f"{self.path}/{names.ROOM_FILE}"
        with self._checkpointing:
            if self._is_released or self.has_failed:
                return False
            try:
                if self._disk.free_bytes(self.path) < ROOM_BYTES:
                    return False
                try:
                    write_file(self._disk, path, bytes(ROOM_BYTES // 8))
                    fsync_file(self._disk, path)
                finally:
                    self._disk.remove(path)
            except OSError:
                return False
        return True

    def release(self) -> None:
        """Let go of the dir, after what is being written."""
        with self._checkpointing:
            self._is_released = True
        if self._lock is not None:
            self._lock.release()
            self._lock = None
