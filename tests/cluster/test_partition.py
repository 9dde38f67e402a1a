"""A partition as its leader keeps it: order, watermarks, flushes, and those who wait, on real files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millstream.cluster.holder import Holder
from millstream.cluster.metadata import PartitionState
from millstream.cluster.partition import ALL, Partition
from millstream.cluster.waiters import MANY, ByteWaiter, OffsetWaiters
from millstream.config.log import LogConfig
from millstream.errors import (
    CorruptMessage,
    KafkaStorageError,
    NotEnoughReplicas,
    UnknownTopicOrPartition,
)
from millstream.metrics import Metrics, TopicCounters
from millstream.protocol.batch import (
    Codec,
    ControlMarker,
    decode_records,
    encode_batch,
    encode_marker,
    read_header,
)
from millstream.protocol.record import Record
from millstream.storage import names
from millstream.storage.log import Appended
from millstream.storage.threads import Threads
from tests.storage.logs import NOW_MS, PARTITION, TOPIC_ID, FaultyFile, World

Test = Callable[[World], Coroutine[Any, Any, None]]


def batch(*values: bytes, codec: Codec = Codec.NONE, **options: Any) -> bytearray:
    return encode_batch([Record(value, b"k", (), NOW_MS) for value in values], codec=codec, **options)


def lead(
    world: World,
    config: LogConfig | None = None,
    replicas: int = 1,
    isr: int = 1,
    threads: Threads | None = None,
) -> Partition:
    log = world.open(config or LogConfig())
    state = PartitionState([1, 2, 3][:replicas], [1, 2, 3][:isr], leader=1, leader_epoch=0)
    counters = TopicCounters(Metrics(), PARTITION.topic)
    holder = Holder(1, world.clock, lambda: 64 << 20, threads=threads or Threads())
    partition = Partition(PARTITION, TOPIC_ID, log, holder, counters)
    partition.lead(state)
    return partition


def append(partition: Partition, data: bytearray, acks: int = 1) -> Appended:
    appended = partition.append(data, acks, 9)
    assert isinstance(appended, Appended)
    return appended


def values(partition: Partition, offset: int = 0, *, is_committed_only: bool = False) -> list[bytes | None]:
    found = partition.read(offset, 1 << 20, is_committed_only=is_committed_only, min_one=True, nowait=False)
    aborted = partition.log.aborted_transactions(found.first_offset, found.next_offset)
    records = decode_records(found.data, from_offset=offset, aborted=aborted if is_committed_only else None)
    return [record.value for record in records]


def run(test: Test, tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await test(World(tmp_path))

    asyncio.run(main())


class HeldFlush:
    """Lets every flush of the log happen, and holds the news of it until it is let go."""

    def __init__(self, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        flush = partition.log.flush

        def held() -> int:
            flushed = flush()
            self.entered.release()
            assert self.go.acquire(timeout=20)
            return flushed

        monkeypatch.setattr(partition.log, "flush", held)


def test_an_append_is_seen_and_acknowledged_at_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world)
        for acks in (0, 1, ALL):
            appended = append(partition, batch(b"a", b"b"), acks)
            assert partition.when_acknowledged(acks, appended) is None
        assert partition.high_watermark == 6
        assert values(partition) == [b"a", b"b"] * 3
        assert partition.counters.records_in.value == 6

    run(test, tmp_path)


def test_large_compressed_batches_are_checked_in_threads_and_order_is_kept(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world)
        noise = Random(1)
        futures = []
        for number in range(12):
            if number % 3:
                data = batch(b"%d" % number)
            else:
                data = batch(
                    b"%d" % number, *[b"-" + noise.randbytes(2000) for _ in range(40)], codec=Codec.GZIP
                )
                assert len(data) > 64 * 1024
            futures.append(partition.append(data, 1, 9))
            data[:] = bytes(len(data))  # the connection's buffer is used again at once
        done = [await future if isinstance(future, asyncio.Future) else future for future in futures]
        assert [appended.base_offset for appended in done] == sorted(
            appended.base_offset for appended in done
        )
        firsts = [value for value in values(partition, 0) if value is not None and value.isdigit()]
        assert firsts == [b"%d" % number for number in range(len(firsts))]

    run(test, tmp_path)


def test_a_bad_batch_in_the_queue_harms_no_other(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world)
        noise = Random(1)
        stored = batch(*[noise.randbytes(900) for _ in range(100)], codec=Codec.ZSTD)
        broken = bytearray(stored)
        broken[5000] ^= 1
        first = partition.append(stored, 1, 9)
        second = partition.append(broken, 1, 9)
        third = partition.append(batch(b"after"), 1, 9)
        assert isinstance(first, asyncio.Future)
        assert isinstance(second, asyncio.Future)
        assert isinstance(third, asyncio.Future)
        assert (await first).base_offset == 0
        with pytest.raises(CorruptMessage):
            await second
        assert (await third).base_offset == 100

    run(test, tmp_path)


@pytest.mark.parametrize("acks", [1, ALL])
def test_group_commit_acknowledges_and_shows_only_what_is_flushed(
    tmp_path: Path, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        partition = lead(world, LogConfig(flush_before_ack=True))
        held = HeldFlush(partition, monkeypatch)
        first = partition.when_acknowledged(acks, append(partition, batch(b"1"), acks))
        assert first is not None
        await loop.run_in_executor(None, held.entered.acquire)
        others = [
            partition.when_acknowledged(acks, append(partition, batch(b"%d" % n), acks)) for n in range(2, 6)
        ]
        assert partition.high_watermark == 0
        assert values(partition) == []
        held.go.release()
        await first
        assert partition.high_watermark == 1
        await loop.run_in_executor(None, held.entered.acquire)
        held.go.release(10)
        for other in others:
            if other is not None:
                await other
        assert partition.log.recovery_point == partition.high_watermark == 5
        assert values(partition) == [b"1", b"2", b"3", b"4", b"5"]
        await partition.settle()

    run(test, tmp_path)


def test_what_a_crash_left_unflushed_is_flushed_before_it_is_acknowledged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        config = LogConfig(flush_before_ack=True)
        sent = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0)
        before = world.open(config)
        before.append(memoryview(bytearray(sent)), read_header(sent), 0)
        before.close(is_clean=False)
        partition = lead(world, config)
        assert partition.log.end_offset == 1
        assert partition.log.recovery_point == 0
        assert partition.high_watermark == 0
        again = append(partition, bytearray(sent), ALL)
        assert again.is_duplicate
        acknowledged = partition.when_acknowledged(ALL, again)
        assert acknowledged is not None
        await acknowledged
        assert partition.log.recovery_point == 1
        assert values(partition) == [b"x"]
        await partition.settle()

    run(test, tmp_path)


@pytest.mark.parametrize("acks", [1, ALL])
def test_the_request_that_reaches_flush_messages_waits_for_the_flush(tmp_path: Path, acks: int) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_messages=3))
        assert partition.when_acknowledged(acks, append(partition, batch(b"a", b"b"), acks)) is None
        assert partition.log.recovery_point == 0
        waiting = partition.when_acknowledged(acks, append(partition, batch(b"c"), acks))
        assert waiting is not None
        await waiting
        assert partition.log.recovery_point == 3
        await partition.settle()

    run(test, tmp_path)


class HeldDisk:
    """Holds every fsync until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        fsync = FaultyFile.fsync

        def held(file: FaultyFile) -> None:
            self.entered.set()
            assert self.go_on.wait(20)
            fsync(file)

        monkeypatch.setattr(FaultyFile, "fsync", held)


def test_copies_do_not_stand_for_the_flush_that_flush_messages_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_messages=2), replicas=2, isr=2)
        assert partition.leadership is not None
        follower = partition.leadership.follower(2, 1)
        disk = HeldDisk(monkeypatch)
        first = partition.when_acknowledged(ALL, append(partition, batch(b"a"), ALL))
        second = partition.when_acknowledged(ALL, append(partition, batch(b"b"), ALL))
        assert first is not None
        assert second is not None
        partition.fetched(follower, 2, 0, 0)
        partition.fetched(follower, 2, 0, 2)
        assert partition.acknowledged == 2
        await first
        assert await asyncio.get_running_loop().run_in_executor(None, disk.entered.wait, 20)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
        disk.go_on.set()
        await second
        assert partition.log.recovery_point == 2
        await partition.settle()

    run(test, tmp_path)


def test_what_waits_for_a_flush_is_acknowledged_when_none_is_wanted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_before_ack=True))
        disk = HeldDisk(monkeypatch)
        waiting = partition.when_acknowledged(ALL, append(partition, batch(b"a"), ALL))
        assert waiting is not None
        assert await asyncio.get_running_loop().run_in_executor(None, disk.entered.wait, 20)
        partition.configure(LogConfig())
        await waiting
        assert values(partition) == [b"a"]
        disk.go_on.set()
        await partition.settle()

    run(test, tmp_path)


def test_a_request_that_came_during_a_flush_for_flush_messages_waits_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits because of the records that are being flushed; alone they would not ask for another flush."""

    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_messages=3))
        disk = HeldDisk(monkeypatch)
        first = partition.when_acknowledged(1, append(partition, batch(b"a", b"b", b"c")))
        assert first is not None
        assert await asyncio.get_running_loop().run_in_executor(None, disk.entered.wait, 20)
        second = partition.when_acknowledged(1, append(partition, batch(b"d")))
        assert second is not None
        disk.go_on.set()
        await first
        await second
        assert partition.log.recovery_point == 4
        await partition.settle()

    run(test, tmp_path)


def test_a_failed_flush_ends_the_partition_and_tells_those_who_wait(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_before_ack=True))
        world.disk.fails_fsync = True
        waiting = partition.when_acknowledged(1, append(partition, batch(b"a")))
        assert waiting is not None
        with pytest.raises(KafkaStorageError):
            await waiting
        world.disk.fails_fsync = False  # too late: a failed fsync is final
        with pytest.raises(KafkaStorageError):
            partition.append(batch(b"b"), 1, 9)
        with pytest.raises(KafkaStorageError):
            values(partition)
        await partition.settle()

    run(test, tmp_path)


def test_a_full_disk_refuses_one_append_and_not_the_next(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world)
        append(partition, batch(b"a"))
        world.disk.failing_suffix, world.disk.room_bytes = ".log", 20
        with pytest.raises(KafkaStorageError, match="full"):
            partition.append(batch(b"lost"), 1, 9)
        assert values(partition) == [b"a"]
        world.disk.room_bytes = 1 << 62
        assert append(partition, batch(b"b")).base_offset == 1
        assert values(partition) == [b"a", b"b"]

    run(test, tmp_path)


@pytest.mark.parametrize("acks", [1, ALL])
def test_a_batch_that_is_sent_again_after_its_flush_was_refused_is_flushed(tmp_path: Path, acks: int) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_messages=1))
        world.disk.failing_suffix, world.disk.room_bytes = names.EPOCHS_FILE + names.BESIDE, 0
        sent = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        waiting = partition.when_acknowledged(acks, append(partition, bytearray(sent), acks))
        assert waiting is not None
        with pytest.raises(KafkaStorageError):
            await waiting
        world.disk.room_bytes = 1 << 62
        again = append(partition, bytearray(sent), acks)
        assert again.is_duplicate
        waiting = partition.when_acknowledged(acks, again)
        if waiting is not None:
            await asyncio.wait_for(waiting, 10)
        assert partition.log.recovery_point == 1
        await partition.settle()

    run(test, tmp_path)


def test_too_few_in_sync_replicas_refuse_acks_all_only(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(min_insync_replicas=2), replicas=3)
        with pytest.raises(NotEnoughReplicas):
            partition.append(batch(b"a"), ALL, 9)
        assert append(partition, batch(b"a"), 1).base_offset == 0

    run(test, tmp_path)


def test_a_single_replica_takes_acks_all_whatever_min_insync_says(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(min_insync_replicas=2))
        assert append(partition, batch(b"a"), ALL).base_offset == 0

    run(test, tmp_path)


def test_read_committed_ends_at_the_first_open_transaction_and_skips_aborted_ones(tmp_path: Path) -> None:
    def transactional(value: bytes, producer_id: int, sequence: int) -> bytearray:
        return batch(
            value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )

    def ending(producer_id: int, is_commit: bool) -> bytearray:
        marker = ControlMarker(is_commit, 0)
        return encode_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS)

    async def test(world: World) -> None:
        partition = lead(world)
        append(partition, batch(b"plain"))
        partition.append_internal(transactional(b"aborted", 1, 0))
        partition.append_internal(transactional(b"committed", 2, 0))
        append(partition, batch(b"behind"))
        assert partition.last_stable_offset == 1
        assert values(partition, is_committed_only=True) == [b"plain"]
        assert values(partition) == [b"plain", b"aborted", b"committed", b"behind"]
        partition.append_internal(ending(1, is_commit=False))
        assert partition.last_stable_offset == 2
        partition.append_internal(ending(2, is_commit=True))
        assert partition.last_stable_offset == partition.high_watermark == 6
        assert values(partition, is_committed_only=True) == [b"plain", b"committed", b"behind"]

    run(test, tmp_path)


def test_a_waiting_fetch_is_woken_when_enough_bytes_came(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        partition = lead(world)
        woken: list[int] = []
        size = len(batch(b"x"))
        waiter = ByteWaiter(2 * size, lambda: woken.append(partition.high_watermark))
        partition.watch(waiter)
        append(partition, batch(b"x"))
        await asyncio.sleep(0)
        assert woken == []
        append(partition, batch(b"x"))
        assert woken == []  # not from within the append
        await asyncio.sleep(0)
        append(partition, batch(b"x"))
        await asyncio.sleep(0)
        assert woken == [2]
        partition.unwatch(waiter)

    run(test, tmp_path)


def test_a_deleted_partition_ends_every_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        partition = lead(world, LogConfig(flush_before_ack=True))
        held = HeldFlush(partition, monkeypatch)
        waiting = partition.when_acknowledged(ALL, append(partition, batch(b"a"), ALL))
        assert waiting is not None
        woken: list[bool] = []
        partition.watch(ByteWaiter(1, lambda: woken.append(True)))
        partition.fail(UnknownTopicOrPartition())
        with pytest.raises(UnknownTopicOrPartition):
            await waiting
        await asyncio.sleep(0)
        assert woken == [True]
        with pytest.raises(UnknownTopicOrPartition):
            partition.append(batch(b"b"), 1, 9)
        held.go.release(10)
        await partition.settle()

    run(test, tmp_path)


def test_a_broken_batch_of_an_unknown_producer_is_not_overtaken(tmp_path: Path) -> None:
    """It was checked in a thread, and comes again: those in flight behind it must not be there first."""

    async def test(world: World) -> None:
        partition, noise = lead(world), Random(1)
        sent = [
            batch(
                noise.randbytes(1 << 17),
                codec=Codec.LZ4,
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
            )
            for number in range(2)
        ]
        broken = bytearray(sent[0])
        broken[-1] ^= 1
        answers = [partition.append(each, 1, 9) for each in (broken, sent[1])]
        for answer in answers:
            assert isinstance(answer, asyncio.Future)
            with pytest.raises(CorruptMessage):
                await answer
        for each in sent:
            again = partition.append(each, 1, 9)
            assert isinstance(again, asyncio.Future)
            await again
        assert partition.log.end_offset == 2

    run(test, tmp_path)


def test_a_record_is_acknowledged_when_the_one_it_waited_for_was_refused(tmp_path: Path) -> None:
    """It was proposed to be in sync, and is gone before it said that it knows what is committed."""

    async def test(world: World) -> None:
        holder = Holder(1, world.clock, lambda: 64 << 20, propose=lambda _: None)
        log = world.open(LogConfig(min_insync_replicas=2))
        counters = TopicCounters(Metrics(), PARTITION.topic)
        partition = Partition(PARTITION, TOPIC_ID, log, holder, counters)
        partition.lead(PartitionState([1, 2, 3], [1, 2], leader=1, leader_epoch=0, version=7))
        leadership = partition.leadership
        assert leadership is not None
        two, three = leadership.follower(2, 20), leadership.follower(3, 30)
        for follower in (two, three):
            partition.fetched(follower, 0, 0, 0)
        assert leadership.proposed == [1, 2, 3]
        done = partition.when_acknowledged(ALL, append(partition, batch(b"x"), ALL))
        assert done is not None
        for follower in (two, three):
            partition.fetched(follower, 1, 0, 0)
        partition.fetched(two, 1, 0, 1)
        assert partition.high_watermark == 1
        assert not done.done()
        partition.isr_refused(is_final=True)
        assert done.done()

    run(test, tmp_path)


def no_more_threads(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", fail)


def test_a_batch_for_which_no_thread_can_be_started_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        partition = lead(world, threads=Threads(checks=1))
        data = batch(*[Random(number).randbytes(1000) for number in range(800)], codec=Codec.GZIP)
        with monkeypatch.context() as patch:
            no_more_threads(patch)
            with pytest.raises(KafkaStorageError, match="no thread to check in"):
                partition.append(data, 1, 9)
        assert isinstance(partition.append(batch(b"small"), 1, 9), Appended)

    run(test, tmp_path)


def test_who_waits_for_a_flush_for_which_no_thread_can_be_started_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        threads = Threads([world.path])
        partition = lead(world, LogConfig(flush_before_ack=True), threads=threads)
        with monkeypatch.context() as patch:
            no_more_threads(patch)
            done = partition.when_acknowledged(1, append(partition, batch(b"x")))
            assert done is not None
            with pytest.raises(KafkaStorageError, match="no thread to flush in"):
                await done
        done = partition.when_acknowledged(1, append(partition, batch(b"y")))
        assert done is not None
        await done
        assert partition.high_watermark == 2
        threads.close()

    run(test, tmp_path)


def test_waits_that_were_given_up_are_forgotten() -> None:
    """Though nothing is committed for hours, and others still wait."""

    async def main() -> None:
        waiters = OffsetWaiters()
        first = waiters.wait(5)
        for _ in range(100_000):
            waiters.wait(5).cancel()
        last = waiters.wait(7)
        assert len(waiters._waiting) <= MANY
        waiters.passed(5)
        assert first.done()
        assert not last.done()
        waiters.passed(7)
        assert last.done()

    asyncio.run(main())
