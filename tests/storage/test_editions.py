"""An older copy of a log dir is told from the dir itself, and from nothing else."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from random import Random

import pytest

from millstream.clock import SystemClock
from millstream.model import encode_uuid
from millstream.storage.os_disk import OsDisk
from millstream.storage.store import Store

EDITION = ".millstream_edition"


class Broker:
    """A store with some log dirs, and what a registry would know of them."""

    def __init__(self, *dirs: Path) -> None:
        self.dirs = dirs
        self.known: dict[str, int] = {}
        self.store = Store([], OsDisk(), SystemClock(), random=Random(1))

    def start(self, stage: str = "all") -> Store:
        """Come as far as a stage; `stop` or `kill` comes next."""
        store = self.store = Store(
            [str(path) for path in self.dirs], OsDisk(), SystemClock(), random=Random(2), boot_id="boot"
        )
        store.open()
        store.dirs.compare_editions(self.known)
        if stage != "compared":
            begun = store.dirs.begin_edition(self.known)
            if stage != "begun":
                self.known |= begun
                store.accept_new_dirs()
                store.dirs.mark_boot()
        return store

    def kill(self) -> None:
        self.store.close(clean=False)

    def stop(self) -> None:
        self.known |= self.store.dirs.begin_edition(self.known)
        self.store.close()


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
    known = broker.known
    broker.known = {}  # it knows nothing yet, or no more
    assert broker.start().dirs.kept_all
    broker.stop()
    assert broker.known.keys() == known.keys()
    assert all(broker.known[id_] > known[id_] for id_ in known)
    broker.known = known  # it lost its newest writes
    assert broker.start().dirs.kept_all
    broker.kill()
    broker.dirs = (*broker.dirs, tmp_path / "three")
    store = broker.start()
    assert outdated(store) == [False, False, False]
    assert len(broker.known) == 3
    broker.kill()


def test_a_dir_that_was_away_for_a_while_is_no_older_copy(broker: Broker, tmp_path: Path) -> None:
    away = tmp_path / "away"
    broker.dirs[1].rename(away)
    both, broker.dirs = broker.dirs, broker.dirs[:1]
    for _ in range(2):
        broker.start()
        broker.kill()
    broker.dirs = both
    away.rename(both[1])
    assert outdated(broker.start()) == [False, False]
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
        broker.kill()
    assert broker.start().dirs.kept_all
    broker.kill()
