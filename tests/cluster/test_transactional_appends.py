"""Transactional batches that wait for their coordinator: what is appended, when, and in which order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millstream.cluster.holder import Holder
from millstream.cluster.metadata import PartitionState
from millstream.cluster.partition import ALL, Partition
from millstream.config.log import LogConfig
from millstream.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    KafkaError,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    UnknownTopicOrPartition,
)
from millstream.metrics import Metrics, TopicCounters
from millstream.model import TopicPartition
from millstream.protocol.batch import Codec, ControlMarker, decode_records, encode_batch, encode_marker
from millstream.protocol.record import Record
from millstream.storage.log import Appended
from tests.storage.logs import NOW_MS, PARTITION, TOPIC_ID, World

ADDING = 12
VERIFIED = 10


class Coordinator:
    """Answers when the test wants it to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, int, int, int]] = []
        self.answers: list[asyncio.Future[None]] = []
        self.is_asynchronous = True
        self.is_lazy = False
        """Whether the answer is a coroutine, which does nothing until it is waited for."""
        self.refusal: KafkaError | None = None

    def __call__(
        self,
        partition: TopicPartition,
        transactional_id: str | None,
        producer_id: int,
        epoch: int,
        version: int,
    ) -> Awaitable[None] | None:
        assert partition == PARTITION
        self.asked.append((transactional_id, producer_id, epoch, version))
        if self.refusal is not None:
            raise self.refusal
        if not self.is_asynchronous:
            return None
        if self.is_lazy:
            return asyncio.sleep(0)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    async def answer(self, error: KafkaError | None = None) -> None:
        """Answer the last question, and let the news spread."""
        future = self.answers.pop()
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Case:
    """A partition with its coordinator."""

    def __init__(self, world: World) -> None:
        self.coordinator = Coordinator()
        state = PartitionState(replicas=[1], isr=[1], leader=1, leader_epoch=0)
        counters = TopicCounters(Metrics(), PARTITION.topic)
        holder = Holder(1, world.clock, lambda: 64 << 20, self.coordinator)
        self.partition = Partition(PARTITION, TOPIC_ID, world.open(LogConfig()), holder, counters)
        self.partition.lead(state)

    def send(
        self,
        value: bytes,
        sequence: int,
        *,
        producer_id: int = 1,
        epoch: int = 0,
        version: int = ADDING,
        codec: Codec = Codec.NONE,
    ) -> Appended | asyncio.Future[Appended]:
        data = encode_batch(
            [Record(value, b"k", (), NOW_MS)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
            codec=codec,
        )
        outcome = self.partition.append(data, ALL, version, "x")
        data[:] = bytes(len(data))  # as a connection's buffer is used again
        return outcome

    def wait(self, *args: Any, **options: Any) -> asyncio.Future[Appended]:
        outcome = self.send(*args, **options)
        assert isinstance(outcome, asyncio.Future)
        return outcome

    def end(self, *, producer_id: int = 1, epoch: int = 1, is_commit: bool = True, version: int = 2) -> None:
        marker = encode_marker(
            ControlMarker(is_commit, 0), producer_id=producer_id, producer_epoch=epoch, timestamp_ms=NOW_MS
        )
        self.partition.append_internal(marker, transaction_version=version)

    def values(self) -> list[bytes | None]:
        found = self.partition.read(0, 1 << 20, is_committed_only=False, min_one=True, nowait=False)
        return [record.value for record in decode_records(found.data)]


def run(test: Callable[[Case], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await test(Case(World(tmp_path)))

    asyncio.run(main())


def test_an_answer_that_is_there_at_once(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        case.coordinator.is_asynchronous = False
        for sequence in range(3):
            assert isinstance(case.send(b"%d" % sequence, sequence), Appended)
        assert case.coordinator.asked == [("x", 1, 0, ADDING)]  # only while nothing is open here
        case.end()
        assert isinstance(case.send(b"next", 0, epoch=1), Appended)
        assert len(case.coordinator.asked) == 2
        assert case.values() == [b"0", b"1", b"2", b"next"]

    run(test, tmp_path)


def test_later_batches_of_the_producer_wait_behind(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        waiting = [case.wait(b"%d" % sequence, sequence) for sequence in range(3)]
        assert case.partition.log.end_offset == 0
        assert len(case.coordinator.asked) == 1
        await case.coordinator.answer()
        assert [(await each).base_offset for each in waiting] == [0, 1, 2]
        assert case.values() == [b"0", b"1", b"2"]
        assert isinstance(case.send(b"3", 3), Appended)

    run(test, tmp_path)


def test_batches_of_others_do_not_wait(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        waiting = case.wait(b"waits", 0)
        plain = encode_batch([Record(b"plain", b"k", (), NOW_MS)])
        assert isinstance(case.partition.append(plain, ALL, 9), Appended)
        case.coordinator.is_asynchronous = False
        assert isinstance(case.send(b"other", 0, producer_id=2), Appended)
        case.coordinator.is_asynchronous = True
        await case.coordinator.answer()
        assert (await waiting).base_offset == 2
        assert case.values() == [b"plain", b"other", b"waits"]

    run(test, tmp_path)


def test_a_refusal_reaches_the_batch_and_those_behind_are_asked_for_anew(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        first, second = case.wait(b"0", 0), case.wait(b"1", 0)
        await case.coordinator.answer(InvalidTxnState())
        with pytest.raises(InvalidTxnState):
            await first
        await case.coordinator.answer()
        assert (await second).base_offset == 0
        assert len(case.coordinator.asked) == 2
        assert case.values() == [b"1"]

    run(test, tmp_path)


def test_what_follows_a_batch_that_its_coordinator_could_not_be_asked_about_waits_for_it(
    tmp_path: Path,
) -> None:
    """Of the old protocol, where an unknown producer may start anywhere: the coordinator has just moved, and
    is there again when the second batch comes to be asked for."""

    async def test(case: Case) -> None:
        first, second = case.wait(b"0", 0, version=VERIFIED), case.wait(b"1", 1, version=VERIFIED)
        await case.coordinator.answer(NotEnoughReplicas())
        with pytest.raises(NotEnoughReplicas):
            await first
        await case.coordinator.answer()
        with pytest.raises(NotEnoughReplicas):
            await second
        case.coordinator.is_asynchronous = False
        for sequence in range(2):  # as the producer sends them again
            assert isinstance(case.send(b"%d" % sequence, sequence, version=VERIFIED), Appended)
        assert case.values() == [b"0", b"1"]

    run(test, tmp_path)


def test_an_end_that_comes_meanwhile_makes_the_answer_worthless(tmp_path: Path) -> None:
    """Of the old protocol: the epoch stays the same, so only asking again shows that it is too late."""

    async def test(case: Case) -> None:
        waiting = case.wait(b"late", 0, version=VERIFIED)
        case.end(epoch=0, version=0)
        await case.coordinator.answer()
        assert not waiting.done()
        assert len(case.coordinator.asked) == 2
        await case.coordinator.answer(InvalidTxnState())
        with pytest.raises(InvalidTxnState):
            await waiting
        assert case.values() == []

    run(test, tmp_path)


def test_an_end_of_another_producer_changes_nothing(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        waiting = case.wait(b"x", 0)
        case.end(producer_id=2)
        await case.coordinator.answer()
        assert (await waiting).base_offset == 1
        assert len(case.coordinator.asked) == 1

    run(test, tmp_path)


def test_an_end_between_the_question_and_the_first_wait(tmp_path: Path) -> None:
    """The marker is appended in the very step in which the question was asked."""

    async def test(case: Case) -> None:
        waiting = case.wait(b"late", 0, version=VERIFIED)
        case.coordinator.answers[-1].set_result(None)
        case.end(epoch=0, version=0)
        await settle()
        assert len(case.coordinator.asked) == 2
        await case.coordinator.answer(InvalidTxnState())
        with pytest.raises(InvalidTxnState):
            await waiting

    run(test, tmp_path)


def test_an_old_epoch_is_refused_by_the_log(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        waiting = case.wait(b"late", 0)
        case.end(epoch=1)
        await case.coordinator.answer()
        await case.coordinator.answer()  # asked again, and told yes: the log knows better
        with pytest.raises(InvalidProducerEpoch):
            await waiting

    run(test, tmp_path)


def test_large_compressed_batches_keep_their_place(tmp_path: Path) -> None:
    """They are checked in a thread first, and wait for the coordinator after that."""

    async def test(case: Case) -> None:
        noise = Random(1).randbytes(100_000)
        waiting = [
            case.wait(b"0" + noise, 0, codec=Codec.LZ4),
            case.wait(b"1", 1),
            case.wait(b"2" + noise, 2, codec=Codec.ZSTD),
        ]
        while not case.coordinator.asked:
            await asyncio.sleep(0.001)
        while case.partition._queue:
            await asyncio.sleep(0.001)
        waiting.append(case.wait(b"3", 3))
        assert case.partition.log.end_offset == 0
        await case.coordinator.answer()
        assert [(await each).base_offset for each in waiting] == [0, 1, 2, 3]
        assert [(value or b"")[:1] for value in case.values()] == [b"0", b"1", b"2", b"3"]

    run(test, tmp_path)


def test_what_follows_a_large_batch_that_its_coordinator_refuses_at_once_waits_for_it(tmp_path: Path) -> None:
    """As above, where the first batch was checked in a thread and the coordinator, on this broker, loads."""

    async def test(case: Case) -> None:
        noise = Random(1).randbytes(100_000)
        case.coordinator.refusal = NotEnoughReplicas()
        with pytest.raises(NotEnoughReplicas):
            await case.wait(b"0" + noise, 0, version=VERIFIED, codec=Codec.LZ4)
        case.coordinator.refusal, case.coordinator.is_asynchronous = None, False
        with pytest.raises(NotEnoughReplicas):
            case.send(b"1", 1, version=VERIFIED)
        await case.wait(b"0" + noise, 0, version=VERIFIED, codec=Codec.LZ4)
        assert isinstance(case.send(b"1", 1, version=VERIFIED), Appended)
        assert [(value or b"")[:1] for value in case.values()] == [b"0", b"1"]

    run(test, tmp_path)


def test_a_partition_that_goes_away_meanwhile(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        waiting = case.wait(b"x", 0)
        case.partition.fail(UnknownTopicOrPartition())
        await case.coordinator.answer()
        with pytest.raises(UnknownTopicOrPartition):
            await waiting

    run(test, tmp_path)


def test_an_answer_is_worthless_once_the_partition_was_led_elsewhere(tmp_path: Path) -> None:
    """The end of the transaction may have come to the other leader: offsets of groups ask again."""

    async def test(case: Case) -> None:
        guard = case.partition.transactions.guard(1)
        state = case.partition.state
        case.partition.follow(replace(state, leader=2, leader_epoch=1))
        case.partition.lead(replace(state, leader_epoch=2))
        assert guard.is_broken
        case.partition.transactions.release(1, guard)

    run(test, tmp_path)


def test_a_partition_that_goes_away_before_it_was_waited_for_an_answer(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        case.coordinator.is_lazy = True
        waiting = case.wait(b"x", 0)
        case.partition.fail(UnknownTopicOrPartition())
        with pytest.raises(UnknownTopicOrPartition):
            await waiting
        await settle()
        gc.collect()  # a coroutine that nobody waited for says so here

    run(test, tmp_path)


def test_what_is_refused_without_asking(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        with pytest.raises(InvalidRecord):
            case.send(b"x", -1, producer_id=-1, epoch=-1)
        with pytest.raises(OutOfOrderSequenceNumber):
            case.send(b"x", 4)
        assert case.coordinator.asked == []
        case.coordinator.is_asynchronous = False
        assert isinstance(case.send(b"x", 4, version=VERIFIED), Appended)

    run(test, tmp_path)


def test_a_coordinator_that_cannot_be_asked(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        case.coordinator.refusal = CoordinatorNotAvailable()
        with pytest.raises(CoordinatorNotAvailable):
            case.send(b"x", 0)
        case.coordinator.refusal = None
        case.coordinator.is_asynchronous = False
        assert isinstance(case.send(b"x", 0), Appended)

    run(test, tmp_path)


def test_offsets_of_a_coordinator_carry_no_sequence(tmp_path: Path) -> None:
    async def test(case: Case) -> None:
        def offsets(epoch: int) -> bytearray:
            records = [Record(b"o", b"k", (), NOW_MS), Record(b"p", b"l", (), NOW_MS)]
            return encode_batch(records, producer_id=1, producer_epoch=epoch, is_transactional=True)

        for epoch in (3, 3, 4):
            case.partition.append_internal(offsets(epoch))
        with pytest.raises(InvalidProducerEpoch):
            case.partition.append_internal(offsets(3))
        (producer,) = case.partition.log.active_producers()
        assert (producer.epoch, producer.last_sequence, producer.transaction_start) == (4, -1, 0)
        case.end(epoch=5)
        assert case.partition.last_stable_offset == case.partition.log.end_offset == 7

    run(test, tmp_path)


def test_ends_that_are_committed_are_forgotten(tmp_path: Path) -> None:
    """Nobody reads; what holds the last stable offset back must not pile up."""

    async def test(case: Case) -> None:
        case.coordinator.is_asynchronous = False
        for epoch in range(300):
            assert isinstance(case.send(b"x", 0, epoch=epoch), Appended)
            assert case.partition.last_stable_offset == 2 * epoch
            case.end(epoch=epoch + 1)
        assert case.partition.last_stable_offset == 600
        assert len(case.partition.log.producers._decided) <= 4

    run(test, tmp_path)
