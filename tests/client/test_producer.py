"""The producer for asyncio, on Millstream and on Apache Kafka: what is sent is what stands in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from millstream.client.errors import NoSuchTopic
from millstream.client.face import Closed
from millstream.client.producer import AsyncProducer
from millstream.client.producer_buffer import BufferFull
from millstream.errors import InvalidTopic, MessageTooLarge, RequestTimedOut, UnknownTopicOrPartition
from millstream.protocol.batch import murmur2
from tests.client.logs import batches_in, make_topic, records_in, values_in
from tests.conftest import Name
from tests.processes import free_port

Make = Callable[..., str]


@pytest.fixture
def topic(either_bootstrap: str, new_name: Name) -> Make:
    """Makes topics."""

    def make(partitions: int = 1, **configs: str) -> str:
        return asyncio.run(make_topic(either_bootstrap, new_name("p"), partitions, **configs))

    return make


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_a_record_with_all_that_it_can_have(either_bootstrap: str, topic: Make) -> None:
    name = topic()
    headers = [("a", b"1"), ("a", None), ("ü", b"")]

    async def main() -> None:
        async with AsyncProducer(either_bootstrap) as producer:
            delivered = await producer.send(name, b"v", key=b"k", timestamp_ms=1234567890123, headers=headers)
            assert delivered == (name, 0, 0, 1234567890123)
            assert (await producer.send(name, None, key=b""))[:3] == (name, 0, 1)
            assert (await producer.send(name, b"")).offset == 2

    run(main())
    first, second, third = records_in(either_bootstrap, name)[0]
    assert (first.value, first.key, first.timestamp) == (b"v", b"k", 1234567890123)
    assert first.headers == tuple(headers)
    assert (second.value, second.key, second.headers) == (None, b"", ())
    assert (third.value, third.key) == (b"", None)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(either_bootstrap: str, topic: Make, codec: Any) -> None:
    name = topic()
    values = [b"a number of %d, and much that repeats, much that repeats" % n for n in range(3000)]

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, compression=codec) as producer:
            deliveries = [producer.send(name, value) for value in values]
            assert [(await delivery).offset for delivery in deliveries] == list(range(3000))

    run(main())
    assert values_in(either_bootstrap, name) == [values]
    batches = batches_in(either_bootstrap, name)
    assert {batch.header.codec for batch in batches} == {
        ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    }
    assert len(batches) < 30


def test_records_linger_and_travel_together(either_bootstrap: str, topic: Make) -> None:
    name = topic()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncProducer(either_bootstrap, linger_ms=600) as producer:
            started = loop.time()
            one = producer.send(name, b"one")
            await asyncio.sleep(0.1)
            two = producer.send(name, b"two")
            assert (await one).offset + 1 == (await two).offset
            assert loop.time() - started > 0.5
        async with AsyncProducer(either_bootstrap, linger_ms=50_000) as producer:
            producer.send(name, b"three")
            await asyncio.wait_for(producer.flush(), 30)  # which does not linger

    run(main())
    assert [len(batch.records) for batch in batches_in(either_bootstrap, name)] == [2, 1]


def test_a_full_batch_does_not_linger(either_bootstrap: str, topic: Make) -> None:
    name = topic()

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, linger_ms=20_000, batch_bytes=1000) as producer:
            deliveries = [producer.send(name, bytes(100)) for _ in range(20)]
            await asyncio.wait_for(deliveries[0], 10)
            assert not deliveries[-1].done()

    run(main())
    sizes = [batch.header.size for batch in batches_in(either_bootstrap, name)]
    assert max(sizes) <= 1000
    assert len(values_in(either_bootstrap, name)[0]) == 20, "close writes what is left"


def test_keys_go_where_java_puts_them(either_bootstrap: str, topic: Make) -> None:
    name = topic(7)
    keys = [b"key-%d" % n for n in range(200)] + [b""]

    async def main() -> None:
        async with AsyncProducer(either_bootstrap) as producer:
            deliveries = [producer.send(name, b"v", key=key) for key in keys]
            for key, delivery in zip(keys, deliveries, strict=True):
                assert (await delivery).partition == (murmur2(key) & 0x7FFFFFFF) % 7

    run(main())
    # what Java's DefaultPartitioner gives for these, by its published test vectors
    assert [murmur2(key) for key in (b"21", b"foobar", b"a-little-bit-long-string")] == [
        -973932308,
        -790332482,
        -985981536,
    ]


def test_records_without_a_key_stick_to_a_partition_for_a_batch(either_bootstrap: str, topic: Make) -> None:
    name = topic(5)

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, batch_bytes=2000) as producer:
            for _ in range(1000):
                producer.send(name, bytes(100))
            await producer.flush()

    run(main())
    batches = batches_in(either_bootstrap, name, 5)
    assert {batch.partition.partition for batch in batches} == set(range(5))
    assert sum(len(batch.records) for batch in batches) == 1000
    assert len(batches) <= 1000 / 15


def test_round_robin_and_a_function_of_ones_own(either_bootstrap: str, topic: Make) -> None:
    in_turn, chosen = topic(3), topic(3)

    def by_last_byte(name: str, key: bytes | None, partitions: int) -> int:
        assert (name, partitions) == (chosen, 3)
        return (key or b"\0")[-1] % partitions

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, partitioner="round_robin") as producer:
            found = [(await producer.send(in_turn, b"v", key=b"same")).partition for _ in range(6)]
            assert found == [0, 1, 2, 0, 1, 2]
        async with AsyncProducer(either_bootstrap, partitioner=by_last_byte, linger_ms=0) as producer:
            found = [(await producer.send(chosen, b"v", key=bytes([n]))).partition for n in range(6)]
            assert found == [0, 1, 2, 0, 1, 2]
            assert (await producer.send(chosen, b"v", key=b"\0", partition=2)).partition == 2

    run(main())


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_acks(either_bootstrap: str, topic: Make, acks: Any) -> None:
    name = topic()

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, acks=acks, batch_bytes=500) as producer:
            deliveries = [producer.send(name, b"%d" % n) for n in range(500)]
            offsets = [(await delivery).offset for delivery in deliveries]
            assert offsets == ([-1] * 500 if acks == 0 else list(range(500)))

    run(main())
    assert values_in(either_bootstrap, name) == [[b"%d" % n for n in range(500)]]
    has_ids = {batch.header.producer_id >= 0 for batch in batches_in(either_bootstrap, name)}
    assert has_ids == {acks == "all"}


def test_sequences_count_on_and_five_batches_are_in_flight(either_bootstrap: str, topic: Make) -> None:
    name = topic()

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, batch_bytes=1000) as producer:
            await asyncio.gather(*(producer.send(name, bytes(90)) for _ in range(2000)))

    run(main())
    expected = 0
    for batch in batches_in(either_bootstrap, name):
        assert batch.header.base_sequence == expected
        assert batch.header.producer_epoch == 0
        expected += len(batch.records)
    assert expected == 2000


def test_back_pressure(either_bootstrap: str, topic: Make) -> None:
    name = topic()
    options: dict[str, Any] = {"buffer_bytes": 50_000, "max_request_bytes": 20_000, "batch_bytes": 10_000}

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, **options) as producer:
            await producer.send(name, b"first")
            with pytest.raises(BufferFull, match="of 50000 bytes"):
                _ = [producer.send(name, bytes(100)) for _ in range(1000)]
            most = 0
            for _ in range(2000):
                await producer.room()
                producer.send(name, bytes(100))
                most = max(most, producer.buffered_bytes)
            assert 10_000 < most <= 50_000
            await producer.flush()
            assert producer.buffered_bytes == 0

    run(main())
    assert len(values_in(either_bootstrap, name)[0]) > 2000


def test_what_is_too_large_is_refused(either_bootstrap: str, topic: Make) -> None:
    name, small = topic(), topic(max_message_bytes="2000")

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, max_request_bytes=100_000) as producer:
            with pytest.raises(MessageTooLarge, match="larger than max_request_bytes"):
                producer.send(name, bytes(100_001))
            assert (await producer.send(name, bytes(90_000))).offset == 0, (
                "larger than a batch is alone in one"
            )
            refused = producer.send(small, bytes(5000))
            with pytest.raises(MessageTooLarge):
                await refused
            after = [producer.send(small, b"%d" % n) for n in range(10)]
            assert [(await each).offset for each in after] == list(range(10)), "it goes on after that"

    run(main())


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_batch_that_is_too_large_for_its_topic_is_split(
    either_bootstrap: str, topic: Make, codec: Any
) -> None:
    name = topic(max_message_bytes="1500")
    random = Random(1)
    values = [random.randbytes(100) for _ in range(600)]

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, compression=codec, batch_bytes=20_000) as producer:
            producer.send(name, values[0])
            deliveries = [producer.send(name, value, headers=[("h", b"v")]) for value in values[1:]]
            too_large = producer.send(name, random.randbytes(3000))
            last = producer.send(name, b"last")
            assert [(await each).offset for each in deliveries] == list(range(1, 600))
            with pytest.raises(MessageTooLarge):
                await too_large
            assert (await last).offset == 600
            rows = await (await producer.send_batch(name, values[:50]))
            assert sum(each.count for each in rows) == 50
            assert len(rows) > 1
            await producer.flush()
            assert producer.buffered_bytes == 0

    run(main())
    assert values_in(either_bootstrap, name) == [[*values, b"last", *values[:50]]]


def test_topics_that_do_not_exist(either_bootstrap: str, new_name: Name) -> None:
    async def main() -> None:
        async with AsyncProducer(either_bootstrap, auto_create_topics=False, max_block_ms=5000) as producer:
            with pytest.raises(NoSuchTopic, match="does not exist"):
                await producer.send(new_name("none"), b"v")
            with pytest.raises(InvalidTopic):
                await producer.send("no/such/name", b"v")
        async with AsyncProducer(either_bootstrap) as producer:
            name = new_name("auto")
            deliveries = [producer.send(name, b"%d" % n, partition=0) for n in range(3)]
            assert [(await each).offset for each in deliveries] == [0, 1, 2]
            with pytest.raises(UnknownTopicOrPartition, match="not 99"):
                producer.send(name, b"v", partition=99)

    run(main())


def test_callbacks(either_bootstrap: str, topic: Make) -> None:
    name = topic()
    told: list[int] = []

    async def main() -> None:
        async with AsyncProducer(either_bootstrap) as producer:
            for _ in range(5):
                producer.send(name, b"v").add_done_callback(lambda each: told.append(each.result().offset))
            late = producer.send(name, b"v")
            with pytest.raises(asyncio.InvalidStateError):
                late.result()
            await producer.flush()
            late.add_done_callback(lambda each: told.append(each.result().offset))
            assert late.exception() is None

    run(main())
    assert told == [0, 1, 2, 3, 4, 5]


def test_nobody_there(new_name: Name) -> None:
    address = f"127.0.0.1:{free_port()}"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with AsyncProducer(address, max_block_ms=600) as producer:
            with pytest.raises(RequestTimedOut, match="connect"):
                await producer.send("t", b"v")
            assert loop.time() - started < 5
            unknown = producer.send("t", b"v")
            await producer.close(timeout=0.1)
            with pytest.raises(Closed):
                await unknown
            with pytest.raises(Closed):
                producer.send("t", b"v")

    run(main())


def test_options() -> None:
    with pytest.raises(TypeError, match="linger"):
        AsyncProducer("localhost", linger=5)  # type: ignore[call-arg]
    bad: list[dict[str, Any]] = [
        {"acks": 2},
        {"acks": 1, "idempotent": True},
        {"compression": "rar"},
        {"max_in_flight": 6},
        {"transactional_id": "t", "idempotent": False},
        {"batch_bytes": 2 << 20},
        {"partitioner": "best"},
        {"serializer": "xml"},
    ]
    for options in bad:
        with pytest.raises(ValueError):
            AsyncProducer("localhost", **options)
    with pytest.raises(RuntimeError, match="start the producer"):
        AsyncProducer("localhost").send("t", b"v")
