"""The cluster that tests are given: what it starts, ends and leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from millstream.testing import Cluster


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_brokers_are_processes_that_end_with_the_block() -> None:
    with Cluster(brokers=2) as cluster:
        data = cluster.data
        pids = [member.pid for member in cluster.members.values()]
        assert all(map(is_alive, pids))
        assert cluster.health().brokers == [1, 2]
        assert cluster.create_topic("t", 2, replication_factor=2) == "t"
        assert {cluster.leader("t", index) for index in range(2)} == {1, 2}
        assert cluster.wait_until_healthy().partitions == 2
        assert [(data / f"broker-{number}" / "pid").read_text() for number in (1, 2)] == [
            f"{pid}\n" for pid in pids
        ]
    assert not any(map(is_alive, pids))
    assert not data.exists()


def test_brokers_stop_pause_return_and_are_added(tmp_path: Path) -> None:
    with Cluster(brokers=2, data=tmp_path / "data") as cluster:
        cluster.create_topic("t", 1, assignment={0: [1, 2]})
        with pytest.raises(RuntimeError, match="runs"):
            cluster[1].wipe()
        with pytest.raises(RuntimeError, match="runs already"):
            cluster.start_broker(1)
        cluster.stop_broker(1)
        cluster.wait_for_brokers({2})
        assert cluster.leader("t") == 2
        cluster.start_broker(1)
        cluster.wait_until_healthy()
        cluster[1].kill()
        assert not cluster[1].is_running
        assert not cluster.wait_until(lambda health: health.missing_brokers == [1]).is_healthy
        cluster[1].wipe()
        cluster.start_broker(1)
        cluster.wait_until_healthy()
        assert cluster.add_broker().id == 3
        cluster.wait_for_brokers({1, 2, 3})
        cluster[3].pause()
        cluster[3].resume()
    assert (tmp_path / "data" / "broker-3").is_dir()
    with Cluster(brokers=3, data=tmp_path / "data") as cluster:
        assert cluster.wait_until_healthy().partitions == 1


def test_a_broker_that_cannot_start_is_told_with_what_it_said() -> None:
    with pytest.raises(RuntimeError, match=r"num\.partitons"):
        Cluster(brokers=2, config={"num.partitons": "1"}).start()


def test_waiting_has_an_end() -> None:
    with Cluster(brokers=1) as cluster:
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="did not become so"):
            cluster.wait_for_brokers({1, 2}, 0.5)
        assert time.monotonic() - begun < 10
