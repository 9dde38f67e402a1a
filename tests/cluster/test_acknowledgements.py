"""When a record is committed and acknowledged, and what a leader may say of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from millstream.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
)
from millstream.protocol.batch import Codec
from millstream.storage.log import Appended
from tests.cluster.nodes import Nodes, batch, run, until


def test_what_is_acknowledged_is_known_to_be_committed_everywhere(tmp_path: Path) -> None:
    """So that a replica that is left alone, and may commit nothing by itself, serves it."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2")
        for number in range(20):
            await nodes[1].send(b"%d" % number)
            assert [nodes[one].partition().high_watermark for one in (1, 2, 3)] == [number + 1] * 3
        nodes[1].append(b"not acknowledged")
        leader = nodes[1].partition()
        await nodes.stop(1, 2)
        nodes.elect(3, [3])
        await nodes.tell(3)
        # the last one may have been committed while the others stopped, but by their leader only
        assert 20 <= nodes[3].partition().high_watermark <= leader.high_watermark

    run(test, tmp_path)


def test_a_new_leader_acknowledges_what_is_sent_again(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2")
        sent = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        appended = nodes[1].partition().append(bytearray(sent), -1, 9)
        assert isinstance(appended, Appended)
        waiting = nodes[1].partition().when_acknowledged(-1, appended)
        assert waiting is not None
        await waiting
        nodes.elect(2, [1, 2, 3])
        await nodes.tell()
        leadership = nodes[2].partition().leadership
        assert leadership is not None
        await until(lambda: all(one.high_watermark == 1 for one in leadership.followers.values()))
        again = nodes[2].partition().append(bytearray(sent), -1, 9)
        assert isinstance(again, Appended)
        assert again.is_duplicate
        assert nodes[2].partition().when_acknowledged(-1, again) is None

    run(test, tmp_path)


def test_nothing_is_committed_before_every_in_sync_replica_has_it(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        await nodes.stop(3)
        appended = nodes[1].append(b"b", acks=-1)
        waiting = nodes[1].partition().when_acknowledged(-1, appended)
        assert waiting is not None
        await until(lambda: nodes[2].partition().log.end_offset == 2)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert nodes[1].partition().high_watermark == 1
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])  # node 3 lags for too long
        await waiting
        assert nodes[1].partition().high_watermark == 2

    run(test, tmp_path, replica_lag_time_max_ms="1200", replica_fetch_wait_max_ms="300")


def test_too_few_in_sync_replicas(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2")
        await nodes[1].send(b"a")
        await nodes.stop(2, 3)
        waiting = nodes[1].partition().when_acknowledged(-1, nodes[1].append(b"b", acks=-1))
        assert waiting is not None
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await waiting
        assert nodes.topic.partitions[0].isr == [1]
        with pytest.raises(NotEnoughReplicas):
            nodes[1].append(b"c", acks=-1)
        assert nodes[1].append(b"c", acks=1).base_offset == 2
        assert nodes[1].partition().high_watermark == 1  # two replicas must have what is committed
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        await until(lambda: nodes[1].partition().state.isr == [1, 2])
        await nodes[1].send(b"d")
        assert nodes[1].partition().high_watermark == 4

    run(test, tmp_path, replica_lag_time_max_ms="1200", replica_fetch_wait_max_ms="300")


def test_both_the_old_and_the_proposed_replicas_count_while_a_change_is_pending(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        nodes.holds = True
        await nodes.stop(3)
        leadership = nodes[1].partition().leadership
        assert leadership is not None
        nodes[1].append(b"b")
        await until(lambda: leadership.proposed == [1, 2])
        await until(lambda: nodes[2].partition().log.end_offset == 2)
        await asyncio.sleep(0.1)
        assert nodes[1].partition().high_watermark == 1  # the controller may still count on node 3
        nodes.holds = False
        await until(lambda: nodes[1].partition().high_watermark == 2)
        nodes.holds = True
        await nodes.start(3)
        await nodes.tell(3, is_new=False)
        await until(lambda: leadership.proposed == [1, 2, 3])
        await nodes.stop(3)
        nodes[1].append(b"c")
        await until(lambda: nodes[2].partition().log.end_offset == 3)
        await asyncio.sleep(0.1)
        assert nodes[1].partition().high_watermark == 2  # node 3 may be in sync by now, and be elected
        nodes.holds = False
        await until(lambda: nodes[1].partition().high_watermark == 3)

    run(test, tmp_path, replica_lag_time_max_ms="1200", replica_fetch_wait_max_ms="300")


def test_without_its_lease_a_leader_takes_and_commits_nothing(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        appended = nodes[1].append(b"b", acks=-1)
        waiting = nodes[1].partition().when_acknowledged(-1, appended)
        assert waiting is not None
        nodes[1].has_lease = False
        for acks in (0, 1, -1):
            with pytest.raises(NotLeaderOrFollower):
                nodes[1].append(b"c", acks=acks)
        await until(lambda: nodes[3].partition().log.end_offset == nodes[2].partition().log.end_offset == 2)
        await asyncio.sleep(0.1)
        assert nodes[1].partition().high_watermark == 1
        assert not waiting.done()
        nodes[1].has_lease = True  # it was only late
        await waiting
        assert nodes[1].partition().high_watermark == 2
        nodes[1].has_lease = False
        waiting = nodes[1].partition().when_committed(3)
        assert waiting is not None
        nodes[1].replicas.session_lost()
        with pytest.raises(NotLeaderOrFollower):
            await waiting
        nodes[1].has_lease = True
        with pytest.raises(NotLeaderOrFollower):
            nodes[1].append(b"c")
        nodes.elect(2, [2, 3])
        await nodes.tell()
        await nodes[2].send(b"d")
        await until(lambda: nodes[1].partition().high_watermark == 3)
        assert nodes[1].content() == nodes[2].content()

    run(test, tmp_path)


def test_a_leader_of_a_single_replica_needs_no_lease(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1])
        nodes[1].has_lease = False
        nodes[1].replicas.session_lost()
        await nodes[1].send(b"a")  # nobody else could lead
        assert nodes[1].partition().high_watermark == 1

    run(test, tmp_path, count=1)


def test_a_batch_that_was_checked_in_a_thread_is_not_acknowledged_by_what_came_in_its_place(
    tmp_path: Path,
) -> None:
    """Its request may wait for another partition first: meanwhile another broker can lead, without it."""

    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        await nodes.stop(2, 3)
        partition, noise = nodes[1].partition(), Random(1)
        large = partition.append(batch(noise.randbytes(1 << 17), codec=Codec.LZ4), -1, 9)
        assert isinstance(large, asyncio.Future)
        appended = await large
        assert appended.last_offset == 1
        await nodes.start(2, 3)
        nodes.elect(2, [2, 3])
        await nodes.tell()
        await nodes[2].send(b"in its place", b"and after it")
        await nodes[1].until_committed(3)
        with pytest.raises(NotLeaderOrFollower):
            partition.when_acknowledged(-1, appended)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2, 3])
        nodes.elect(1, [1, 2, 3])
        await nodes.tell()
        await nodes[1].send(b"last")
        with pytest.raises(NotLeaderOrFollower):
            partition.when_acknowledged(-1, appended)

    run(test, tmp_path)


def test_those_who_wait_are_told_when_another_broker_leads(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        seen: list[str] = []
        nodes[1].replicas.on_resign = lambda partition: seen.append(f"resigned {partition.name}")
        nodes[2].replicas.on_lead = lambda partition: seen.append(f"leads {partition.name}")
        await nodes[1].send(b"a")
        await nodes.stop(3)
        waiting = nodes[1].partition().when_acknowledged(-1, nodes[1].append(b"b", acks=-1))
        committed = nodes[1].partition().when_committed(2)
        assert waiting is not None
        assert committed is not None
        nodes.elect(2, [2])
        await nodes.tell()
        for future in (waiting, committed):
            with pytest.raises(NotLeaderOrFollower):
                await future
        assert seen == ["resigned orders-0", "leads orders-0"]
        old = nodes.topic.partitions[0]
        await nodes[1].replicas.apply(  # older news change nothing
            replace(nodes.topic, partitions=[replace(old, leader=1, leader_epoch=0, version=0)])
        )
        with pytest.raises(NotLeaderOrFollower):
            nodes[1].append(b"c")

    run(test, tmp_path)


def test_a_new_leader_says_where_the_end_is_only_once_it_knows(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        await nodes.stop(1, 3, is_clean=False)
        partition = nodes[2].partition()
        partition.high_watermark = 0  # it had not heard of the last commit
        nodes.elect(2, [2, 3])
        await nodes.tell(2)
        with pytest.raises(OffsetNotAvailable):
            partition.check_available()
        await nodes.start(3)
        await nodes.tell(3, is_new=False)
        await until(lambda: partition.high_watermark == 1)
        partition.check_available()

    run(test, tmp_path)


def test_a_restarted_leader_says_where_the_end_is_only_once_it_knows(tmp_path: Path) -> None:
    """Alone in sync, it leads on in the epoch in which it led before."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2", replicas=[1, 2])
        await nodes[1].send(b"a")
        nodes[1].partition().check_available()
        await nodes.stop(1, 2, is_clean=False)
        nodes.topic.partitions[0].isr = [1]
        (nodes[1].path / "replication-offset-checkpoint").unlink()  # as if it had been killed before
        await nodes.start(1)
        await nodes.tell(1, is_new=False)
        partition = nodes[1].partition()
        with pytest.raises(OffsetNotAvailable):
            partition.check_available()
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        await until(lambda: partition.high_watermark == 1)
        partition.check_available()

    run(test, tmp_path)
