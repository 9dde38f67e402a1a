"""Replicas of a partition on three nodes: copying, committing, and what becomes of it in failures."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.cluster.fetcher import Fetcher
from millstream.cluster.metadata import PartitionState
from millstream.cluster.partition import Partition
from millstream.errors import FetchSessionIdNotFound, KafkaStorageError, NotLeaderOrFollower
from millstream.protocol.messages import FetchRequest, FetchResponse
from millstream.storage.log import Log
from tests.cluster.nodes import TOPIC, TOPIC_ID, Nodes, run, until


def test_followers_copy_everything_and_acks_all_waits_for_them(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2")
        leader = nodes[1]
        for number in range(50):
            await leader.send(b"a%d" % number, b"b" * 100)
        assert leader.partition().high_watermark == 100
        for follower in (nodes[2], nodes[3]):
            assert follower.partition().log.end_offset == 100
            await follower.until_committed(100)
            assert follower.content() == leader.content()
            with pytest.raises(NotLeaderOrFollower):
                follower.append(b"x")

    run(test, tmp_path)


def test_an_empty_folder_is_filled_before_its_replica_is_in_sync(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2", segment_bytes="1048576")
        for number in range(40):
            await nodes[1].send(b"%d" % number, bytes(100_000))
        await nodes.stop(3)
        shutil.rmtree(nodes[3].path)
        nodes.elect(1, [1, 2])
        await nodes.tell()
        nodes.holds = True
        await nodes.start(3)
        await nodes.tell(3, is_new=False)
        await until(lambda: nodes[3].partition().log.end_offset == 80)
        await until(lambda: nodes[1].partition().leadership.proposed == [1, 2, 3])  # type: ignore[union-attr]
        assert nodes.topic.partitions[0].isr == [1, 2]
        nodes.holds = False
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2, 3])
        await nodes.stop(1, 2)
        nodes.elect(3, [3])
        nodes.topic.overrides = {}
        nodes[3].replicas.configure(nodes.topic)
        await nodes.tell(3)
        assert nodes[3].partition().high_watermark == 80
        assert nodes[3].content().count(bytes(100_000)) == 40

    run(test, tmp_path)


def test_a_follower_that_began_again_is_not_admitted_for_what_it_had_before(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        nodes.elect(1, [1])
        nodes.holds = True
        await nodes.tell()
        await until(lambda: nodes[1].partition().leadership.proposed == [1, 2])  # type: ignore[union-attr]
        await nodes.stop(2)
        await nodes.start(2)  # in a new broker epoch, and without having fetched
        nodes.holds = False
        await until(lambda: [1, 2] in nodes.proposals)
        await until(lambda: nodes[1].partition().leadership.proposed is None)  # type: ignore[union-attr]
        assert nodes.topic.partitions[0].isr == [1]
        await nodes.tell(2, is_new=False)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])

    run(test, tmp_path, count=2)


def test_a_replica_that_is_assigned_elsewhere_is_deleted(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        folder = nodes[3].partition().log.folder
        nodes.topic.partitions[0].replicas = [1, 2]
        nodes.elect(1, [1, 2])
        await nodes.tell()
        assert nodes[3].replicas.topic("orders") == {}
        assert not Path(folder).exists()
        await nodes[1].send(b"b")
        assert nodes[1].partition().high_watermark == 2

    run(test, tmp_path)


def test_a_fetch_is_about_what_changed_however_many_partitions_there_are(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(partitions=60)
        for index in range(60):
            await nodes[1].send(b"%d" % index, index=index)
        before = nodes[1].fetches
        started = asyncio.get_running_loop().time()
        for _ in range(100):
            await nodes[1].send(b"again", index=7)
        took_s = asyncio.get_running_loop().time() - started
        assert nodes[1].fetches - before < 1000
        assert took_s < 2.0
        assert all(nodes[3].partition(index).log.end_offset >= 1 for index in range(60))

    run(test, tmp_path)


def test_a_new_partition_is_copied_at_once_though_the_fetch_for_others_waits(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        await asyncio.sleep(0.1)
        nodes.topic.partitions.append(replace(nodes.topic.partitions[0], leader_epoch=0, version=0))
        nodes.topic.partitions[1].isr = [1, 2, 3]
        await nodes.tell()
        started = asyncio.get_running_loop().time()
        await nodes[1].send(b"b", index=1)
        assert asyncio.get_running_loop().time() - started < 2.0

    run(test, tmp_path, replica_fetch_wait_max_ms="10000")


def test_watermarks_are_remembered_over_a_restart(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        for number in range(5):
            await nodes[1].send(b"%d" % number)
        await until(lambda: nodes[2].partition().high_watermark == 5)
        await nodes.stop(2)
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        assert nodes[2].partition().high_watermark == 5

    run(test, tmp_path)


@pytest.mark.parametrize("replicas", [[1], [1, 2, 3]])
def test_a_broker_whose_number_another_has_leads_nothing_until_it_is_told_again(
    tmp_path: Path, replicas: list[int]
) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=replicas)
        await nodes[1].send(b"x")
        nodes[1].replicas.replaced()
        with pytest.raises(NotLeaderOrFollower):
            nodes[1].append(b"y")
        await nodes.tell(1, is_new=False)
        await nodes[1].send(b"z")

    run(test, tmp_path)


def test_a_partition_that_is_moved_is_not_under_replicated_by_that(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        nodes.holds = True  # nobody gets into the ISR
        state = nodes.topic.partitions[0]
        state.replicas, state.adding = [1, 2, 3], [3]
        state.version += 1
        await nodes.tell(is_new=False)
        assert nodes[1].exported("under_replicated_partitions") == 0
        nodes.elect(1, [1])
        await nodes.tell(is_new=False)
        assert nodes[1].exported("under_replicated_partitions") == 1
        nodes.holds = False

    run(test, tmp_path)


def test_what_is_exported_of_replication(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2")
        for _ in range(5):
            await nodes[1].send(b"x" * 1000)
        assert nodes[1].exported("leaders") == 1
        assert nodes[2].exported("leaders") == 0
        assert nodes[1].exported("under_replicated_partitions") == 0
        copied = nodes[2].exported("replicated_bytes_in_total")
        assert copied == nodes[2].partition().log.size_bytes
        assert nodes[1].exported("replicated_bytes_out_total") >= 2 * copied
        await nodes.stop(2, 3)
        nodes[1].append(b"y")
        await until(lambda: nodes[1].partition().state.isr == [1])
        assert nodes[1].exported("under_replicated_partitions") == 1
        assert nodes[1].exported("under_min_isr_partitions") == 1
        assert nodes[1].exported("isr_shrinks_total") >= 2
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        await until(lambda: nodes[1].partition().state.isr == [1, 2])
        assert nodes[1].exported("isr_expansions_total") >= 1

    run(test, tmp_path, replica_lag_time_max_ms="1200", replica_fetch_wait_max_ms="300")


def test_a_partition_that_gains_replicas_has_them_copied_and_then_counts_them(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1], min_insync_replicas="2")
        for number in range(10):
            await nodes[1].send(b"%d" % number)
        state = nodes.topic.partitions[0]
        state.replicas, state.adding, state.version = [1, 2, 3], [2, 3], state.version + 1
        await nodes.tell()
        await until(lambda: nodes[1].partition().state.isr == [1, 2, 3])
        await nodes[1].send(b"with all")
        for number in (2, 3):
            await nodes[number].until_committed(11)
            assert nodes[number].content() == nodes[1].content()

    run(test, tmp_path)


def test_a_damaged_batch_is_not_copied(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(partitions=2, replicas=[1, 2])
        await nodes[1].send(b"good")
        await nodes.stop(2)
        nodes.elect(1, [1])
        await nodes.tell(1)
        await nodes[1].send(b"to be damaged")
        log = nodes[1].partition().log
        path = Path(log.folder) / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        await nodes[1].send(b"elsewhere", index=1)
        assert nodes[2].partition(1).log.end_offset == 1  # the others go on
        assert nodes[2].partition(0).log.end_offset == 1
        assert nodes.topic.partitions[0].isr == [1]

    run(test, tmp_path, count=2)


def test_a_session_that_was_replaced_while_the_disk_was_read_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower whose connection breaks time and again while it catches up from a cold disk."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        await nodes[1].send(b"a")
        leader, sessions = nodes[1].partition(), nodes[1].replicas.sessions
        assert sessions is not None
        read, may_read = leader.log.read, threading.Event()

        def read_cold(*arguments: Any, nowait: bool = False, **options: Any) -> Any:
            if nowait:
                raise BlockingIOError
            may_read.wait(10)
            return read(*arguments, **options)

        await nodes.stop(2)
        monkeypatch.setattr(leader.log, "read", read_cold)
        wanted = FetchRequest.FetchPartition(
            partition=0,
            current_leader_epoch=0,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=0,
            partition_max_bytes=1 << 20,
        )
        fetches: list[Any] = []
        for _ in range(3):
            request = FetchRequest(
                replica_state=FetchRequest.ReplicaState(replica_id=2, replica_epoch=1000),
                max_wait_ms=500,
                session_epoch=0,
                min_bytes=1,
                topics=[FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])],
            )
            fetches.append(sessions.fetch(request))
            await asyncio.sleep(0.05)
        may_read.set()
        found = await asyncio.gather(*fetches, return_exceptions=True)
        assert [type(one) for one in found] == [FetchSessionIdNotFound, FetchSessionIdNotFound, FetchResponse]
        assert len(leader.watchers) == 1

    run(test, tmp_path, count=2)


def test_a_follower_says_nothing_of_records_that_it_could_not_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an acknowledgement means fsynced: not after a full disk, and not after it began again."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2], min_insync_replicas="2")
        await nodes[1].send(b"flushed")

        def no_room() -> int:
            raise KafkaStorageError("no room for a checkpoint")

        follower = nodes[2].partition()
        with monkeypatch.context() as patch:
            patch.setattr(follower.log, "flush", no_room)
            nodes[1].append(b"not flushed", acks=1)
            await until(lambda: follower.log.end_offset == 2)
            await asyncio.sleep(0.5)
            assert nodes[1].partition().high_watermark == 1
            nodes.elect(1, [1, 2])  # another epoch: all places are told anew
            await nodes.tell()
            await asyncio.sleep(0.3)
            assert nodes[1].partition().high_watermark == 1
            await nodes.stop(2, is_clean=False)
            patch.setattr(Log, "flush", lambda self: no_room() if "/2/" in self.folder else flush(self))
            await nodes.start(2)
            await nodes.tell(2, is_new=False)
            await asyncio.sleep(0.5)
            assert nodes[2].partition().log.end_offset == 2
            assert nodes[1].partition().high_watermark == 1
        await nodes[1].until_committed(2)

    flush = Log.flush
    run(test, tmp_path, count=2, log_flush_before_ack="true", replica_lag_time_max_ms="60000")


def test_a_replica_that_is_moved_away_and_back_while_it_is_flushed_is_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"flushed")
        log = nodes[2].partition().log
        is_flushing, may_flush, flush = threading.Event(), threading.Event(), log.flush

        def held() -> int:
            is_flushing.set()
            may_flush.wait(10)
            return flush()

        monkeypatch.setattr(log, "flush", held)
        nodes[1].append(b"not flushed", acks=1)
        await until(is_flushing.is_set)
        state = nodes.topic.partitions[0]
        for state.replicas in ([1], [1, 2]):
            state.isr = [1]
            state.version += 1
            await nodes.tell()
        may_flush.set()
        await until(lambda: nodes[2].partition().log.end_offset == 2)
        await until(lambda: state.isr == [1, 2])

    run(test, tmp_path, count=2, log_flush_before_ack="true")


def test_a_defect_costs_an_answer_and_not_the_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(partitions=2)
        await nodes[1].send(b"a")
        take, answers = Fetcher._take, iter([RuntimeError("a defect")])

        async def take_later(self: Fetcher, answer: FetchResponse) -> None:
            for error in answers:
                raise error
            await take(self, answer)

        monkeypatch.setattr(Fetcher, "_take", take_later)
        await nodes[1].send(b"b")
        await nodes.stop(3)
        failures = iter([RuntimeError("a defect")] * 2)
        accepted = Partition.isr_accepted

        def accept(self: Partition, isr: list[int], version: int) -> None:
            for error in failures:
                raise error
            accepted(self, isr, version)

        monkeypatch.setattr(Partition, "isr_accepted", accept)
        await nodes.start(3)
        await nodes.tell(3, is_new=False)
        nodes[1].append(b"more", index=1)
        await until(lambda: nodes.topic.partitions[1].isr == [1, 2, 3])
        await nodes[1].send(b"c", index=1)

    run(test, tmp_path, replica_lag_time_max_ms="1200", replica_fetch_wait_max_ms="300")


def test_a_follower_of_a_deleted_topic_counts_for_no_later_one_of_that_name(tmp_path: Path) -> None:
    """It has those records in a log that it will give up. The leader need not have heard of the deletion."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(min_insync_replicas="2")
        await nodes[1].send(b"old")
        await nodes[3].until_committed(1)
        old = nodes[3].partition()
        nodes.topic = replace(nodes.topic, topic_id=UUID(int=7))
        nodes.topic.partitions = [PartitionState([1, 2, 3], [1, 2, 3], 1, 0)]
        await nodes.tell(1, 2)
        sending = asyncio.create_task(nodes[1].send(b"new"))
        await until(lambda: nodes[2].partition().log.end_offset == 1)
        fetches = nodes[1].fetches
        await until(lambda: nodes[1].fetches > fetches + 10)  # node 3 asks for what it knows
        assert not sending.done()
        assert (old.log.end_offset, old.high_watermark) == (1, 1)
        assert nodes[1].metadata.find_by_id(TOPIC_ID) is None
        await nodes.tell(3)
        await sending
        for number in (1, 2, 3):
            await nodes[number].until_committed(1)
            assert nodes[number].content() == nodes[1].content()

    run(test, tmp_path, replica_fetch_backoff_ms="20", replica_fetch_wait_max_ms="50")


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_folder_that_does_not_say_whose_it_is_may_be_an_earlier_topics(
    tmp_path: Path, is_flushed: bool
) -> None:
    """Of a topic whose deletion its broker did not hear of: nobody leads the one that has its name now."""

    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"of an earlier topic")
        await nodes.stop(is_clean=is_flushed)
        (nodes[2].path / f"{TOPIC}-0" / "partition.metadata").write_bytes(b"version: 0\n")  # torn
        nodes.elect(-1, [1, 2, 3])
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        assert nodes[2].partition().log.end_offset == is_flushed
        assert any("stray" in one.name for one in nodes[2].path.iterdir()) != is_flushed

    run(test, tmp_path)


def test_a_leader_that_leads_anew_in_its_epoch_knows_followers_that_ask_for_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was lost and regained while the follower was busy with what it had been given."""

    async def test(nodes: Nodes) -> None:
        is_free, is_busy, take = asyncio.Event(), asyncio.Event(), Fetcher._take

        async def take_slowly(self: Fetcher, answer: FetchResponse) -> None:
            await take(self, answer)
            if not is_free.is_set():
                is_busy.set()
                await is_free.wait()

        nodes.refuses = True
        nodes.topic.partitions = [PartitionState([1, 2], [1], 1, 0)]
        await nodes.tell()
        nodes[1].append(b"a")
        await nodes[2].until_committed(1)
        monkeypatch.setattr(Fetcher, "_take", take_slowly)
        await is_busy.wait()
        nodes[1].replicas.session_lost()
        await nodes.tell(1)
        assert nodes[1].partition().is_leader
        assert nodes[1].partition().leader_epoch == 0
        nodes.refuses = False
        is_free.set()
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])

    run(test, tmp_path, count=2, replica_lag_time_max_ms="1000")
