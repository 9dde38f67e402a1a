"""A log dir that is not there at a start: its partitions are offline, and whole again when it is back."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from random import SystemRandom
from uuid import uuid4

import pytest

from millstream.broker.server import Broker
from millstream.clock import SystemClock
from millstream.cluster.partition import Partition
from millstream.config.broker import BrokerConfig
from millstream.config.log import LogConfig
from millstream.controller.topics import NewTopic
from millstream.errors import KafkaStorageError
from millstream.model import TopicPartition
from millstream.storage.meta_properties import WrongLogDir
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import Store
from tests.storage.logs import batch

NAMES = ("d1", "d2")


class BadDisk(OsDisk):
    """A disk that cannot read one folder."""

    bad_path = ""

    def listdir(self, path: str) -> list[str]:
        if path == self.bad_path:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().listdir(path)


def make(
    root: Path, disk: OsDisk | None = None, *, names: tuple[str, ...] = NAMES, lost: tuple[str, ...] = ()
) -> Broker:
    values = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": ",".join(str(root / name) for name in names),
        "lost.log.dirs": ",".join(lost),
    }
    return Broker(BrokerConfig(values), disk=disk)


def directory_id(folder: Path) -> str:
    lines = (folder / "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("directory.id="))


async def create(broker: Broker, name: str, count: int) -> None:
    """A topic of two partitions, with so many records in each."""
    await broker.controller.create_topic(NewTopic(name, 2, 1))
    for index in range(2):
        for _ in range(count):
            broker.replicas.leader(name, index).append(batch(b"v"), 1, 9)


def ends(broker: Broker, name: str) -> dict[str, int]:
    """Where the partitions that can be served end, by the log dir they lie in."""
    return {
        Path(partition.log.dir_path).name: partition.log.end_offset
        for partition in broker.replicas.topic(name).values()
        if partition.failure is None
    }


def offline(broker: Broker, name: str) -> int:
    failures = [partition.failure for partition in broker.replicas.topic(name).values()]
    assert all(failure is None or isinstance(failure, KafkaStorageError) for failure in failures)
    return sum(failure is not None for failure in failures)


@pytest.mark.parametrize("starts", [1, 3])
@pytest.mark.parametrize("kind", ["unreadable", "not mounted"])
def test_no_record_is_lost_while_a_dir_is_away(tmp_path: Path, kind: str, starts: int) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 10)
            assert ends(broker, "a") == {"d1": 10, "d2": 10}
        disk = BadDisk(max_open_files=100)
        if kind == "unreadable":
            disk.bad_path = str(tmp_path / "d2")
        else:
            (tmp_path / "d2").rename(tmp_path / "away")
            (tmp_path / "d2").mkdir()
        for number in range(starts):
            async with make(tmp_path, disk) as broker:
                assert ends(broker, "a") == {"d1": 10 + number}
                assert offline(broker, "a") == 1
                for partition in broker.replicas.topic("a").values():
                    if partition.failure is None:
                        partition.append(batch(b"v"), 1, 9)
                await create(broker, f"b{number}", 1)
                assert set(ends(broker, f"b{number}")) == {"d1"}
                assert offline(broker, f"b{number}") == 0
        assert not list((tmp_path / "d2").glob("b*"))
        if kind == "not mounted":
            assert not list((tmp_path / "d2").glob("a-*"))
            (tmp_path / "d2" / ".lock").unlink()
            (tmp_path / "d2" / "meta.properties").unlink()
            for path in (tmp_path / "d2").iterdir():
                path.unlink()
            (tmp_path / "d2").rmdir()
            (tmp_path / "away").rename(tmp_path / "d2")
        async with make(tmp_path) as broker:
            assert ends(broker, "a") == {"d1": 10 + starts, "d2": 10}
            for number in range(starts):
                assert offline(broker, f"b{number}") == 0
        assert not list(tmp_path.glob("*/*-stray"))

    asyncio.run(scenario())


def test_an_empty_dir_is_used_once_nothing_is_missed(tmp_path: Path) -> None:
    def make_one() -> Broker:
        values = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "d1"),
            "registry": f"sqlite:{tmp_path}/registry",
        }
        return Broker(BrokerConfig(values))

    async def scenario() -> None:
        async with make_one() as broker:
            await create(broker, "lost", 10)
        shutil.rmtree(tmp_path / "d1")
        async with make_one() as broker:
            assert offline(broker, "lost") == 2
            with pytest.raises(KafkaStorageError, match=r"\(lost-0\): .*d1.* delete the topic"):
                await create(broker, "new", 1)
            await broker.controller.delete_topic(broker.metadata.topic("lost"))
            await create(broker, "new", 1)
            assert ends(broker, "new") == {"d1": 1}
            async with asyncio.timeout(10):
                while "is.new=true" in (tmp_path / "d1" / "meta.properties").read_text():
                    await asyncio.sleep(0.05)
        async with make_one() as broker:
            assert ends(broker, "new") == {"d1": 1}
            assert broker.store.dirs.kept_all

    asyncio.run(scenario())


@pytest.mark.parametrize("starts", [1, 2])
def test_a_dir_taken_out_of_the_configuration_is_missed(tmp_path: Path, starts: int) -> None:
    """Also if another is there instead, and the broker was started several times without it."""

    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 10)
        missed = directory_id(tmp_path / "d2")
        for number in range(starts):
            async with make(tmp_path, names=("d1", "d3")) as broker:
                assert not broker.store.dirs.kept_all
                assert ends(broker, "a") == {"d1": 10}
                (failure,) = filter(None, (one.failure for one in broker.replicas.topic("a").values()))
                assert isinstance(failure, KafkaStorageError)
                assert f"{tmp_path}/d2 (directory id {missed})" in failure.message
                assert f"lost.log.dirs={missed}" in failure.message
                await create(broker, f"b{number}", 1)
        async with make(tmp_path, names=("d1", "d2", "d3")) as broker:
            assert ends(broker, "a") == {"d1": 10, "d2": 10}
        async with make(tmp_path, names=("d3", "d2", "d1")) as broker:
            assert broker.store.dirs.kept_all

    asyncio.run(scenario())


def test_a_dir_with_the_registry_is_missed_too(tmp_path: Path) -> None:
    """The order of the dirs does not matter, but the one that knows the topics must be there."""

    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 10)
        with pytest.raises(WrongLogDir, match=r"d2 belongs to a cluster whose registry is in none.*copy"):
            await make(tmp_path, names=("d2", "d3")).start()
        assert not list(tmp_path.glob("d[23]/registry.db"))
        async with make(tmp_path, names=("d2", "d1")) as broker:
            assert ends(broker, "a") == {"d1": 10, "d2": 10}

    asyncio.run(scenario())


def test_a_dir_that_holds_nothing_may_be_taken_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 10)
        for folder in (tmp_path / "d2").glob("a-*"):
            folder.rename(tmp_path / "d1" / folder.name)
        async with make(tmp_path, names=("d1",)) as broker:
            assert offline(broker, "a") == 0
            assert [one.log.end_offset for one in broker.replicas.topic("a").values()] == [10, 10]
        async with make(tmp_path, names=("d1",)) as broker:
            assert broker.store.dirs.kept_all  # it is forgotten

    asyncio.run(scenario())


@pytest.mark.parametrize("names", [("d1",), ("d1", "d2")])
def test_a_dir_that_is_lost_for_good_is_given_up(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Taken out, or replaced by an empty one."""

    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 10)
        lost = directory_id(tmp_path / "d2")
        (tmp_path / "d2").rename(tmp_path / "away")
        async with make(tmp_path, names=names) as broker:
            assert offline(broker, "a") == 1
        async with make(tmp_path, names=names, lost=(lost,)) as broker:
            assert not broker.store.dirs.kept_all  # whoever has copies is not to count on those here
            assert offline(broker, "a") == 0
            ended = sorted(one.log.end_offset for one in broker.replicas.topic("a").values())
            assert ended == [0, 10]
        async with make(tmp_path, names=names) as broker:
            assert broker.store.dirs.kept_all
            assert offline(broker, "a") == 0

    asyncio.run(scenario())


def test_a_new_dir_is_known_before_a_copy_is_made_in_it(tmp_path: Path) -> None:
    """Though a log is missing, so that the dir is not taken for good yet."""
    disk, clock = OsDisk(max_open_files=100), SystemClock()

    def store(*names: str) -> Store:
        opened = Store(
            [str(tmp_path / name) for name in names], disk, clock, cluster_id="c", random=SystemRandom()
        )
        opened.open()
        return opened

    first = store("d1", "d2")
    first.accept_new_dirs()
    first.close()
    second = store("d1", "d3")
    second.absent(TopicPartition("a", 0), LogConfig())
    second.accept_new_dirs()
    second.create(TopicPartition("b", 0), uuid4(), LogConfig(), is_copy=True)
    second.create(TopicPartition("b", 1), uuid4(), LogConfig(), is_copy=True)
    assert (tmp_path / "d3" / "b-0").exists() or (tmp_path / "d3" / "b-1").exists()
    second.close()
    third = store("d1", "d2")
    assert not third.may_create_missing
    assert not third.dirs.kept_all
    third.close()


def test_a_topic_whose_records_are_lost_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 3)
        (tmp_path / "d2").rename(tmp_path / "lost")
        async with make(tmp_path) as broker:
            assert offline(broker, "a") == 1
            await broker.controller.delete_topic(broker.metadata.topic("a"))
            await create(broker, "a", 1)
        async with make(tmp_path) as broker:
            assert offline(broker, "a") == 0
            await create(broker, "b", 1)
            assert set(ends(broker, "b")) == {"d2"}  # no log is missing any more: the new dir is used

    asyncio.run(scenario())


def test_a_log_whose_folder_a_power_loss_took_is_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 0)
            folder = Path(broker.replicas.leader("a", 0).log.folder)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        async with make(tmp_path) as broker:
            assert offline(broker, "a") == 0
            assert folder.exists()

    asyncio.run(scenario())


def test_a_partition_that_is_away_is_not_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator must not take it for an empty one."""

    async def scenario() -> None:
        async with make(tmp_path) as broker:
            await create(broker, "a", 3)
        disk = BadDisk(max_open_files=100)
        disk.bad_path = str(tmp_path / "d2")
        broker = make(tmp_path, disk)
        led: list[Partition] = []
        monkeypatch.setattr(broker.coordinators, "lead", led.append)
        async with broker:
            assert [Path(partition.log.dir_path).name for partition in led] == ["d1"]

    asyncio.run(scenario())
