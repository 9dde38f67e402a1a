"""Transactions, in both versions of the protocol, on Millstream and on Apache Kafka."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import pytest

from millstream import AsyncProducer, Producer, TopicPartition
from millstream.client import producer_coordinator
from millstream.client.cluster import Cluster
from millstream.client.group_metadata import GroupMetadata
from millstream.client.group_offsets import fetch_committed
from millstream.client.offsets import READ_COMMITTED
from millstream.client.producer_buffer import RecordBuffer
from millstream.client.producer_coordinator import OffsetAndMetadata
from millstream.client.producer_delivery import Delivery
from millstream.client.transactions import list_transactions
from millstream.client.transactions_client import NoTransaction, TransactionAborted, TransactionFailed
from millstream.deadline import Deadline
from millstream.errors import (
    InvalidProducerIdMapping,
    InvalidTxnState,
    MessageTooLarge,
    ProducerFenced,
    UnknownMemberId,
)
from millstream.testing import Broker
from tests.client.consuming import new_topic
from tests.client.fault_proxy import Fault, FaultProxy
from tests.client.logs import batches_in, values_in
from tests.client.test_producer import Make, run, topic
from tests.client.test_producer_faults import proxy
from tests.conftest import Name

__all__ = ["proxy", "topic"]

COMMITTED = {"isolation_level": READ_COMMITTED}


@pytest.fixture(params=[1, 2], autouse=True)
def transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Version 1, of Kafka before 4.0: partitions are added by the producer, epochs raised on errors only."""
    version: int = request.param
    if version == 1:
        monkeypatch.setattr(producer_coordinator, "VERSION_2", 99)
    return version


def test_commits_and_aborts(
    either_bootstrap: str, topic: Make, new_name: Name, transaction_version: int
) -> None:
    name = topic(2)

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, transactional_id=new_name("id")) as producer:
            for number in range(6):
                try:
                    async with producer.transaction():
                        for part in range(2):
                            producer.send(name, b"%d" % number, partition=part)
                        await producer.flush()
                        if number % 3 == 2:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
            async with producer.transaction():
                pass  # nothing to commit
            with pytest.raises(NoTransaction):
                producer.send(name, b"outside")

    run(main())
    assert values_in(either_bootstrap, name, 2, **COMMITTED) == [[b"0", b"1", b"3", b"4"]] * 2
    data = [batch.header for batch in batches_in(either_bootstrap, name, 2) if not batch.header.is_control]
    assert all(header.is_transactional for header in data)
    epochs = {header.producer_epoch for header in data}
    assert len(epochs) == (1 if transaction_version == 1 else 6)


def test_records_of_an_aborted_transaction_say_so(either_bootstrap: str, topic: Make, new_name: Name) -> None:
    name = topic()

    async def main() -> None:
        async with AsyncProducer(
            either_bootstrap, transactional_id=new_name("id"), linger_ms=10_000
        ) as producer:
            producer.begin_transaction()
            delivery = producer.send(name, b"never")
            await producer.abort_transaction()
            with pytest.raises(TransactionAborted):
                await delivery
            async with producer.transaction():
                delivery = producer.send(name, b"once")
            assert (await delivery).partition == 0

    run(main())
    assert values_in(either_bootstrap, name, **COMMITTED) == [[b"once"]]


def test_closing_aborts_what_is_open(either_bootstrap: str, topic: Make, new_name: Name) -> None:
    name = topic()
    with Producer(either_bootstrap, transactional_id=new_name("id"), linger_ms=1000) as producer:
        producer.begin_transaction()
        producer.send(name, b"written").result(30)
        unsent = producer.send(name, b"unsent")
    with pytest.raises(TransactionAborted):
        unsent.result(0)
    assert values_in(either_bootstrap, name, **COMMITTED) == [[]], "nothing is open, nothing committed"


def test_steps_in_the_wrong_order(either_bootstrap: str, new_name: Name) -> None:
    async def main() -> None:
        async with AsyncProducer(either_bootstrap, transactional_id=new_name("id")) as producer:
            with pytest.raises(InvalidTxnState, match="no transaction is open"):
                await producer.commit_transaction()
            with pytest.raises(InvalidTxnState, match="no transaction is open"):
                await producer.abort_transaction()
            producer.begin_transaction()
            with pytest.raises(InvalidTxnState, match="open already"):
                producer.begin_transaction()
            await producer.abort_transaction()
        async with AsyncProducer(either_bootstrap) as producer:
            with pytest.raises(InvalidTxnState, match="without a transactional_id"):
                producer.begin_transaction()

    run(main())


def test_a_record_that_fails_leaves_only_the_abort(
    either_bootstrap: str, topic: Make, new_name: Name
) -> None:
    small, name = topic(max_message_bytes="1000"), topic()

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, transactional_id=new_name("id")) as producer:
            async with producer.transaction():
                producer.send(small, b"before")
            producer.begin_transaction()
            producer.send(name, b"aborted")
            with pytest.raises(MessageTooLarge):
                await producer.send(small, bytes(5000))
            with pytest.raises(TransactionFailed, match="has to be aborted"):
                producer.send(name, b"after")
            with pytest.raises(TransactionFailed):
                await producer.commit_transaction()
            await producer.abort_transaction()
            with pytest.raises(MessageTooLarge):
                await whole(producer, small)
            async with producer.transaction():
                for number in range(3):
                    producer.send(small, b"%d" % number)

    async def whole(producer: AsyncProducer, name: str) -> None:
        async with producer.transaction():
            producer.send(name, bytes(5000))

    run(main())
    assert values_in(either_bootstrap, small, **COMMITTED) == [[b"before", b"0", b"1", b"2"]]
    assert values_in(either_bootstrap, name, **COMMITTED) == [[]]


def test_the_newer_of_two_producers_shuts_the_older_out(
    either_bootstrap: str, topic: Make, new_name: Name
) -> None:
    name, transactional_id = topic(), new_name("id")

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, transactional_id=transactional_id) as older:
            older.begin_transaction()
            await older.send(name, b"older")
            async with AsyncProducer(either_bootstrap, transactional_id=transactional_id) as newer:
                with pytest.raises(ProducerFenced):
                    await older.commit_transaction()
                with pytest.raises(ProducerFenced):
                    older.begin_transaction()
                async with newer.transaction():
                    newer.send(name, b"newer")

    run(main())
    assert values_in(either_bootstrap, name, **COMMITTED) == [[b"newer"]]


@pytest.mark.parametrize("what", ["records", "offsets"])
def test_a_producer_whose_transactional_id_has_expired_says_so(new_name: Name, what: str) -> None:
    quick = {
        "transactional.id.expiration.ms": "500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    }

    async def main(bootstrap: str) -> None:
        group, place = new_name("group"), TopicPartition(await new_topic(bootstrap), 0)

        async def commit(producer: AsyncProducer) -> None:
            async with producer.transaction():
                if what == "records":
                    await producer.send(place.topic, b"v")
                else:
                    await producer.send_offsets({place: 1}, group)

        async with (
            AsyncProducer(bootstrap, transactional_id=new_name("id")) as producer,
            Cluster(bootstrap) as cluster,
        ):
            async with asyncio.timeout(60):
                while await list_transactions(cluster, Deadline(30_000)):
                    await asyncio.sleep(0.05)
            with pytest.raises((InvalidProducerIdMapping, TransactionAborted)) as caught:
                await commit(producer)
            said = [str(caught.value), *getattr(caught.value, "__notes__", ())]
            assert any("expiration.ms: make a new producer" in each for each in said)
            with pytest.raises(ProducerFenced, match=r"expiration\.ms: make a new producer"):
                producer.begin_transaction()

    with Broker(quick) as broker:
        run(main(broker.bootstrap))


def test_offsets_are_committed_with_the_records(either_bootstrap: str, topic: Make, new_name: Name) -> None:
    name, group = topic(2), new_name("group")
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)

    async def check_committed(expected: dict[TopicPartition, int]) -> None:
        """A transaction that was ended shows a moment later: its markers are still being written."""
        async with Cluster(either_bootstrap) as cluster:
            deadline = Deadline(20_000)
            offsets: dict[TopicPartition, int] = {}
            while offsets != expected:
                assert not deadline.has_passed, offsets
                found = await fetch_committed(cluster, group, deadline)
                offsets = {partition: each.offset for partition, each in found.items()}

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, transactional_id=new_name("id")) as producer:
            async with producer.transaction():
                producer.send(name, b"v")
                await producer.send_offsets({first: 5, second: OffsetAndMetadata(7, "why")}, group)
            await check_committed({first: 5, second: 7})
            with pytest.raises(ZeroDivisionError):
                await aborted(producer)
            await check_committed({first: 5, second: 7})
            with pytest.raises(UnknownMemberId):
                await of_a_stranger(producer)
            async with producer.transaction():
                await producer.send_offsets({first: 6}, GroupMetadata(group))
                await producer.send_offsets({first: 8}, group)
                await producer.send_offsets({}, group)
            await check_committed({first: 8, second: 7})

    async def aborted(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send_offsets({first: 100}, group)
            raise ZeroDivisionError

    async def of_a_stranger(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send_offsets({first: 100}, GroupMetadata(group, 3, "nobody"))

    run(main())


def test_a_blocking_producer(either_bootstrap: str, topic: Make, new_name: Name) -> None:
    name, group = topic(), new_name("group")
    with Producer(either_bootstrap, transactional_id=new_name("id")) as producer:
        with producer.transaction():
            delivery = producer.send(name, b"one")
            producer.send_offsets({TopicPartition(name, 0): 1}, group)
        assert delivery.result(0).offset == 0
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(name, b"never", timestamp_ms=1 // 0)
        producer.begin_transaction()
        producer.send(name, b"nor this")
        producer.abort_transaction(10)
        with pytest.raises(NoTransaction):
            producer.send(name, b"outside")
    assert values_in(either_bootstrap, name, **COMMITTED) == [[b"one"]]


def test_what_a_thread_sends_during_an_abort_is_not_in_the_next_transaction(
    either_bootstrap: str, topic: Make, new_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    is_sending, may_send, append = threading.Event(), threading.Event(), RecordBuffer.append

    def held(self: RecordBuffer, *record: Any) -> Delivery:
        is_sending.set()
        assert may_send.wait(10)
        return append(self, *record)

    with Producer(either_bootstrap, transactional_id=new_name("id")) as producer:
        producer.begin_transaction()
        with monkeypatch.context() as patch:
            patch.setattr(RecordBuffer, "append", held)
            sending = threading.Thread(target=lambda: producer.send(name, b"never"))
            sending.start()
            assert is_sending.wait(10)
        threading.Timer(0.3, may_send.set).start()
        producer.abort_transaction(10)
        sending.join(10)
        with producer.transaction():
            producer.send(name, b"one")
    assert values_in(either_bootstrap, name, **COMMITTED) == [[b"one"]]


TRANSACTIONAL = {0, 22, 24, 25, 26, 28}


@pytest.mark.parametrize("seed", range(2))
def test_all_or_nothing_once_and_in_order_through_faults(
    either_bootstrap: str, proxy: FaultProxy, topic: Make, new_name: Name, seed: int
) -> None:
    name = topic(2)
    random = Random(seed)
    kinds = [fault for fault in Fault if fault is not Fault.NONE]
    proxy.decide = lambda key: (
        random.choice(kinds) if key in TRANSACTIONAL and random.random() < 0.25 else Fault.NONE
    )
    proxy.delay_s = 0.01
    committed: list[bytes] = []

    async def main() -> None:
        options: Any = {"transactional_id": new_name("id"), "batch_bytes": 200, "retry_backoff_ms": 5}
        async with AsyncProducer(proxy.bootstrap, **options) as producer:
            for number in range(25):
                values = [b"%d-%d" % (number, index) for index in range(30)]
                try:
                    async with producer.transaction():
                        for value in values:
                            for part in range(2):
                                producer.send(name, value, partition=part)
                        await producer.send_offsets({TopicPartition(name, 0): number}, "faults")
                        if number % 4 == 3:
                            raise ZeroDivisionError
                    committed.extend(values)
                except ZeroDivisionError:
                    pass

    asyncio.run(asyncio.wait_for(main(), 100))
    assert values_in(either_bootstrap, name, 2, **COMMITTED) == [committed] * 2
    assert len(committed) == 19 * 30
    assert sum(proxy.count(kind) for kind in kinds) > 10
