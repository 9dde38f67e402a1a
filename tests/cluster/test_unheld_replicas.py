"""Replicas whose logs cannot be made, and what becomes of them later."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from millstream.broker import cluster_state
from millstream.storage.os_disk import OsDisk
from tests.cluster.brokers import Brokers, run, until


class FullDisk(OsDisk):
    """A disk on which no folder can be made while it is full."""

    def __init__(self) -> None:
        super().__init__(max_open_files=100)
        self.is_full = False
        self.refusals = 0

    def makedirs(self, path: str) -> None:
        if self.is_full:
            self.refusals += 1
            raise OSError(errno.ENOSPC, "no space left")
        super().makedirs(path)


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
