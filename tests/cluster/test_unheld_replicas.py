"""Replicas whose logs cannot be made, and what becomes of them later."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from millstream.broker import cluster_state
from millstream.errors import EligibleLeadersNotAvailable, KafkaStorageError
from millstream.model import TopicPartition
from millstream.storage.os_disk import OsDisk, OsFile
from tests.cluster.brokers import Brokers, run, until


class FullDisk(OsDisk):
    """A disk on which no folder can be made while it is full, nor a file that says whose it is."""

    def __init__(self) -> None:
        super().__init__(max_open_files=100)
        self.is_full = False
        self.refusals = 0

    def makedirs(self, path: str) -> None:
        if self.is_full and not self.exists(path):
            self.refusals += 1
            raise OSError(errno.ENOSPC, "no space left")
        super().makedirs(path)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if self.is_full and path.endswith("/partition.metadata"):
            self.refusals += 1
            raise OSError(errno.ENOSPC, "no space left")
        return super().open(path, create=create)


@pytest.fixture(autouse=True)
def _again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "AGAIN_S", 0.1)


def test_a_lost_replica_that_cannot_be_made_at_first_is_copied_later(tmp_path: Path) -> None:
    """Its broker returned with an empty folder while nobody led; when others do, its disk has no room."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", b"a")
        for number in (2, 3, 1):
            await brokers.stop(number)
        shutil.rmtree(tmp_path / "1")
        disk = brokers.disks[1] = FullDisk()
        await brokers.start(1)
        assert brokers.replica(1, "t").failure is not None
        disk.is_full = True
        await brokers.start(2, 3)
        await until(lambda: disk.refusals > 1)
        assert brokers.replica(1, "t").failure is not None
        assert 1 not in brokers.isr_of("t")
        disk.is_full = False
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await brokers.send("t", b"b")
        assert brokers.replica(1, "t").log.end_offset == 2

    run(test, tmp_path)


CONTROLLER, BAD, OTHER = 1, 2, 3


async def filled(brokers: Brokers) -> FullDisk:
    """Have a broker that is not the controller start again, on a disk that is full."""
    await brokers.stop(BAD)
    disk = brokers.disks[BAD] = FullDisk()
    await brokers.start(BAD)
    assert brokers.controller is brokers[CONTROLLER]
    fill(brokers, disk)
    return disk


def fill(brokers: Brokers, disk: FullDisk) -> None:
    disk.is_full = True
    brokers[BAD].store.dirs[0].has_room = lambda: not disk.is_full  # type: ignore[method-assign]


def break_dir(brokers: Brokers, number: int = BAD) -> None:
    dirs = brokers[number].store.dirs
    dirs.failed(dirs[0], OSError(errno.EIO, "the disk is broken"))


def test_others_lead_new_partitions_of_a_broker_whose_disk_is_full_until_it_has_room(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        disk = await filled(brokers)
        await brokers.place("t", {0: [BAD, CONTROLLER, OTHER]}, {"min.insync.replicas": "2"})
        assert await brokers.send("t", b"a") == 0
        controller = brokers.controller.controller
        await controller.add_partitions("t", 2, [[BAD, OTHER, CONTROLLER]], validate_only=False)
        assert await brokers.send("t", b"a", index=1) == 0
        for index in range(2):
            assert brokers.isr_of("t", index) == [CONTROLLER, OTHER]
        disk.is_full = False
        for index in range(2):
            await until(lambda index=index: brokers.isr_of("t", index) == [1, 2, 3])  # type: ignore[misc]
        assert brokers[BAD].replicas.failed() == set()
        places = [TopicPartition("t", index) for index in range(2)]
        assert set((await controller.elect(places, is_unclean=False)).values()) == {None}
        assert [brokers.leader_of("t", index) for index in range(2)] == [BAD, BAD]
        assert await brokers.send("t", b"b") == 1

    run(test, tmp_path)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_new_partition_that_nobody_else_has_is_offline_until_there_is_room(
    tmp_path: Path, is_restarted: bool
) -> None:
    async def test(brokers: Brokers) -> None:
        disk = await filled(brokers)
        await brokers.place("t", {0: [BAD]}, {})
        await until(lambda: brokers.leader_of("t") == -1)
        if is_restarted:
            await brokers.stop(BAD)
            await brokers.start(BAD)
            fill(brokers, disk)
        refused = disk.refusals
        await until(lambda: disk.refusals > refused)  # it is tried again
        assert brokers.leader_of("t") == -1
        disk.is_full = False
        assert await brokers.send("t", b"a") == 0
        assert brokers.leader_of("t") == BAD

    run(test, tmp_path)


def test_a_log_that_cannot_be_opened_yet_for_want_of_room_is_not_set_aside(tmp_path: Path) -> None:
    """Its folder does not say of which topic it is (as before Kafka 2.8); that would be written first."""

    async def test(brokers: Brokers) -> None:
        await brokers.place("t", {0: [1]}, {})
        for value in (b"a", b"b", b"c"):
            await brokers.send("t", value)
        await brokers.stop(1)
        (tmp_path / "1" / "t-0" / "partition.metadata").unlink()
        disk = brokers.disks[1] = FullDisk()
        disk.is_full = True
        await brokers.start(1)
        assert disk.refusals > 0
        assert brokers.leader_of("t") == -1
        disk.is_full = False
        assert await brokers.send("t", b"d") == 3

    run(test, tmp_path, count=1)


def test_a_broker_without_a_log_dir_leads_none_of_the_new_partitions(tmp_path: Path) -> None:
    """Not even if an operator has any replica elected."""

    async def test(brokers: Brokers) -> None:
        break_dir(brokers)
        await brokers.create("t", partitions=6)
        await brokers.place("two", {0: [BAD, OTHER]}, {})
        for index in range(6):
            assert await brokers.send("t", b"a", index=index) == 0
            assert BAD not in brokers.isr_of("t", index)
        assert await brokers.send("two", b"a") == 0
        break_dir(brokers, OTHER)
        await until(lambda: brokers.leader_of("two") == -1)
        place = TopicPartition("two", 0)
        refused = await brokers.controller.controller.elect([place], is_unclean=True)
        assert isinstance(refused[place], EligibleLeadersNotAvailable)

    run(test, tmp_path)


def test_a_broker_that_misses_a_log_for_good_copies_new_partitions_and_leads_them_later(
    tmp_path: Path,
) -> None:
    """It came back with an empty folder, and one of its partitions was nowhere else."""

    async def test(brokers: Brokers) -> None:
        await brokers.place("single", {0: [BAD]}, {})
        await brokers.stop(BAD)
        shutil.rmtree(tmp_path / str(BAD))
        await brokers.start(BAD)
        assert brokers.replica(BAD, "single").failure is not None
        await brokers.place("t", {0: [BAD, CONTROLLER, OTHER]}, {})
        assert await brokers.send("t", b"a") == 0
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await brokers.stop(OTHER)
        await brokers.controller.controller.elect([TopicPartition("t", 0)], is_unclean=False)
        assert brokers.leader_of("t") == BAD
        assert await brokers.send("t", b"b") == 1

    run(test, tmp_path)


def test_partitions_that_are_deleted_or_moved_away_are_missed_no_more(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        break_dir(brokers)
        replicas, controller = brokers[BAD].replicas, brokers.controller
        for name in ("goes", "moves"):
            await brokers.place(name, {0: [BAD, CONTROLLER]}, {})
            await brokers.send(name, b"a")
        topics = {name: controller.metadata.topic(name) for name in ("goes", "moves")}
        assert replicas.failed() == {(topic.topic_id, 0) for topic in topics.values()}
        assert replicas.failed_of(topics["goes"]) == {0}
        await controller.controller.delete_topic(topics["goes"])
        assert replicas.failed() == {(topics["moves"].topic_id, 0)}
        target = {TopicPartition("moves", 0): [OTHER, CONTROLLER]}
        await controller.controller.reassign(target, may_resize=True)
        await until(lambda: not replicas.failed())
        assert await brokers.send("moves", b"b") == 1

    run(test, tmp_path)


@pytest.mark.parametrize("number", [CONTROLLER, BAD])
def test_new_replicas_are_not_placed_on_a_broker_without_a_disk(tmp_path: Path, number: int) -> None:
    """Unless there are too few others: then it copies them when it has one."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("old", 3)
        controller = brokers.controller.controller
        assert controller.broker_id == CONTROLLER
        break_dir(brokers, number)
        await until(lambda: number in controller.term.picture.without_disks())
        for name in "abc":
            await brokers.create(name, 3, 1)
            for index in range(3):
                assert await brokers.send(name, b"taken", index=index) == 0
        await controller.add_partitions("a", 6, None, validate_only=False)
        assert number not in {brokers.leader_of("a", index) for index in range(6)}
        await brokers.create("everywhere")
        assert number not in brokers.isr_of("everywhere")
        await brokers.send("everywhere", b"taken")
        await brokers.stop(number)
        await brokers.start(number)
        await until(lambda: brokers.isr_of("everywhere") == [1, 2, 3])

    run(test, tmp_path)


def test_where_no_broker_has_a_disk_that_is_what_is_said(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("old", replicas=1)
        break_dir(brokers, 1)
        await until(lambda: brokers.controller.controller.term.picture.without_disks() == {1})
        with pytest.raises(KafkaStorageError):
            await brokers.create("new", replicas=1)

    run(test, tmp_path, count=1)
