"""Producers among impatient callers, several threads, forks and broken codecs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from millstream import (
    Admin,
    AsyncProducer,
    Closed,
    Consumer,
    NoTransaction,
    Producer,
    TopicPartition,
    TransactionFailed,
)
from millstream.client import batch_builder
from millstream.client.metadata import Partition, Topic
from millstream.client.producer_buffer import RecordBuffer
from millstream.client.producer_delivery import Unplaced
from millstream.client.producer_settings import ProducerSettings
from millstream.errors import InvalidTopic, MillstreamError, RequestTimedOut, UnknownTopicOrPartition
from millstream.protocol.compression import compress
from tests.client.consuming import new_topic
from tests.client.logs import values_in
from tests.conftest import Name


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.fixture
def topic(own_bootstrap: str) -> str:
    name: str = run(new_topic(own_bootstrap, 1, "hostile"))
    return name


def test_one_who_waits_for_records_that_have_just_been_placed_is_told() -> None:
    """A thread may ask for a result at the moment at which the topic becomes known."""
    unplaced, told = Unplaced(), []
    unplaced.moved()
    unplaced.add_waiter(lambda: told.append(True))
    assert told == [True]


def test_slow_compression_does_not_hold_up_the_loop(
    own_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def slow(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        time.sleep(0.3)
        return compress(*arguments)

    monkeypatch.setattr(batch_builder, "compress", slow)

    async def main() -> None:
        async with AsyncProducer(own_bootstrap, compression="gzip", linger_ms=0) as producer:
            await producer.send(topic, b"first")
            threads.clear()
            deliveries = [producer.send(topic, b"%d" % n * 30_000) for n in range(4)]
            worst, began = 0.0, time.monotonic()
            while not all(delivery.done() for delivery in deliveries):
                before = time.monotonic()
                await asyncio.sleep(0.005)
                worst = max(worst, time.monotonic() - before)
            assert worst < 0.2
            assert time.monotonic() - began < 10
            assert [(await delivery).offset for delivery in deliveries] == [1, 2, 3, 4]

    run(main())
    assert threading.get_ident() not in threads
    assert values_in(own_bootstrap, topic)[0][1:] == [b"%d" % n * 30_000 for n in range(4)]


@pytest.mark.parametrize("size", [10, 60_000])
def test_records_that_cannot_be_compressed_fail_and_nothing_else_does(
    own_bootstrap: str, topic: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken = True

    def sometimes(*arguments: Any) -> Any:
        if is_broken:
            raise MemoryError("no room")
        return compress(*arguments)

    monkeypatch.setattr(batch_builder, "compress", sometimes)

    async def main() -> None:
        nonlocal is_broken
        async with AsyncProducer(own_bootstrap, compression="gzip", linger_ms=0) as producer:
            failed = producer.send(topic, b"x" * size)
            with pytest.raises(MillstreamError, match="could not be compressed: no room"):
                await asyncio.wait_for(_awaited(failed), 5)
            is_broken = False
            assert (await producer.send(topic, b"y" * size)).offset == 0
            assert producer.buffered_bytes == 0

    run(main())


async def _awaited(delivery: Any) -> Any:
    return await delivery


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 10), ("gzip", -2), ("lz4", 0), ("zstd", 23), ("snappy", 1), ("none", 1)]
)
def test_levels_that_the_codec_does_not_have(codec: Any, level: int) -> None:
    with pytest.raises(ValueError, match="compression_level"):
        Producer("localhost:1", compression=codec, compression_level=level)


@pytest.mark.parametrize(
    "options",
    [
        {"request_timeout_ms": 0},
        {"max_block_ms": -1},
        {"retry_backoff_ms": -1},
        {"transactional_id": ""},
        {"transaction_timeout_ms": 0},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Producer("localhost:1", **options)


def test_a_close_from_a_delivery_callback_is_refused_and_breaks_nothing(
    own_bootstrap: str, topic: str
) -> None:
    errors: list[BaseException] = []
    with Producer(own_bootstrap) as producer:

        def close(_: Any) -> None:
            try:
                producer.close()
            except RuntimeError as error:
                errors.append(error)

        delivery = producer.send(topic, b"1")
        delivery.add_done_callback(close)
        delivery.result(10)
        assert producer.send(topic, b"2").result(10).offset == 1
    assert "callback" in str(errors[0])


def test_a_producers_own_deliveries_can_be_awaited_in_any_loop(own_bootstrap: str, topic: str) -> None:
    with Producer(own_bootstrap, linger_ms=200) as producer:

        async def main() -> None:
            deliveries = await asyncio.to_thread(producer.send_batch, topic, [b"1", b"2"])
            (written,) = await asyncio.wait_for(_awaited(deliveries), 10)
            assert (written.offset, written.count) == (0, 2)

        asyncio.run(main())


def test_a_record_sent_during_a_commit_is_refused_and_not_left_over(
    own_bootstrap: str, topic: str, new_name: Name
) -> None:
    """Another thread's record must not slip into the transaction that comes next."""
    with Producer(own_bootstrap, transactional_id=new_name("tid"), linger_ms=50) as producer:
        stop = threading.Event()
        accepted: list[Any] = []

        def send() -> None:
            number = 0
            while not stop.is_set():
                try:
                    accepted.append((producer.send(topic, b"%d" % number), number))
                    number += 1
                except NoTransaction:
                    pass
                time.sleep(0)

        thread = threading.Thread(target=send)
        producer.begin_transaction()
        thread.start()
        time.sleep(0.2)
        producer.commit_transaction()
        stop.set()
        thread.join()
        assert all(delivery.done() for delivery, _ in accepted), "a record was left for the next transaction"
        with producer.transaction():
            pass
    written = values_in(own_bootstrap, topic, isolation_level=1)[0]
    assert written == [b"%d" % number for _, number in accepted]


def test_rows_that_wait_for_room_do_not_outlive_their_transaction(
    own_bootstrap: str, topic: str, new_name: Name
) -> None:
    """Those that were not taken when it ended are refused; they must not slip into the next one."""

    async def main() -> int:
        async with AsyncProducer(
            own_bootstrap, transactional_id=new_name("tid"), buffer_bytes=1 << 20
        ) as producer:
            producer.begin_transaction()
            rows = asyncio.ensure_future(producer.send_batch(topic, [bytes(1000)] * 20_000))
            async with asyncio.timeout(20):
                while producer.buffered_bytes < 512 << 10:
                    await asyncio.sleep(0)
            await producer.commit_transaction(timeout=20)
            producer.begin_transaction()
            with pytest.raises(NoTransaction):
                await asyncio.wait_for(rows, 20)
            found = await asyncio.to_thread(values_in, own_bootstrap, topic, isolation_level=1)
            await producer.commit_transaction(timeout=20)
            assert producer.buffered_bytes == 0
            return len(found[0])

    before = run(main())
    assert 0 < before < 20_000
    assert len(values_in(own_bootstrap, topic, isolation_level=1)[0]) == before


@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_that_are_being_sent_come_before_the_end(
    own_bootstrap: str, topic: str, new_name: Name, is_commit: bool
) -> None:
    group, here = new_name("group"), TopicPartition(topic, 0)

    async def main() -> None:
        async with AsyncProducer(own_bootstrap, transactional_id=new_name("tid")) as producer:
            await producer.partitions_of(topic)
            producer.begin_transaction()
            end = producer.commit_transaction if is_commit else producer.abort_transaction
            async with asyncio.timeout(20):
                await asyncio.gather(producer.send_offsets({here: 7}, group), end())
            async with producer.transaction():
                producer.send(topic, b"1")

    run(main())
    with Admin(own_bootstrap) as admin:
        found = {where: each.offset for where, each in admin.group_offsets(group).items()}
    assert found == ({here: 7} if is_commit else {})


def test_offsets_that_were_given_up_half_way_leave_only_the_abort(
    own_bootstrap: str, topic: str, new_name: Name
) -> None:
    """Nobody knows whether they will count: to commit without them would do the work twice."""

    async def main() -> None:
        async with AsyncProducer(own_bootstrap, transactional_id=new_name("tid")) as producer:
            producer.begin_transaction()
            await producer.send(topic, b"0")
            offsets = {TopicPartition(topic, 0): 7}
            sending = asyncio.ensure_future(producer.send_offsets(offsets, new_name("group")))
            await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            with pytest.raises(TransactionFailed):
                await producer.commit_transaction(timeout=20)
            await producer.abort_transaction(timeout=20)
            async with producer.transaction():
                producer.send(topic, b"1")

    run(main())
    assert values_in(own_bootstrap, topic, isolation_level=1) == [[b"1"]]


def test_a_commit_whose_records_take_too_long_can_be_tried_again(
    own_bootstrap: str, topic: str, new_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(own_bootstrap, transactional_id=new_name("tid")) as producer:
        core: Any = producer._core
        may_send, core._sender.may_send = core._sender.may_send, lambda _: False
        producer.begin_transaction()
        producer.send(topic, b"1")
        with pytest.raises(RequestTimedOut):
            producer.commit_transaction(timeout=0.3)
        producer.send(topic, b"2")
        core._sender.may_send = may_send
        producer.commit_transaction(timeout=10)
    assert values_in(own_bootstrap, topic, isolation_level=1) == [[b"1", b"2"]]


def test_an_abort_ends_in_time_though_partitions_are_being_added(
    own_bootstrap: str, topic: str, new_name: Name
) -> None:
    async def main() -> None:
        async with AsyncProducer(own_bootstrap, transactional_id=new_name("tid")) as producer:
            transactions: Any = producer._transactions
            producer.begin_transaction()
            stuck = asyncio.ensure_future(asyncio.sleep(3600))
            transactions._adding = stuck
            began = time.monotonic()
            with pytest.raises(RequestTimedOut):
                await producer.abort_transaction(timeout=0.3)
            assert time.monotonic() - began < 3
            stuck.cancel()
            transactions._adding = None
            await producer.abort_transaction(timeout=10)

    run(main())


def test_timestamps_that_no_record_can_have(own_bootstrap: str, topic: str) -> None:
    with Producer(own_bootstrap) as producer:
        producer.send(topic, b"1").result(10)
        for bad in (-2, 2**63):
            with pytest.raises((ValueError, OverflowError)):
                producer.send(topic, b"x", timestamp_ms=bad)
        assert producer.send(topic, b"2").result(10).offset == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_after_a_fork_the_child_is_told_and_the_parent_goes_on(own_bootstrap: str, topic: str) -> None:
    """In a process of its own, since a test runner should not fork."""
    program = f"""
import os, sys, time
from millstream import Closed, Consumer, Producer
producer = Producer({own_bootstrap!r})
consumer = Consumer({own_bootstrap!r}, group="forked", offset_reset="earliest")
consumer.subscribe({topic!r})
producer.send({topic!r}, b"1").result(10)
while not consumer.poll(timeout=5):
    pass
child = os.fork()
if child == 0:
    began = time.monotonic()
    for call in (lambda: producer.send({topic!r}, b"2"), producer.flush, consumer.poll, consumer.commit):
        try:
            call()
        except Closed as error:
            assert "fork" in str(error), error
        else:
            os._exit(2)
    producer.close()
    consumer.close()
    os._exit(0 if time.monotonic() - began < 2 else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert producer.send({topic!r}, b"3").result(10).offset == 1
assert [record.value for record in consumer.poll(timeout=10)] == [b"3"]
consumer.close()
producer.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_program_that_forgets_to_close_ends(own_bootstrap: str, topic: str) -> None:
    program = f"""
from millstream import Consumer, Producer
producer = Producer({own_bootstrap!r})
producer.send({topic!r}, b"1").result(10)
consumer = Consumer({own_bootstrap!r}, offset_reset="earliest")
consumer.assign([({topic!r}, 0)])
while not consumer.poll(timeout=5):
    pass
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_closing_twice_and_from_two_threads(own_bootstrap: str, topic: str) -> None:
    producer = Producer(own_bootstrap, linger_ms=500)
    delivery = producer.send(topic, b"1")
    threads = [threading.Thread(target=producer.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert delivery.result(0).offset == 0
    with pytest.raises(Closed):
        producer.send(topic, b"2")
    with pytest.raises(Closed):
        producer.flush()
    consumer = Consumer(own_bootstrap)
    for _ in range(2):
        consumer.close()


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_callbacks_that_raise_do_not_stop_the_producer(
    own_bootstrap: str, topic: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> None:
        raise error

    with Producer(own_bootstrap) as producer:
        delivery = producer.send(topic, b"1")
        delivery.add_done_callback(broken)
        delivery.result(10)
        producer.flush(10)
        assert producer.send(topic, b"2").result(10).offset == 1
    assert "a delivery's callback failed" in caplog.text


def test_a_partitioner_that_raises_or_errs_fails_only_its_record(own_bootstrap: str) -> None:
    def choose(_: str, key: bytes | None, partitions: int) -> int:
        return {b"good": 1, b"far": 9}[key or b""]

    name: str = run(new_topic(own_bootstrap, 2, "chosen"))
    with Producer(own_bootstrap, partitioner=choose, max_block_ms=5000) as producer:
        for _ in range(2):  # before the topic is known, and after
            with pytest.raises((KeyError, UnknownTopicOrPartition)):
                producer.send(name, b"x", key=b"none").result(10)
            with pytest.raises(UnknownTopicOrPartition):
                producer.send(name, b"x", key=b"far").result(10)
            assert producer.send(name, b"x", key=b"good").result(10).partition == 1
        with pytest.raises(UnknownTopicOrPartition):
            producer.send_batch(name, [b"1", b"2"], keys=[b"good", b"far"])
        with pytest.raises(KeyError):
            producer.send_batch(name, [b"1", b"2"], keys=[b"good", b"none"])
        producer.flush(10)
        assert producer.buffered_bytes == 0


def test_a_defect_in_a_turn_does_not_outlast_deadlines(
    own_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(own_bootstrap, delivery_timeout_ms=1000) as producer:
        producer.send(topic, b"1").result(10)
        sender: Any = producer._core._sender

        def broken(*_: Any) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(sender, "_send_to", broken)
        with pytest.raises(RequestTimedOut, match="not written in 1000 ms"):
            producer.send(topic, b"2").result(10)


def test_rows_on_their_way_into_a_full_buffer_fail_when_the_producer_is_closed(
    own_bootstrap: str, topic: str
) -> None:
    async def main() -> None:
        producer = AsyncProducer(own_bootstrap, buffer_bytes=1 << 20, max_request_bytes=1 << 20)
        await producer.start()
        await producer.send(topic, b"first")
        producer._sender.may_send = lambda _: False  # as if the brokers took nothing
        rows = asyncio.ensure_future(producer.send_batch(topic, [b"x" * 1000] * 10_000))
        await asyncio.sleep(0.2)
        assert not rows.done()
        await producer.close(timeout=0.1)
        with pytest.raises(Closed):
            await asyncio.wait_for(_awaited(await asyncio.wait_for(rows, 5)), 5)

    run(main())


def test_a_record_that_comes_just_after_the_close_is_refused(own_bootstrap: str, topic: str) -> None:
    """A thread may be between its look at whether the producer is closed and its record."""
    producer = Producer(own_bootstrap)
    producer.send(topic, b"1").result(10)
    append = producer._append
    producer.close()
    for name in (topic, "unknown"):
        with pytest.raises(Closed):
            append(name, None, b"2", None, None, ()).result(5)


@pytest.mark.parametrize("name", [b"bytes", None, 7, "half a \ud800 letter", "", "a" * 300, "a b"])
def test_names_that_no_topic_can_have(own_bootstrap: str, topic: str, name: Any) -> None:
    """An error at once, or of the record; nothing that waits for ever."""
    with Producer(own_bootstrap, max_block_ms=3000) as producer:
        with pytest.raises((TypeError, ValueError, InvalidTopic)):
            producer.send(name, b"x").result(10)
        with pytest.raises((TypeError, ValueError, InvalidTopic)):
            producer.send_batch(name, [b"x"])
        assert producer.send(topic, b"y").result(10).offset == 0
        assert producer.buffered_bytes == 0


def test_a_signal_while_a_batch_is_begun_leaves_nothing_charged() -> None:
    """The handler of a signal raises wherever it comes; what was not taken takes no room."""

    def interrupted() -> float:
        raise KeyboardInterrupt

    buffer = RecordBuffer(
        ProducerSettings(),
        now_ms=lambda: 1,
        monotonic=interrupted,
        random=Random(1),
        partition_function=None,
    )
    partition = Partition(0, 1, 0, (1,), (1,))
    buffer.update(Topic("t", uuid4(), False, {0: partition}))
    with pytest.raises(KeyboardInterrupt):
        buffer.append("t", None, b"1", None, None, ())
    assert buffer.used_bytes == 0
    assert not buffer.incomplete
