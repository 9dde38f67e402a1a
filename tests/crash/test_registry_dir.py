"""The log dir with the registry fails, is taken away or replaced: what lies elsewhere is served, or kept."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.protocol.messages import CreateTopicsRequest, MetadataRequest
from tests.failing_disk import FailingDisk, failing_disk
from tests.processes import BrokerProcess, free_ports, until
from tests.wire import Wire, append, batch, create_topic, fetch, produce, values

PARTITIONS = 4
SOON_S = 20.0


class TwoDirs(BrokerProcess):
    """A broker, or several, with its logs in ROOT/a and ROOT/b, of which the first has the registry."""

    def __init__(self, root: Path, *arguments: str, port: int = 0, **options: str) -> None:
        self.dirs = (root / "a" / "logs", root / "b" / "logs")
        given = {key.replace("_", "."): value for key, value in options.items()}
        given |= {
            "log.dirs": ",".join(map(str, self.dirs)),
            "log.flush.before.ack": "true",  # a disk that fails may forget what it has not written yet
            "registry.session.timeout.ms": "1000",
        }
        super().__init__(root / "broker", port=port, options=given)
        self._arguments = arguments

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--data")
        return [*command[:at], *command[at + 2 :], *self._arguments]

    def fill(self) -> dict[str, list[int]]:
        """A topic with a record in each partition; which of these lie in a, and which in b."""
        with Wire(self.bootstrap) as wire:
            create_topic(wire, "t", PARTITIONS)
            for number in range(PARTITIONS):
                assert produce(wire, "t", batch([b"before"]), partition=number).error_code == 0
        places = {
            folder.parent.name: sorted(int(path.name[2:]) for path in folder.glob("t-*"))
            for folder in self.dirs
        }
        assert list(map(len, places.values())) == [PARTITIONS // 2] * 2
        return places

    def controller(self) -> int:
        with Wire(self.bootstrap) as wire:
            found: int = wire.ask(MetadataRequest(topics=None)).controller_id
            return found

    def try_to_create(self, name: str) -> int:
        """Have a topic made; the error code of the answer."""
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        with Wire(self.bootstrap) as wire:
            (answer,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=2000)).topics
            code: int = answer.error_code
            return code

    def serves(self, partition: int, *expected: bytes) -> bool:
        with Wire(self.bootstrap) as wire:
            return values(fetch(wire, "t", 0, partition=partition).records) == list(expected)

    def refusal(self) -> str:
        """What is said by a start that must fail."""
        said = len(self.output)
        assert self.launch().wait(SOON_S) == 1
        return self.output[said:]

    def ask(self, *command: str, status: int = 1) -> str:
        """What a command answers, which must end with this status."""
        program = [sys.executable, "-m", "millstream.cli.main", *command, "--bootstrap", self.bootstrap]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stderr
        return done.stdout


def check_that_the_other_dir_is_served(broker: TwoDirs, places: dict[str, list[int]]) -> None:
    """Without a registry: its partitions are led on, no topic is made, and nobody says that all is well."""
    until(lambda: broker.controller() == -1, SOON_S, "the session with the registry is lost")
    with Wire(broker.bootstrap) as wire:
        for number in places["b"]:
            assert produce(wire, "t", batch([b"goes on"]), partition=number).error_code == 0
            assert broker.serves(number, b"before", b"goes on")
        until(
            lambda: all(
                produce(wire, "t", batch([b"lost"]), partition=number).error_code == KafkaStorageError.code
                for number in places["a"]
            ),
            SOON_S,
            "the partitions of the failed dir are offline",
        )
    assert broker.try_to_create("later") != 0
    assert "no controller" in broker.ask("cluster", "health")
    assert "bad  controller" in broker.ask("doctor")
    assert f"the registry {broker.dirs[0]}/registry.db cannot be opened" in broker.output
    assert "Traceback" not in broker.output


def kept(folder: Path) -> dict[Path, bytes]:
    """All segments below a folder."""
    return {path: path.read_bytes() for path in folder.glob("**/*.log")}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    """The first log dir's."""
    with failing_disk(tmp_path / "a") as made:
        yield made


@pytest.mark.parametrize("failure", ["fail", "become_read_only"])
def test_when_its_disk_fails_other_dirs_are_served_and_kept(
    tmp_path: Path, disk: FailingDisk, failure: str
) -> None:
    with TwoDirs(tmp_path) as broker:
        places = broker.fill()
        getattr(disk, failure)()
        check_that_the_other_dir_is_served(broker, places)
        assert broker.stop() == 0
        before = kept(broker.dirs[1])
        assert f"the registry {broker.dirs[0]}/registry.db cannot be opened" in broker.refusal()
        disk.remove()
        assert "belongs to a cluster whose registry is in none of the log dirs" in broker.refusal()
        assert not list(broker.dirs[0].glob("registry.db*"))
        assert kept(broker.dirs[1]) == before
        disk.come_back()
        broker.start()
        for number in places["a"]:
            assert broker.serves(number, b"before")
        for number in places["b"]:
            assert broker.serves(number, b"before", b"goes on")


def test_when_its_disk_is_back_topics_are_made_again(tmp_path: Path, disk: FailingDisk) -> None:
    """Without a new start; those of the dir that failed wait for one."""
    with TwoDirs(tmp_path) as broker:
        places = broker.fill()
        disk.fail()
        check_that_the_other_dir_is_served(broker, places)
        disk.remove()
        disk.come_back()
        until(lambda: broker.try_to_create("later") == 0, SOON_S, "a topic is made")
        with Wire(broker.bootstrap) as wire:
            assert append(wire, "later", b"first") == 0
        assert not list(broker.dirs[0].glob("later-*"))
        assert broker.stop() == 0
        broker.start()
        assert all(broker.serves(number, b"before") for number in places["a"])
        with Wire(broker.bootstrap) as wire:
            assert values(fetch(wire, "later", 0).records) == [b"first"]


def test_a_registry_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """A new one would know no topics."""
    with TwoDirs(tmp_path) as broker:
        places = broker.fill()
        shutil.move(broker.dirs[0], tmp_path / "away")
        check_that_the_other_dir_is_served(broker, places)
        assert not broker.dirs[0].exists()
        assert broker.stop() == 0
        assert "belongs to a cluster whose registry is in none of the log dirs" in broker.refusal()
        shutil.rmtree(broker.dirs[0])
        shutil.move(tmp_path / "away", broker.dirs[0])
        broker.start()
        assert broker.serves(places["b"][0], b"before", b"goes on")
        assert broker.try_to_create("later") == 0


def test_with_a_copy_of_it_other_dirs_are_served_again(tmp_path: Path) -> None:
    """Its disk is lost and an empty one is there; what came after the copy is set aside, not deleted."""
    with TwoDirs(tmp_path) as broker:
        places = broker.fill()
        copy = tmp_path / "copy.db"
        with (
            closing(sqlite3.connect(broker.dirs[0] / "registry.db")) as registry,
            closing(sqlite3.connect(copy)) as target,
        ):
            registry.backup(target)
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "later", PARTITIONS)
        assert broker.stop() == 0
        shutil.rmtree(broker.dirs[0])
        assert "put a copy of it back" in broker.refusal()
        shutil.move(copy, broker.dirs[0] / "registry.db")
        broker.start()
        with Wire(broker.bootstrap) as wire:
            for number in places["b"]:
                assert broker.serves(number, b"before")
                assert produce(wire, "t", batch([b"goes on"]), partition=number).error_code == 0
            for number in places["a"]:
                answer = produce(wire, "t", batch([b"lost"]), partition=number)
                assert answer.error_code == KafkaStorageError.code
                assert "lost.log.dirs=" in (answer.error_message or "")
        assert len(list(broker.dirs[1].glob("later-*-stray"))) == PARTITIONS // 2


@pytest.mark.parametrize("kind", ["named", "shared"])
def test_none_is_made_beside_logs_that_it_would_not_know(tmp_path: Path, kind: str) -> None:
    """Where the place of the registry is named, or there are several brokers, which make their own."""
    place = tmp_path / "registry" if kind == "named" else tmp_path / "a" / "logs"
    if kind == "named":
        broker = TwoDirs(tmp_path, registry=f"sqlite:{place}")
    else:
        broker = TwoDirs(tmp_path, "--brokers", "2", port=free_ports(2))
    with broker:
        until(lambda: "is ready" in broker.output, SOON_S, "all brokers are ready")
        broker.ask("topic", "create", "t", status=0)
        with Wire(broker.bootstrap) as wire:
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
            topic_id = wire.ask(asked).topics[0].topic_id
        assert broker.stop() == 0
        shutil.move(place, tmp_path / "away")
        before = kept(broker.dirs[1])
        for _ in range(2):
            assert f"belongs to a cluster whose registry is not in {place}" in broker.refusal()
            assert not list(place.glob("**/registry.db*")) + list(place.glob("**/meta.properties"))
        assert kept(broker.dirs[1]) == before
        shutil.rmtree(place, ignore_errors=True)
        shutil.move(tmp_path / "away", place)
        broker.start()
        until(lambda: broker.output.count("is ready") == 2, SOON_S, "all brokers are ready")
        with Wire(broker.bootstrap) as wire:
            assert wire.ask(asked).topics[0].topic_id == topic_id


def test_brokers_whose_first_dir_cannot_be_written_work_in_the_other(tmp_path: Path) -> None:
    """If the registry is elsewhere."""
    (tmp_path / "a").write_text("no folder")
    with TwoDirs(tmp_path, "--brokers", "1", registry=f"sqlite:{tmp_path}/registry") as broker:
        until(lambda: "is ready" in broker.output, SOON_S, "the broker is ready")
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t")
            assert append(wire, "t", b"first") == 0
        assert broker.stop() == 0
        assert "Traceback" not in broker.output
