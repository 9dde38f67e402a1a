"""Where replicas of a log start: records that were deleted, and followers that were away for long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes, run, until


def test_deleted_records_are_deleted_on_every_replica(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        for number in range(10):
            await nodes[1].send(b"%d" % number)
        deleted = nodes[1].partition().delete_records(6)
        assert deleted is not None
        await deleted
        for number in (2, 3):
            assert nodes[number].partition().log.start_offset == 6
        await nodes.stop(3)
        assert nodes[1].partition().delete_records(6) is None

    run(test, tmp_path)


def test_records_are_deleted_when_followers_say_so_that_a_new_leader_has_not_heard_of(tmp_path: Path) -> None:
    """They may lead next, and would show what was deleted."""

    async def test(nodes: Nodes) -> None:
        await nodes.create()
        for number in range(10):
            await nodes[1].send(b"%d" % number)
        nodes.elect(2, [1, 2, 3])
        await nodes.tell(2)  # the others do not know yet whom to ask
        deleted = nodes[2].partition().delete_records(6)
        assert deleted is not None
        await nodes.tell(1)
        await until(lambda: nodes[1].partition().log.start_offset == 6)
        assert not deleted.done()
        await nodes.tell(3)
        await deleted
        assert nodes[3].partition().log.start_offset == 6

    run(test, tmp_path)


def test_a_follower_that_was_away_for_long_begins_where_its_leader_does(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        await nodes[1].send(b"old")
        await nodes.stop(2)
        nodes.elect(1, [1])
        await nodes.tell(1)
        for number in range(10):
            nodes[1].append(b"%d" % number)
        nodes[1].partition().log.roll()
        nodes[1].partition().delete_records(8)
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])
        log = nodes[2].partition().log
        assert (log.start_offset, log.end_offset) == (8, 11)
        await nodes[1].send(b"on")
        await until(lambda: nodes[2].partition().high_watermark == 12)
        assert nodes[2].content() == nodes[1].content()

    run(test, tmp_path, count=2)


@pytest.mark.parametrize("has_log", [True, False], ids=["an old log", "an empty folder"])
def test_a_follower_begins_in_the_middle_of_a_batch_if_its_leader_does(tmp_path: Path, has_log: bool) -> None:
    """The leader deleted records up to there; it has no other way than to send the whole batch."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        await nodes[1].send(b"old")
        await nodes.stop(2)
        if not has_log:
            shutil.rmtree(nodes[2].path)
        nodes.elect(1, [1])
        await nodes.tell(1)
        for number in range(5):
            nodes[1].append(*[b"%d" % number] * 10)
        nodes[1].partition().delete_records(25)
        await nodes.start(2)
        await nodes.tell(2, is_new=not has_log)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])
        await nodes[1].send(b"on")
        await nodes[2].until_committed(52)
        log = nodes[2].partition().log
        assert (log.start_offset, log.end_offset) == (25, 52)
        assert log.segments.first.base_offset == 21
        assert nodes[2].content() == nodes[1].content()
        await nodes.stop(2)
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        log = nodes[2].partition().log
        assert (log.start_offset, log.end_offset) == (25, 52)

    run(test, tmp_path, count=2)
