"""What `millstream doctor` says of a cluster that lacks something."""

from __future__ import annotations

from dataclasses import replace

from millstream.cli.checks import Check, State
from millstream.cli.cluster_checks import cluster_checks
from millstream.client.health import Health
from millstream.client.metadata import Partition
from millstream.model import TopicPartition

FINE = Health(1, [1, 2, 3], [], 2)


def offline(*replicas: int, number: int = 0) -> dict[TopicPartition, Partition]:
    return {TopicPartition("t", number): Partition(number, -1, 0, replicas, ())}


def checks(health: Health) -> dict[str, Check]:
    return {check.name: check for check in cluster_checks(health, 1)}


def test_a_whole_cluster_is_good() -> None:
    assert cluster_checks(FINE, 1) == [Check("partitions", State.GOOD, "2 partitions in 1 topic")]


def test_only_brokers_that_are_not_there_are_to_be_started() -> None:
    """Who runs, and has lost a log dir, was to be started too."""
    health = replace(FINE, brokers=[1, 2], missing_brokers=[3], offline=offline(3, 2))
    found = checks(health)
    assert found["partitions"].state is State.BAD
    assert found["partitions"].advice == "Start broker 3."
    assert found["missing brokers"].found.endswith(": 3")
    dead = checks(replace(FINE, offline=offline(2, 1)))
    assert dead["partitions"].advice == "See `millstream cluster health`, and the log of brokers 1, 2."
    assert "missing brokers" not in dead
    both = replace(health, offline=offline(3) | offline(2, number=1))
    assert checks(both)["partitions"].advice == (
        "Start broker 3. See `millstream cluster health`, and the log of broker 2."
    )


def test_without_a_controller_nobody_says_that_partitions_are_well() -> None:
    found = checks(replace(FINE, controller=None))
    assert found["controller"].state is State.BAD
    assert found["partitions"].state is State.NOTE
    assert "as last known" in found["partitions"].found


def test_log_dirs_that_are_full_or_failed_are_named() -> None:
    found = cluster_checks(replace(FINE, failed_dirs={1: ["/a"]}, full_dirs={2: ["/b", "/c"]}), 1)
    assert [(check.state, check.found) for check in found if check.name == "log dir"] == [
        (State.BAD, "/a of broker 1 has failed"),
        (State.BAD, "/b of broker 2 is full"),
        (State.BAD, "/c of broker 2 is full"),
    ]
