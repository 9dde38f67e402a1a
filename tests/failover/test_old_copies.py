"""A broker's folder that is replaced by an older copy of it, and kills that must not look like that."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys

import pytest

from millstream.controller import tree
from millstream.registry.sqlite import SqliteRegistry
from millstream.testing import Cluster
from tests.failover.load import Writer, check, read_all

SAFE = {"min.insync.replicas": "2"}

KILLED_AT = """
import os, signal, sys
from millstream.broker.cluster_state import ClusterState
from millstream.broker.editions import Editions
from millstream.broker.membership import Membership
from millstream.cli.main import run
from millstream.storage.log_dirs import LogDirs

def dies(kind, name, is_after):
    real = getattr(kind, name)
    def end():
        os.kill(os.getpid(), signal.SIGKILL)
    async def awaited(*words, **named):
        if is_after:
            await real(*words, **named)
        end()
    def called(*words):
        real(*words)
        end()
    setattr(kind, name, called if kind is LogDirs else awaited)

match sys.argv.pop(1):
    case "before it registers":
        dies(Membership, "join", False)
    case "when it has registered":
        dies(Editions, "_begin", False)
    case "when its dirs are written":
        dies(LogDirs, "begin_edition", True)
    case "when the registry is written":
        dies(Editions, "_begin", True)
    case "when it has heard from the controller":
        dies(ClusterState, "start", True)
sys.exit(run(sys.argv[1:]))
"""

ROUNDS = (
    ("before it registers", "when it has registered", "when its dirs are written"),
    ("when the registry is written", "when it has heard from the controller", "when its dirs are written"),
)
"""The stage at which each of the three is killed."""


@pytest.mark.parametrize("is_hot", [False, True], ids=["of a stop", "of a run"])
def test_an_older_copy_that_starts_first_does_not_lead(cluster: Cluster, is_hot: bool) -> None:
    """All were stopped, the others are healthy: what is acknowledged stays."""
    topic = cluster.create_topic("t", 2, replication_factor=3, configs=SAFE)
    copy = cluster.data / "copy"
    with Writer(cluster.bootstrap, topic) as early:
        early.wait_for(100)
        early.stop()
    if not is_hot:
        cluster.stop_broker(1)
    shutil.copytree(cluster[1].folder, copy)
    if not is_hot:
        cluster.start_broker(1)
        cluster.wait_until_healthy()
    with Writer(cluster.bootstrap, topic) as late:
        late.wait_for(200)
        late.stop()
    for broker_id in (2, 3, 1):  # the last of them is the one in sync
        cluster.stop_broker(broker_id)
    shutil.rmtree(cluster[1].folder)
    copy.rename(cluster[1].folder)
    cluster.start_broker(1)
    health = cluster.wait_until(lambda health: health.brokers == [1])
    assert len(health.offline) == 2
    assert "is an older copy" in cluster[1].output
    for broker_id in (2, 3):
        cluster.start_broker(broker_id)
    cluster.wait_until_healthy()
    found = read_all(cluster.bootstrap, topic, 2)
    for writer in (early, late):
        for value, (partition, offset) in writer.acknowledged.items():
            assert found[partition][offset] == value
    cluster[1].kill()
    cluster.start_broker(1)
    cluster.wait_until_healthy()
    assert cluster[1].output.count("is an older copy") == 1


def test_kills_around_the_registration_are_no_loss(cluster: Cluster) -> None:
    """All at once, each at another stage: the cluster comes back, and nobody counts as one that lost some."""
    topic = cluster.create_topic("t", 2, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        writer.wait_for(100)
        writer.stop()
    for stages in ROUNDS:
        for member in cluster.members.values():
            member.kill()
        killed = [
            subprocess.Popen(
                [sys.executable, "-c", KILLED_AT, stage, "serve", *cluster._words(broker_id)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for broker_id, stage in zip(cluster.members, stages, strict=True)
        ]
        try:
            assert [process.wait(60) for process in killed] == [-signal.SIGKILL] * 3
        finally:
            for process in killed:
                process.kill()
        for broker_id in cluster.members:
            cluster.start_broker(broker_id, is_awaited=False)
        for member in cluster.members.values():
            member.wait_until_ready(60)
        cluster.wait_until_healthy()
        assert kept_all(cluster) == {1: True, 2: True, 3: True}, stages
        check(read_all(cluster.bootstrap, topic, 2), writer)


def kept_all(cluster: Cluster) -> dict[int, bool]:
    """What each broker said of itself when it registered."""

    async def read() -> dict[int, bool]:
        registry = SqliteRegistry(str(cluster.data / "registry.db"), 6000)
        await registry.start()
        try:
            nodes = {name: await registry.get(f"{tree.BROKERS}/{name}") for name in "123"}
        finally:
            await registry.close()
        return {int(name): json.loads(node.data)["was_clean"] for name, node in nodes.items()}

    return asyncio.run(read())
