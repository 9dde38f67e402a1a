"""A dir in which its broker did not work last is told from one in which it did, and nothing else is."""

from __future__ import annotations

import logging
import shutil
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import pytest

from millstream.clock import SystemClock
from millstream.controller.tree import EditionsNode
from millstream.model import encode_uuid
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import Store

EDITION = ".millstream_edition"
SEEDS = count(2)


class Broker:
    """A store with some log dirs, and what a registry would know of them."""

    def __init__(self, *dirs: Path) -> None:
        self.dirs = dirs
        self.known: dict[str, int] = {}
        self.last: list[str] = []
        self.store = Store([], OsDisk(), SystemClock(), random=Random(1))

    def start(self, stage: str = "all") -> Store:
        """Come as far as a stage; `stop` or `kill` comes next."""
        store = self.store = Store(
            [str(path) for path in self.dirs],
            OsDisk(),
            SystemClock(),
            random=Random(next(SEEDS)),
            boot_id="boot",
        )
        store.open()
        store.dirs.compare_editions(self.known, self.last)
        if stage != "compared":
            begun = self.begin()
            if stage != "begun":
                self.write(begun)
                store.accept_new_dirs()
                store.dirs.mark_boot()
        return store

    def begin(self) -> dict[str, int]:
        return self.store.dirs.begin_edition(self.known, SystemClock().now_ms())

    def kill(self) -> None:
        self.store.close(clean=False)

    def stop(self) -> None:
        self.write(self.begin())
        self.store.close()

    def write(self, begun: dict[str, int]) -> None:
        self.known |= begun
        self.last = sorted(begun) or self.last


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path / "one", tmp_path / "two")
    broker.start()
    broker.stop()
    return broker


def outdated(store: Store) -> list[bool]:
    return [folder.is_outdated for folder in store.dirs]


@pytest.mark.parametrize("stage", ["compared", "begun", "all"])
@pytest.mark.parametrize("is_clean_before", [False, True])
def test_a_kill_at_any_stage_of_a_start_makes_no_older_copy(
    broker: Broker, stage: str, is_clean_before: bool
) -> None:
    for _ in range(3):
        broker.start()
        if is_clean_before:
            broker.stop()
        else:
            broker.kill()
        assert broker.start(stage).dirs.kept_all
        broker.kill()
        store = broker.start()
        assert outdated(store) == [False, False]
        assert store.dirs.kept_all
        broker.kill()


@pytest.mark.parametrize("is_hot", [False, True])
def test_a_copy_that_is_put_back_is_found_until_the_cluster_knows(
    broker: Broker, tmp_path: Path, is_hot: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_hot:  # of a broker that runs, and stops cleanly later
        broker.start()
    shutil.copytree(broker.dirs[0], tmp_path / "copy")
    if not is_hot:
        broker.start()
    broker.stop()
    shutil.rmtree(broker.dirs[0])
    (tmp_path / "copy").rename(broker.dirs[0])
    for stage in ("compared", "begun"):
        with caplog.at_level(logging.ERROR):
            store = broker.start(stage)
        assert not store.dirs.kept_all
        assert f"the log dir {broker.dirs[0]} is an older copy" in caplog.text
        broker.kill()
    store = broker.start()
    assert not store.dirs.kept_all
    broker.kill()
    store = broker.start()
    assert outdated(store) == [False, False]
    assert store.dirs.kept_all
    broker.kill()


def test_what_the_registry_does_not_know_says_nothing(broker: Broker, tmp_path: Path) -> None:
    known, last = broker.known, broker.last
    broker.known, broker.last = {}, []  # it knows nothing yet, or no more
    assert broker.start().dirs.kept_all
    broker.stop()
    assert broker.known.keys() == known.keys()
    assert all(broker.known[id_] > known[id_] for id_ in known)
    broker.known, broker.last = known, last  # it lost its newest writes
    assert broker.start().dirs.kept_all
    broker.kill()
    broker.dirs = (*broker.dirs, tmp_path / "three")
    store = broker.start()
    assert outdated(store) == [False, False, False]
    assert len(broker.known) == 3
    broker.kill()


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_dir_without_which_the_broker_worked_is_found_until_the_cluster_knows(
    broker: Broker, tmp_path: Path, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    both = broker.dirs
    for away, staying in (both, both[::-1]):
        away.rename(tmp_path / "away")
        broker.dirs = (staying,)
        for _ in range(2):
            broker.start()
            if is_clean:
                broker.stop()
            else:
                broker.kill()
        (tmp_path / "away").rename(away)
        broker.dirs = both
        for stage in ("compared", "begun", "all"):
            caplog.clear()
            store = broker.start(stage)
            assert [folder.path for folder in store.dirs if folder.is_outdated] == [str(away)]
            assert not store.dirs.kept_all
            assert f"the log dir {away} was away" in caplog.text
            broker.kill()
        for _ in range(3):
            store = broker.start()
            assert outdated(store) == [False, False]
            assert store.dirs.kept_all
            broker.kill()


def test_the_dirs_of_another_machine_are_found_whichever_had_the_number_last(
    broker: Broker, tmp_path: Path
) -> None:
    here, there = broker.dirs, (tmp_path / "there",)
    for dirs in (there, here, there, here):
        broker.dirs = dirs
        is_new = not dirs[0].exists()
        store = broker.start()
        assert all(outdated(store)) != is_new
        assert not store.dirs.kept_all
        broker.stop()
        store = broker.start()
        assert not any(outdated(store))
        assert store.dirs.kept_all
        broker.kill()
    broker.dirs = here[::-1]
    assert broker.start().dirs.kept_all
    broker.stop()


def test_a_dir_is_found_whose_number_is_ahead_or_of_which_the_registry_never_heard(
    broker: Broker, tmp_path: Path
) -> None:
    """A last write to the registry, or all of them, failed before another machine had the number."""
    here, there = broker.dirs, (tmp_path / "there",)
    broker.start("begun")
    broker.kill()
    broker.dirs = there
    broker.start()
    broker.stop()
    known = dict(broker.known)
    for heard in (known, {each: known[each] for each in broker.last}):
        broker.known, broker.dirs = heard, here
        assert outdated(broker.start("compared")) == [True, True]
        broker.kill()


def test_a_new_dir_that_was_killed_before_the_registry_heard_of_it_is_not_outdated(
    broker: Broker, tmp_path: Path
) -> None:
    broker.dirs = (*broker.dirs, tmp_path / "three")
    for stage in ("compared", "begun", "all", "all"):
        assert outdated(broker.start(stage)) == [False, False, False]
        broker.kill()
    assert len(broker.last) == 3


def test_while_it_runs_a_broker_finds_that_another_has_its_number_each_time(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Broker(tmp_path / "other")
    store = broker.start()
    for times in range(1, 4):
        assert store.dirs.compare_editions(broker.known, broker.last)
        other.known, other.last = broker.known, broker.last
        other.start()
        other.stop()
        for _ in range(3):  # it waits for its registration
            assert not store.dirs.compare_editions(other.known, other.last)
        assert caplog.text.count(f"the log dir {broker.dirs[0]} was away") == times
        broker.known = other.known
        broker.write(broker.begin())
    assert store.dirs.compare_editions(broker.known, broker.last)
    broker.stop()


def test_what_was_answered_for_once_is_said_again_when_another_has_the_number(tmp_path: Path) -> None:
    """And after a kill: the mark of the boot, which came back with the answer, goes once more."""
    folder, copy = tmp_path / "one", tmp_path / "copy"
    broker = Broker(folder)
    broker.start()
    broker.stop()
    shutil.copytree(folder, copy)
    broker.start()
    broker.stop()
    shutil.rmtree(folder)
    copy.rename(folder)
    store = broker.start()  # a controller answers
    assert outdated(store) == [True]
    other = Broker(tmp_path / "other")
    other.known, other.last = broker.known, broker.last
    other.start()
    other.stop()
    assert not store.dirs.compare_editions(other.known, other.last)
    broker.known = other.known
    broker.write(broker.begin())
    broker.kill()  # before a controller answers
    assert not broker.start("compared").dirs.kept_all
    broker.kill()


def test_what_the_version_before_wrote_accepts_all_dirs(broker: Broker, tmp_path: Path) -> None:
    node = msgspec.json.decode(msgspec.json.encode({"dirs": broker.known, "version": 1}), type=EditionsNode)
    assert node.dirs == broker.known
    broker.last = node.last
    broker.dirs = (*broker.dirs, tmp_path / "three")
    assert outdated(broker.start("compared")) == [False, False, False]
    broker.kill()
    broker.dirs = broker.dirs[:1]
    broker.last = []
    assert outdated(broker.start("compared")) == [False]
    broker.kill()


def test_a_dir_that_failed_and_comes_back_is_found(broker: Broker, tmp_path: Path) -> None:
    store = broker.start()
    store.dirs.failed(store.dirs[1], OSError(5, "input/output error"))
    broker.stop()
    assert len(broker.last) == 1
    assert outdated(broker.start()) == [False, True]
    for folder in broker.store.dirs:
        broker.store.dirs.failed(folder, OSError(5, "input/output error"))
    broker.stop()
    assert len(broker.last) == 2
    broker.dirs = (tmp_path / "other",)
    broker.start()
    broker.stop()
    broker.dirs = (tmp_path / "one", tmp_path / "two")
    assert outdated(broker.start()) == [True, True]
    broker.kill()


def test_a_dir_of_a_time_before_editions_is_an_older_copy_once_there_are_some(broker: Broker) -> None:
    (broker.dirs[1] / EDITION).unlink()
    store = broker.start()
    assert outdated(store) == [False, True]
    broker.stop()
    (broker.dirs[0] / EDITION).write_bytes(b"?")
    store = broker.start()
    assert outdated(store) == [True, False]
    meta = store.dirs[0].meta
    assert meta is not None
    assert int((broker.dirs[0] / EDITION).read_bytes()) == broker.known[encode_uuid(meta.directory_id)]
    broker.kill()


def test_where_the_disk_is_full_nothing_is_claimed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: OsDisk, path: str, data: bytes) -> None:
        if path.endswith(EDITION):
            raise OSError(28, "no space left on device")
        real(self, path, data)

    real = OsDisk.replace_file
    known = dict(broker.known)
    with monkeypatch.context() as patch:
        patch.setattr(OsDisk, "replace_file", full)
        broker.start()
        assert broker.known == known
        assert broker.last == sorted(known)
        broker.kill()
    assert broker.start().dirs.kept_all
    broker.kill()


def test_a_dir_of_an_old_version_that_has_no_id_is_given_one_that_lasts(tmp_path: Path) -> None:
    meta = tmp_path / "one" / "meta.properties"
    meta.parent.mkdir()
    meta.write_text("#\nversion=0\ncluster.id=\nbroker.id=0\n")
    broker = Broker(tmp_path / "one")
    for _ in range(3):
        store = broker.start()
        assert outdated(store) == [False]
        broker.stop()
    assert broker.last == list(broker.known)
    assert meta.read_text() == f"#\nversion=0\ncluster.id=\nbroker.id=0\ndirectory.id={broker.last[0]}\n"


def test_a_dir_whose_last_stop_the_registry_did_not_hear_of_is_outdated_if_a_copy_worked_since(
    tmp_path: Path,
) -> None:
    one, copy = tmp_path / "one", tmp_path / "copy"
    broker = Broker(one)
    broker.start()
    shutil.copytree(one, copy)  # while it works
    broker.begin()
    broker.store.close()
    broker.dirs = (copy,)
    broker.start()
    broker.kill()
    broker.dirs = (one,)
    assert outdated(broker.start()) == [True]
    broker.stop()
