"""No record lost, none twice, order kept: through cut connections, lost answers and restarted brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.client.producer import AsyncProducer
from millstream.client.producer_blocking import Producer
from millstream.cluster.partition import Partition
from millstream.errors import NotEnoughReplicas, RequestTimedOut
from millstream.testing import Broker
from tests.client import logs
from tests.client.fault_proxy import PRODUCE, Fault, FaultProxy, now_and_then
from tests.client.logs import batches_in, values_in
from tests.conftest import Name

RECORDS = 4000
PARTITIONS = 3


@pytest.fixture
def proxy(either_bootstrap: str) -> Iterator[FaultProxy]:
    host, _, port = either_bootstrap.rpartition(":")
    with FaultProxy(host, int(port)) as proxy:
        yield proxy


def make_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> str:
    return asyncio.run(logs.make_topic(bootstrap, name, partitions))


async def send_all(bootstrap: str, topic: str, partitions: int, **options: Any) -> list[list[int]]:
    """Send numbers to each partition; the offsets that were told, by partition."""
    async with AsyncProducer(bootstrap, batch_bytes=300, retry_backoff_ms=10, **options) as producer:
        deliveries = []
        for number in range(RECORDS):
            await producer.room()
            deliveries.append(producer.send(topic, b"%d" % number, partition=number % partitions))
            if number % 40 == 0:
                await asyncio.sleep(0.01)
        offsets: list[list[int]] = [[] for _ in range(partitions)]
        for delivery in deliveries:
            delivered = await delivery
            offsets[delivered.partition].append(delivered.offset)
        return offsets


def expected(partitions: int) -> list[list[bytes]]:
    return [[b"%d" % number for number in range(first, RECORDS, partitions)] for first in range(partitions)]


@pytest.mark.parametrize("seed", range(3))
def test_every_record_once_and_in_order(
    either_bootstrap: str, proxy: FaultProxy, new_name: Name, seed: int
) -> None:
    topic = make_topic(either_bootstrap, new_name("faults"))
    proxy.decide = now_and_then(seed, 0.2)
    offsets = asyncio.run(send_all(proxy.bootstrap, topic, PARTITIONS))
    assert values_in(either_bootstrap, topic, PARTITIONS) == expected(PARTITIONS)
    for part in offsets:
        assert all(told in (-1, number) for number, told in enumerate(part)), "an offset that is told is true"
    for fault in (Fault.CUT_BEFORE, Fault.CUT_WITHIN, Fault.LOSE_ANSWER):
        assert proxy.count(fault) >= 1


def test_lost_answers_do_not_double_records(either_bootstrap: str, proxy: FaultProxy, new_name: Name) -> None:
    """Each batch is written at the first try, and its answer is lost."""
    topic = make_topic(either_bootstrap, new_name("lost"), 1)
    lose = iter([Fault.LOSE_ANSWER, Fault.NONE] * 20)
    proxy.decide = lambda key: next(lose, Fault.NONE) if key == PRODUCE else Fault.NONE

    async def main() -> None:
        async with AsyncProducer(proxy.bootstrap, linger_ms=0, retry_backoff_ms=10) as producer:
            for number in range(20):
                assert (await producer.send(topic, b"%d" % number)).offset == number

    asyncio.run(main())
    assert values_in(either_bootstrap, topic) == [[b"%d" % number for number in range(20)]]
    assert proxy.count(Fault.LOSE_ANSWER) == 20


def test_a_producer_that_is_not_idempotent_may_double_but_loses_and_reorders_nothing(
    either_bootstrap: str, proxy: FaultProxy, new_name: Name
) -> None:
    topic = make_topic(either_bootstrap, new_name("acks1"))
    proxy.decide = now_and_then(5, 0.1)
    asyncio.run(send_all(proxy.bootstrap, topic, PARTITIONS, acks=1))
    for found, wanted in zip(
        values_in(either_bootstrap, topic, PARTITIONS), expected(PARTITIONS), strict=True
    ):
        assert list(dict.fromkeys(found)) == wanted


def test_connections_that_are_cut_while_a_thread_sends(
    either_bootstrap: str, proxy: FaultProxy, new_name: Name
) -> None:
    topic = make_topic(either_bootstrap, new_name("cut"))
    with Producer(proxy.bootstrap, batch_bytes=2000, retry_backoff_ms=10) as producer:
        deliveries = []
        for number in range(RECORDS):
            deliveries.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
            if number % 500 == 250:
                time.sleep(0.02)
                proxy.cut()
        producer.flush(60)
        assert all(delivery.exception() is None for delivery in deliveries)
    assert values_in(either_bootstrap, topic, PARTITIONS) == expected(PARTITIONS)


def test_a_broker_that_restarts(new_name: Name) -> None:
    topic = new_name("restart")
    with Broker() as broker:
        broker.create_topic(topic, PARTITIONS)
        with Producer(broker.bootstrap, batch_bytes=2000, retry_backoff_ms=20) as producer:
            deliveries = []
            for number in range(RECORDS):
                deliveries.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
                if number % 1000 == 500:
                    broker.restart()
            producer.flush(60)
            assert all(delivery.exception() is None for delivery in deliveries)
        assert values_in(broker.bootstrap, topic, PARTITIONS) == expected(PARTITIONS)
        headers = [batch.header for batch in batches_in(broker.bootstrap, topic, PARTITIONS)]
        assert {header.producer_epoch for header in headers} == {0}, "nothing was reset"


def test_a_broker_that_does_not_come_back_is_an_error_by_the_deadline(new_name: Name) -> None:
    topic = new_name("gone")
    with Broker() as broker:
        broker.create_topic(topic)
        with Producer(broker.bootstrap, delivery_timeout_ms=1500, request_timeout_ms=500) as producer:
            producer.send(topic, b"one").result(10)
            broker._end_thread()
            started = time.monotonic()
            delivery = producer.send(topic, b"two")
            with pytest.raises(RequestTimedOut, match=r"not written in 1500 ms"):
                delivery.result(10)
            assert 1.3 < time.monotonic() - started < 4
            broker.start()
            assert producer.send(topic, b"three").result(10).offset == 1, "it goes on afterwards"
        assert values_in(broker.bootstrap, topic) == [[b"one", b"three"]]


def test_records_wait_for_a_broker_that_comes_later(new_name: Name, tmp_path: Any) -> None:
    broker = Broker(data=tmp_path)
    broker.start()
    broker._end_thread()
    with Producer(broker.bootstrap) as producer:
        delivery = producer.send("later", b"v")
        time.sleep(0.5)
        assert not delivery.done()
        broker.start()
        try:
            assert delivery.result(20).offset == 0
        finally:
            producer.close()
            broker.stop()


def test_a_record_whose_time_is_up_holds_back_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a sequence and is not in the log: the broker does not wait for it once it is given up."""
    writable, is_refusing = Partition._check_writable, False

    def check(partition: Partition, acks: int) -> None:
        if is_refusing:
            raise NotEnoughReplicas
        writable(partition, acks)

    monkeypatch.setattr(Partition, "_check_writable", check)

    async def main(bootstrap: str) -> None:
        nonlocal is_refusing
        options: Any = {"delivery_timeout_ms": 1500, "request_timeout_ms": 500, "max_block_ms": 10_000}
        async with AsyncProducer(bootstrap, **options) as producer:
            await producer.send("t", b"0")
            is_refusing = True
            with pytest.raises(RequestTimedOut):
                await producer.send("t", b"1")
            is_refusing = False
            assert [(await producer.send("t", b"later")).offset for _ in range(3)] == [1, 2, 3]

    with Broker({"num.partitions": "1"}) as broker:
        asyncio.run(main(broker.bootstrap))
