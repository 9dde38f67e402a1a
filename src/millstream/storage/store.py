"""All logs of a broker, in one or more log dirs.

The loop creates and deletes logs; `remove_deleted` and `close`, and all of `checkpoints`, may run in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence, Set
from random import Random
from typing import Protocol
from uuid import UUID

from millstream.clock import Clock
from millstream.config.log import LogConfig
from millstream.errors import KafkaStorageError, MillstreamError
from millstream.model import NO_UUID, TopicPartition
from millstream.storage import checkpoints, names
from millstream.storage.absent import absent_log
from millstream.storage.disk import Disk
from millstream.storage.epochs import UNKNOWN_EPOCH
from millstream.storage.files import is_overloaded, is_temporary, is_without_room
from millstream.storage.loading import create_log, load_log
from millstream.storage.log import Log
from millstream.storage.log_checkpoints import LogCheckpoints
from millstream.storage.log_dir import LogDir, is_log_dir
from millstream.storage.log_dirs import LogDirs
from millstream.storage.lost_records import LoadedDir, loaded_dir, look_for_lost
from millstream.storage.partition_metadata import read_topic_id, write_topic_id
from millstream.storage.surroundings import Surroundings
from millstream.storage.trash import Trash

log = logging.getLogger(__name__)

SHOWN = 10
"""How many logs a line of the log names at the most."""


def _ignore(path: str) -> None:
    """Nobody wants to know."""


def _close_cleanly(one: Log) -> bool:
    try:
        one.close()
    except KafkaStorageError as error:
        log.error("closing %s: %s", one.partition, error)
        return False
    return True


def _close_as_is(one: Log) -> bool:
    one.close(is_clean=False)
    return True


def _last_epoch(one: Log) -> int:
    """The leader epoch of the last record."""
    return one.epochs.epoch_of(one.end_offset - 1)


def _say_aside(why: str, strays: Sequence[TopicPartition]) -> None:
    if strays:
        some = ", ".join(map(str, strays[:SHOWN])) + (", …" if len(strays) > SHOWN else "")
        log.warning("%d set aside of the logs here (folders *-stray), %s: %s", len(strays), why, some)


class Each(Protocol):
    """`map`, or what does the same in threads."""

    def __call__(self, function: Callable[[Log], bool], logs: list[Log], /) -> Iterable[bool]: ...


class NoLogDir(MillstreamError):
    """None of the log dirs can be used."""


class Store:
    """The logs of one broker, by partition."""

    def __init__(
        self,
        dirs: Sequence[str],
        disk: Disk,
        clock: Clock,
        log_config: LogConfig | None = None,
        *,
        cluster_id: str = "",
        broker_id: int = 0,
        random: Random,
        boot_id: str = "",
        lost_dirs: Collection[str] = (),
        on_dir_failure: Callable[[str], None] = _ignore,
    ) -> None:
        """`log_config` is what logs have until their topic's own configuration is set.

        `boot_id` changes whenever the machine starts; empty if that is not known. `lost_dirs` are the
        directory ids of log dirs that will not come back.
        """
        self.dirs = LogDirs(disk, dirs, lost_dirs, self._dir_failed)
        self.checkpoints = LogCheckpoints(self.dirs, self._logs_of)
        self.on_dir_failure = on_dir_failure
        """Told the path of a log dir that failed, in whatever thread found it."""
        self._disk = disk
        self._clock = clock
        self._config = log_config or LogConfig()
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._random = random
        self._boot_id = boot_id
        self._trash = {folder.path: Trash(disk, clock) for folder in self.dirs}
        self._logs: dict[TopicPartition, Log] = {}
        self._dir_of: dict[TopicPartition, LogDir] = {}
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._doubles: dict[TopicPartition, list[tuple[Log, LogDir, UUID]]] = {}
        """Further logs of a partition, in other log dirs, until `get` says which topic id is meant."""
        self._absent: set[TopicPartition] = set()
        """Those of which a log should be here, and is not."""
        self.missed: list[str] = []
        """Folders of logs that were taken away while no process worked here."""
        self._loaded: list[LoadedDir] = []

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    # Opening

    def open(self) -> None:
        """Take the log dirs and load every log in them. A dir that cannot be read counts as failed."""
        for folder in self.dirs:
            try:
                folder.open(self._cluster_id, self._broker_id, self._new_uuid(), self._boot_id)
                self._load_dir(folder)
            except OSError as error:
                if is_overloaded(error):
                    self.release()
                    raise
                self.dirs.failed(folder, error)
            except BaseException:
                self.release()
                raise
        if not self.dirs.usable():
            self.release()
            raise NoLogDir(f"none of the log dirs can be used: {self.dirs}")
        self._tidy()
        self.dirs.look_for_missing()

    def _load_dir(self, folder: LogDir) -> None:
        recovery_points = folder.read_offsets(checkpoints.RECOVERY_POINTS)
        start_offsets = folder.find_offsets(checkpoints.LOG_STARTS)
        cleaned = folder.read_offsets(checkpoints.CLEANER_OFFSETS)
        watermarks = folder.read_offsets(checkpoints.HIGH_WATERMARKS)
        indexes = folder.read_known_indexes()
        around = self._surroundings(folder)
        is_kept = folder.kept_all
        if not folder.was_clean:
            folder.folder_made()  # a power loss may have kept names that were never made durable
        found, deleted = folder.partition_folders()
        for name in deleted:
            self._trash[folder.path].put_folder(f"{folder.path}/{name}", 0)
        partitions = set()
        for partition, name in found:
            path = f"{folder.path}/{name}"
            try:
                topic_id = read_topic_id(self._disk, path)
                if topic_id == NO_UUID and is_log_dir(self._disk, path):
                    log.error("%s is a log dir, though it has the name of a log: it is left alone", path)
                    continue
                opened = load_log(
                    around,
                    path,
                    partition,
                    self._config,
                    is_clean=folder.was_clean,
                    is_kept=is_kept,
                    on_lost=folder.lost_records if is_kept else None,
                    recovery_point=recovery_points.get(partition),
                    start_offset=None if start_offsets is None else start_offsets.get(partition, 0),
                    cleaned_until=cleaned.get(partition, 0),
                    known_indexes=indexes.get(partition),
                )
            except NotADirectoryError:
                continue  # a file that has a log's name is nobody's log
            partitions.add(partition)
            if partition in self._logs:
                self._doubles.setdefault(partition, []).append((opened, folder, topic_id))
            else:
                self._add(opened, folder, topic_id)
        self._loaded.append(loaded_dir(folder, partitions, watermarks, deleted, folder.logs.read()))

    def _tidy(self) -> None:
        """Write down what loading found, once it is known, and marked in every dir, what was lost."""
        for loaded in self._loaded:
            try:
                self.missed += look_for_lost(loaded, self._reach, self._logs)
            except OSError as error:
                self.dirs.failed(loaded.folder, error)
        for folder, partitions, _, _ in self._loaded:
            # Without room none of these is written, and the list has to be given up then: each is tried.
            for write in (self._begin_list, self._write_checkpoints):
                try:
                    if not folder.has_failed:
                        write(folder, partitions)
                except OSError as error:
                    self.dirs.not_written(folder, error)
        self._loaded.clear()

    def _begin_list(self, folder: LogDir, _: Set[TopicPartition]) -> None:
        folder.logs.begin({one.partition for one in self._logs_of(folder)})

    def _write_checkpoints(self, folder: LogDir, partitions: Set[TopicPartition]) -> None:
        folder.keep_offsets_of(lambda: partitions)
        if not folder.was_clean:
            self.checkpoints.write_dir(folder)  # indexes that recovery made anew are not durable

    def _reach(self, partition: TopicPartition) -> int:
        """Where the log of a partition ends that reaches furthest; zero if there is none."""
        found = [one for one, _, _ in self._doubles.get(partition, ())]
        if partition in self._logs:
            found.append(self._logs[partition])
        return max((one.end_offset for one in found), default=0)

    # Logs

    def get(
        self,
        partition: TopicPartition,
        topic_id: UUID | None = None,
        *,
        is_copy: bool = False,
        is_replicated: bool = False,
    ) -> Log | None:
        """The log of a partition, None if there is none.

        One that belongs to another topic id is set aside, never served and never deleted. Of several, in
        different log dirs, the one of this topic id is served that ends in the latest leader epoch, and
        reaches furthest of those: what an earlier leader wrote beyond was cut off. One that does not say
        whose it is was never flushed; if the log `is_copy`, and others have what it is to hold, it is set
        aside, too: it may be an earlier topic's that a failing disk kept from being deleted. So is one that
        `is_replicated`: it may be an earlier topic's of whose deletion this broker did not hear. What a power
        loss leaves of records that were never flushed is not counted on where there are other replicas.
        """
        if topic_id is not None and partition in self._doubles:
            self._choose(partition, topic_id)
        found = self._logs.get(partition)
        if found is None or topic_id is None:
            return found
        known = self._topic_ids[partition]
        is_lasting = found.recovery_point > found.segments.first.base_offset  # and so was what it says then
        if (
            known == NO_UUID
            and found.end_offset > found.start_offset
            and (is_copy or (is_replicated and not is_lasting))
        ):
            log.warning("%s does not say whose it is, and others have its records: set aside", found.folder)
            self._set_aside(partition, self._remove(partition).folder)
            return None
        if known == NO_UUID:  # torn by a power loss; it can only be this topic's, see `sync_names`
            try:
                write_topic_id(self._disk, found.folder, topic_id)
            except OSError as error:
                raise found.storage_error(error) from error
            self._topic_ids[partition] = topic_id
        elif known != topic_id:
            log.warning("%s is of topic id %s, not %s: set aside", found.folder, known, topic_id)
            self._set_aside(partition, self._remove(partition).folder)
            return None
        return found

    def topic_id(self, partition: TopicPartition) -> UUID:
        """The topic id that a log's folder carries; zero if none."""
        return self._topic_ids[partition]

    def create(
        self, partition: TopicPartition, topic_id: UUID, config: LogConfig, *, is_copy: bool = False
    ) -> Log:
        """A new, empty log, in the log dir that has the fewest; durable with its first flush.

        A dir that is full is passed over, one that fails is out of use from then on. While logs or dirs are
        missing, a new dir is not used either, as it may be the empty place of a volume that is not
        mounted; unless the log `is_copy`, and others have what it is to hold.
        """
        usable = [
            folder
            for folder in self.dirs.usable()
            if is_copy or not (folder.is_new and (self._absent or self.dirs.is_one_missing))
        ]
        failure: OSError | None = None
        for folder in sorted(usable, key=lambda one: one.log_count):
            path = f"{folder.path}/{partition}"
            try:
                folder.check_place()
                self.dirs.begin_to_use(folder)
                self._make_folder(partition, folder, path, topic_id)
            except OSError as error:
                failure = error
                if is_without_room(error):
                    self.dirs.filled_up(folder, error)
                elif not is_temporary(error):
                    self.dirs.failed(folder, error)
                continue
            created = create_log(self._surroundings(folder), path, partition, config)
            self._add(created, folder, topic_id)
            self._absent.discard(partition)
            return created
        if failure is None and self.dirs.usable():
            example, why = min(self._absent, default="some"), self.dirs.why_logs_are_missing()
            raise KafkaStorageError(f"{partition} is not made while others are missing ({example}): {why}")
        if failure is None:
            raise KafkaStorageError("no log dir can be used: all have failed")
        raise KafkaStorageError(f"creating {partition}: {failure}") from failure

    def _make_folder(self, partition: TopicPartition, folder: LogDir, path: str, topic_id: UUID) -> None:
        if folder.has_offsets_of(partition):
            folder.keep_offsets_of(self._logs.keys)
        if self._disk.exists(path):  # of a log that could not be renamed when it was deleted or set aside
            self._set_aside(partition, path)
        self._disk.makedirs(path)
        folder.folder_made()
        try:
            write_topic_id(self._disk, path, topic_id)
            folder.logs.add(partition)
        except OSError:
            try:
                self._disk.rmtree(path)
            except OSError as error:  # empty, and of no topic: it gives way to the one in another dir
                log.warning("the folder %s was begun and cannot be removed: %s", path, error)
            raise

    @property
    def may_create_missing(self) -> bool:
        """Whether a log that is not there after a start can have held nothing that lasted.

        That is so if all log dirs are there, and each is the one that was there before: then a crash came
        before the log's folder was durable.
        """
        return not self.dirs.may_miss_logs

    def absent(self, partition: TopicPartition, config: LogConfig, reason: str = "") -> Log:
        """What stands for a log that is not there and may not be made anew: it can do nothing at all.

        No folder is made: the real one may come back, with its records, once its log dir does.
        """
        self._absent.add(partition)
        if not reason:
            reason = f"{partition} is in none of the log dirs, but {self.dirs.why_logs_are_missing()}"
        log.error("%s stays offline: %s", partition, reason)
        return absent_log(self._disk, self._clock, self._random, partition, config, reason)

    def not_expected(self, partition: TopicPartition) -> None:
        """The log of a partition does not have to be here any more."""
        self._absent.discard(partition)

    def accept_new_dirs(self) -> None:
        """If no log is missing, take the log dirs as they are: from the next start on these are expected."""
        if not self._absent:
            self.dirs.settle()

    def count_of(self, topic: str, topic_id: UUID) -> int:
        """One more than the greatest number of a partition of this topic that has a log here."""
        numbers = (
            partition.partition + 1
            for partition, found in self._topic_ids.items()
            if partition.topic == topic and found == topic_id
        )
        return max(numbers, default=0)

    def delete(self, partition: TopicPartition, topic_id: UUID | None = None) -> None:
        """Take a log out of service at once; its folder is renamed now and removed later.

        With a `topic_id`, one that belongs to another topic stays.
        KafkaStorageError if its log dir has failed: a deletion there would not outlive a power loss, and
        is to be tried again once the dir can be used.
        """
        self._absent.discard(partition)
        if partition not in self._logs:
            return
        if topic_id is not None and self._topic_ids[partition] not in (topic_id, NO_UUID):
            return
        folder = self._dir_of[partition]
        if folder.has_failed:
            raise KafkaStorageError(f"{partition} cannot be deleted: its log dir has failed")
        found = self._remove(partition)
        path = f"{found.dir_path}/{names.retired_folder(partition, self._new_uuid(), names.DELETE_FOLDER)}"
        try:
            folder.logs.remove(partition)
            self._disk.rename(found.folder, path)
        except OSError as error:
            raise found.storage_error(error) from error
        folder.renames += 1
        self._trash[folder.path].put_folder(path, found.config.file_delete_delay_ms)

    def sync_names(self) -> None:
        """Make renamed folders durable, and forget the offsets of deleted logs; may run in a thread.

        Called before a deleted topic's name may be used again: else a power loss could bring its
        folder back under the name of the new topic. KafkaStorageError if that cannot be ruled out.
        """
        for folder in self.dirs:
            renames = folder.renames
            if folder.has_failed and folder.synced_renames != renames:
                raise KafkaStorageError(f"the log dir {folder.path} failed before a deletion was durable")
            if not folder.has_failed:
                try:
                    self._disk.fsync_dir(folder.path)
                    folder.synced_renames = renames
                except OSError as error:
                    self.dirs.not_written(folder, error)
                    raise KafkaStorageError(f"the log dir {folder.path} cannot be synced: {error}") from error
                try:
                    folder.keep_offsets_of(self._logs.keys)
                except OSError as error:
                    self.dirs.not_written(folder, error)

    def set_aside_strays(
        self,
        topic_ids: Iterable[UUID],
        is_held: Callable[[TopicPartition], bool] = lambda _: True,
        spared: Container[str] = (),
    ) -> list[TopicPartition]:
        """Set aside the logs of other topics than these, and those not held here; which they were.

        Those of topics with a `spared` name stay where they are.
        """
        known = {NO_UUID, *topic_ids}
        logs = [each for each in self._topic_ids.items() if each[0].topic not in spared]
        unknown = [partition for partition, topic_id in logs if topic_id not in known]
        moved = [partition for partition, topic_id in logs if topic_id in known and not is_held(partition)]
        for partition in (*unknown, *moved):
            path = self._remove(partition).folder
            if is_log_dir(self._disk, path):
                log.error("%s has become a log dir: it is left alone", path)
                continue
            self._set_aside(partition, path)
        _say_aside("of topics that the cluster does not know", unknown)
        _say_aside("that other brokers hold by now", moved)
        return unknown + moved

    # Keeping

    def remove_deleted(self, path: str | None = None) -> int:
        """Remove the files and folders whose delay is over, in one log dir, or in all; how many."""
        return sum(self._trash[folder.path].empty() for folder in self.dirs.some(path))

    def close(self, *, clean: bool = True, broker_epoch: int = -1, each: Each = map) -> None:
        """Close every log and let go of the dirs; each that was written down whole is marked clean.

        `each` calls a function for each log: an executor's `map` lets their fsyncs overlap.
        """
        for folder in self.dirs:
            logs = self._logs_of(folder)
            is_clean = clean and not folder.has_failed
            if not all(list(each(_close_cleanly if is_clean else _close_as_is, logs))):
                is_clean = False
            if is_clean:
                try:
                    self.checkpoints.write_dir(folder)
                    folder.mark_clean(broker_epoch)
                except OSError as error:
                    self.dirs.not_written(folder, error)
        self.release()
        self._logs.clear()
        self._doubles.clear()

    def release(self) -> None:
        self.dirs.release()

    # Parts

    def _add(self, opened: Log, folder: LogDir, topic_id: UUID) -> None:
        self._logs[opened.partition] = opened
        self._dir_of[opened.partition] = folder
        self._topic_ids[opened.partition] = topic_id
        folder.log_count += 1

    def _remove(self, partition: TopicPartition) -> Log:
        found = self._logs.pop(partition)
        del self._topic_ids[partition]
        self._dir_of.pop(partition).log_count -= 1
        found.close(is_clean=False)
        return found

    def _choose(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Serve the one of several logs that is of this topic and ends last; the rest go aside.

        One without records, as it begins where its leader's does or all are deleted, has no last epoch: a log
        that ends before that has only what was deleted.
        """
        found = [
            (self._logs[partition], self._dir_of[partition], self._topic_ids[partition]),
            *self._doubles.pop(partition),
        ]
        self._dir_of[partition].log_count -= 1
        empty = [one for one, _, known in found if known == topic_id and _last_epoch(one) == UNKNOWN_EPOCH]
        deleted_until = max((one.start_offset for one in empty), default=0)
        chosen = max(
            found,
            key=lambda one: (
                one[2] == topic_id,
                one[2] == NO_UUID,
                one[0].end_offset >= deleted_until,
                _last_epoch(one[0]),
                one[0].end_offset,
                one[0].size_bytes,
            ),
        )
        self._add(*chosen)
        for other, _, _ in found:
            if other is not chosen[0]:
                log.error(
                    "%s lies in two log dirs: %s ends at %d, in leader epoch %d, and is served;"
                    " %s ends at %d, in leader epoch %d, and is set aside",
                    partition,
                    chosen[0].folder,
                    chosen[0].end_offset,
                    _last_epoch(chosen[0]),
                    other.folder,
                    other.end_offset,
                    _last_epoch(other),
                )
                other.close(is_clean=False)
                self._set_aside(partition, other.folder)

    def _set_aside(self, partition: TopicPartition, path: str) -> None:
        name = names.retired_folder(partition, self._new_uuid(), names.STRAY_FOLDER)
        dir_path = path.rpartition("/")[0]
        folder = self.dirs.at(dir_path)
        if is_log_dir(self._disk, path):  # in which another process may be working
            raise KafkaStorageError(f"{path} is a log dir itself: it is not set aside")
        try:
            folder.logs.remove(partition)
            self._disk.rename(path, f"{dir_path}/{name}")
        except OSError as error:
            self.dirs.not_written(folder, error)
            raise KafkaStorageError(f"{path} cannot be set aside: {error}") from error

    def _logs_of(self, folder: LogDir) -> list[Log]:
        doubles = [one for group in list(self._doubles.values()) for one, _, _ in group]
        return [one for one in [*list(self._logs.values()), *doubles] if one.dir_path == folder.path]

    def _surroundings(self, folder: LogDir) -> Surroundings:
        return Surroundings(
            self._disk,
            self._clock,
            self._random,
            self._trash[folder.path],
            folder.sync_names,
            lambda error: self.dirs.failed(folder, error),
            lambda: self.checkpoints.write_dir(folder),
            lambda error: self.dirs.filled_up(folder, error),
        )

    def _dir_failed(self, folder: LogDir, error: OSError) -> None:
        for one in self._logs_of(folder):
            one.failure = one.failure or f"the log dir {folder.path} has failed: {error}"
        self.on_dir_failure(folder.path)

    def _new_uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)
