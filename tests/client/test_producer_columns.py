"""Many records at once: lists and Arrow tables, on Millstream and on Apache Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from millstream import AsyncProducer, Producer
from millstream.client import producer_rows
from millstream.client.offsets import READ_COMMITTED
from millstream.client.producer_columns import DeliveredRange
from millstream.client.producer_rows import SMALL_CHUNK_BYTES, ArrowRows, arrow_rows
from millstream.client.producer_sender import Sender
from millstream.client.transactions_client import NoTransaction
from millstream.errors import MessageTooLarge, MillstreamError, RequestTimedOut, UnknownTopicOrPartition
from millstream.protocol.batch import murmur2
from millstream.testing import Broker
from tests.client.fault_proxy import FaultProxy, now_and_then
from tests.client.logs import batches_in, records_in, values_in
from tests.client.test_producer import Make, run, topic
from tests.client.test_producer_faults import proxy
from tests.conftest import Name
from tests.processes import until

__all__ = ["proxy", "topic"]

VALUES = [b"value %06d" % number for number in range(20_000)]


def test_a_list_of_values(either_bootstrap: str, topic: Make) -> None:
    name = topic()

    async def main() -> list[DeliveredRange]:
        async with AsyncProducer(either_bootstrap) as producer:
            producer.send(name, b"before")
            deliveries = await producer.send_batch(name, VALUES)
            producer.send(name, b"after")
            return await deliveries

    delivered = run(main())
    assert values_in(either_bootstrap, name) == [[b"before", *VALUES, b"after"]]
    assert sum(each.count for each in delivered) == len(VALUES)
    offset = 1
    for each in delivered:
        assert (each.topic, each.partition, each.offset) == (name, 0, offset)
        offset += each.count
    assert len(batches_in(either_bootstrap, name)) < 10


def test_callbacks_of_many(either_bootstrap: str, topic: Make) -> None:
    name = topic(3)
    told: list[Any] = []
    heard = threading.Event()
    with Producer(either_bootstrap, linger_ms=0) as producer:
        deliveries = producer.send_batch(name, [bytes(1000)] * 2000, keys=[b"%d" % i for i in range(2000)])
        deliveries.add_done_callback(told.append)
        deliveries.add_done_callback(lambda _: heard.set())
        assert heard.wait(30)
        assert told == [deliveries]
        assert deliveries.done()
        assert sum(each.count for each in deliveries.result(0)) == 2000
        deliveries.add_done_callback(told.append)
        assert told == [deliveries] * 2
        failed = producer.send_batch(name, [b"1"] * 10)
        failed.add_done_callback(lambda it: told.append(it.written()))
    assert [each.count for each in told[2]] == [10]


def test_columns_of_a_list(either_bootstrap: str, topic: Make) -> None:
    name = topic(5)
    keys = [None if number % 10 == 9 else b"%d" % number for number in range(2000)]
    with Producer(either_bootstrap, serializer="str") as producer:
        producer.send_batch(
            name,
            [f"value {number}" for number in range(2000)],
            keys=keys,
            timestamps_ms=range(10**12, 10**12 + 2000),
            headers=[(("n", b"%d" % number),) for number in range(2000)],
        ).result(20)
    found = records_in(either_bootstrap, name, 5)
    for index, part in enumerate(found):
        keyed = [record for record in part if record.key is not None]
        assert keyed
        assert all((murmur2(record.key or b"") & 0x7FFFFFFF) % 5 == index for record in keyed)
        numbers = [int(record.headers[0][1] or b"") for record in keyed]
        assert numbers == sorted(numbers)
    for record in (record for part in found for record in part):
        number = int(record.headers[0][1] or b"")
        assert (record.value, record.timestamp) == (b"value %d" % number, 10**12 + number)
    assert sum(map(len, found)) == 2000


def test_an_arrow_table(either_bootstrap: str, topic: Make) -> None:
    name = topic(3)
    when = datetime(2026, 1, 2, tzinfo=UTC)
    table = pa.table(
        {
            "offset": pa.array(range(1000), pa.int64()),
            "key": pa.array([b"%d" % (number % 50) for number in range(1000)], pa.binary()),
            "value": pa.array([None if number == 3 else f"ü{number}" for number in range(1000)], pa.string()),
            "timestamp": pa.array([when] * 1000, pa.timestamp("us", "UTC")),
        }
    )

    async def main() -> None:
        async with AsyncProducer(either_bootstrap) as producer:
            delivered = await (await producer.send_arrow(name, table.slice(0, 600)))
            assert sum(each.count for each in delivered) == 600
            await (await producer.send_arrow(name, table.slice(600).to_batches()[0]))

    run(main())
    found = [record for part in records_in(either_bootstrap, name, 3) for record in part]
    assert sorted(record.value or b"" for record in found) == sorted(
        b"" if number == 3 else f"ü{number}".encode() for number in range(1000)
    )
    assert {record.timestamp for record in found} == {int(when.timestamp() * 1000)}
    for index, part in enumerate(records_in(either_bootstrap, name, 3)):
        assert all((murmur2(record.key or b"") & 0x7FFFFFFF) % 3 == index for record in part)


def test_the_chunks_of_a_table_share_batches(either_bootstrap: str, topic: Make) -> None:
    """Each chunk alone would make a batch for each partition; of a run of them only the last is not full."""
    name = topic(2)
    chunks = [
        pa.record_batch(
            {
                "key": pa.array([b"%d" % number for number in range(first, first + 10_000)], pa.binary()),
                "value": pa.array(
                    [b"%0110d" % number for number in range(first, first + 10_000)], pa.binary()
                ),
            }
        )
        for first in range(0, 160_000, 10_000)
    ]
    table = pa.Table.from_batches(chunks)
    assert min(chunk.nbytes for chunk in chunks) > SMALL_CHUNK_BYTES
    with Producer(either_bootstrap) as producer:
        delivered = producer.send_arrow(name, table).result(20)
        assert len(delivered) <= 2 * 16 * 3 // 4  # of 2 partitions and 16 chunks
        assert sum(each.count for each in delivered) == 160_000
        to_one = producer.send_arrow(name, table, partition=1).result(20)
        assert {each.partition for each in to_one} == {1}
    found = records_in(either_bootstrap, name, 2)
    before = sum(each.count for each in delivered if each.partition == 1)
    keyed = [found[0], found[1][:before]]
    for part in keyed:
        numbers = [int(record.value or b"") for record in part]
        assert numbers == sorted(numbers)
        assert [int(record.key or b"") for record in part] == numbers
    assert sorted(int(record.key or b"") for part in keyed for record in part) == list(range(160_000))
    assert [int(record.key or b"") for record in found[1][before:]] == list(range(160_000))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks stay as they are, though small ones are joined otherwise."""
    monkeypatch.setattr(producer_rows, "SMALL_CHUNK_BYTES", 0)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_of_different_kinds_share_batches(either_bootstrap: str, topic: Make) -> None:
    """With headers and without, with null keys, empty, with partitions that are named."""
    name = topic(3)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        {"value": pa.binary(), "key": pa.binary(), "partition": pa.int32(), "headers": headers}
    )
    pair = [{"key": "h", "value": b"1"}]
    parts: list[list[dict[str, Any]]] = [
        [{"value": b"%d" % n, "key": b"k%d" % n, "headers": pair} for n in range(20)],
        [{"value": b"%d" % n, "key": b"k%d" % n} for n in range(20, 40)],
        [],
        [{"value": b"%d" % n, "partition": 2} for n in range(40, 60)],
        [{"value": b"%d" % n, "key": b"k", "partition": n % 2, "headers": pair} for n in range(60, 80)],
    ]
    table = pa.Table.from_batches([pa.RecordBatch.from_pylist(part, schema) for part in parts])
    assert len(arrow_rows(table)) == 4  # none for the empty one
    with Producer(either_bootstrap) as producer:
        assert len(producer.send_arrow(name, table).result(20)) == 3
        bad = table.set_column(2, "partition", pa.array([*[0] * 79, 3], pa.int32()))
        with pytest.raises(UnknownTopicOrPartition, match="not 3"):
            producer.send_arrow(name, bad)
    wanted: list[list[bytes]] = [[], [], []]
    for row in (row for part in parts for row in part):
        index = row["partition"] if "partition" in row else (murmur2(row["key"]) & 0x7FFFFFFF) % 3
        wanted[index].append(row["value"])
    assert values_in(either_bootstrap, name, 3) == wanted
    found = {
        record.value: record.headers for part in records_in(either_bootstrap, name, 3) for record in part
    }
    assert [len(found[b"%d" % n]) for n in range(80)] == [1] * 20 + [0] * 40 + [1] * 20


@pytest.mark.usefixtures("small_chunks")
def test_a_large_row_among_chunks(either_bootstrap: str, topic: Make) -> None:
    """It has a batch of its own, between those of the rows before it and after it."""
    name = topic()
    small = [b"%d" % number for number in range(10)]
    large = bytes(1_000_000)
    columns = [[*small, large], [large, *small], small]
    parts = [pa.record_batch({"value": pa.array(column, pa.binary())}) for column in columns]
    table = pa.Table.from_batches(parts)
    assert len(arrow_rows(table)) == 3
    with Producer(either_bootstrap) as producer:
        delivered = producer.send_arrow(name, table).result(20)
        assert [each.count for each in delivered] == [10, 1, 1, 20]
        with pytest.raises(MessageTooLarge):
            producer.send_arrow(
                name, pa.Table.from_batches([*parts, pa.record_batch({"value": [bytes(2 << 20)]})])
            )
    assert values_in(either_bootstrap, name)[0][:32] == [value for column in columns for value in column]


def test_what_else_a_table_can_have(either_bootstrap: str, topic: Make) -> None:
    name = topic(3)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "value": pa.chunked_array([[b"a"], [b"b", b"c"]], pa.large_binary()),
            "partition": pa.array([2, 0, 2], pa.int64()),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None, []], kind),
        }
    )
    with Producer(either_bootstrap) as producer:
        producer.send_arrow(name, table).result(10)
        producer.send_arrow(name, pa.table({"value": [b"one"]}), partition=1).result(10)
        producer.send_arrow(name, pa.table({"value": pa.array([], pa.binary())})).result(10)
        with pytest.raises(ValueError, match="a column named value"):
            producer.send_arrow(name, pa.table({"v": [b"x"]}))
        with pytest.raises(UnknownTopicOrPartition, match="not 3"):
            producer.send_arrow(name, pa.table({"value": [b"x"], "partition": [3]}))
        with pytest.raises(ValueError, match="1 keys for 2 values"):
            producer.send_batch(name, [b"a", b"b"], keys=[b"k"])
        with pytest.raises(MessageTooLarge):
            producer.send_batch(name, [bytes(2 << 20)])
        with pytest.raises(TypeError, match="bytes, not int, str"):
            producer.send_batch(name, [b"good", "no bytes"], keys=[None, 5])
    found = records_in(either_bootstrap, name, 3)
    assert [[record.value for record in part] for part in found] == [[b"b"], [b"one"], [b"a", b"c"]]
    assert [record.headers for record in found[2]] == [(("h", b"1"),), ()]


def test_a_column_without_any_headers_makes_no_objects_of_rows() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for headers, is_columns in (([None, None], True), ([None, [{"key": "h", "value": b"1"}]], False)):
        batch = pa.record_batch({"value": [b"a", b"b"], "headers": pa.array(headers, kind)})
        (rows,) = arrow_rows(batch)
        assert isinstance(rows, ArrowRows) is is_columns


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_row_without_a_partition_goes_where_its_key_says(
    either_bootstrap: str, topic: Make, with_headers: bool
) -> None:
    name = topic(3)
    keys = [b"%d" % number for number in range(100)]
    columns: dict[str, Any] = {
        "key": keys,
        "value": keys,
        "partition": pa.array([1, None] * 50, pa.int32()),
    }
    if with_headers:
        columns["headers"] = [[{"key": "h", "value": b"1"}]] * 100
    with Producer(either_bootstrap) as producer:
        producer.send_arrow(name, pa.table(columns).slice(1)).result(20)
    chosen = [1 if number % 2 == 0 else (murmur2(keys[number]) & 0x7FFFFFFF) % 3 for number in range(100)]
    assert values_in(either_bootstrap, name, 3) == [
        [key for key, part in list(zip(keys, chosen, strict=True))[1:] if part == index] for index in range(3)
    ]


def test_rows_spread_over_partitions_and_functions_are_asked(either_bootstrap: str, topic: Make) -> None:
    spread, chosen = topic(4), topic(4)
    with Producer(either_bootstrap, max_request_bytes=20_000, batch_bytes=10_000) as producer:
        producer.send_batch(spread, VALUES).result(20)
    found = values_in(either_bootstrap, spread, 4)
    assert all(found)
    assert sorted(value for part in found for value in part if value) == VALUES
    with Producer(either_bootstrap, partitioner="round_robin") as producer:
        producer.send_batch(chosen, VALUES[:8]).result(20)
    assert values_in(either_bootstrap, chosen, 4) == [[VALUES[n], VALUES[n + 4]] for n in range(4)]


def test_batches_of_no_bytes(either_bootstrap: str, topic: Make) -> None:
    """Each row has a batch of its own, where nobody would say that one was too large."""
    name = topic()
    with Producer(either_bootstrap, acks=0, batch_bytes=0, idempotent=False) as producer:
        assert len(producer.send_batch(name, VALUES[:5]).result(20)) == 5
    until(lambda: len(values_in(either_bootstrap, name)[0]) == 5, 10, "all rows are there")
    assert values_in(either_bootstrap, name) == [VALUES[:5]]


def test_rows_wait_for_room(either_bootstrap: str, topic: Make) -> None:
    name = topic()
    limits: Any = {"batch_bytes": 10_000, "max_request_bytes": 20_000, "buffer_bytes": 40_000}

    async def main() -> None:
        async with AsyncProducer(either_bootstrap, **limits) as producer:
            sending = asyncio.ensure_future(producer.send_batch(name, VALUES))
            while not sending.done():
                assert producer.buffered_bytes <= 40_000
                await asyncio.sleep(0)
            await sending.result()

    run(main())
    assert values_in(either_bootstrap, name) == [VALUES]


def test_rows_that_find_no_room_rest_and_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is away. Batches do not fill the buffer to the last byte, and what is left is no room for
    another: nobody is to be woken for that."""
    turns = 0
    look_around = Sender._look_around

    def counted(sender: Sender) -> None:
        nonlocal turns
        turns += 1
        look_around(sender)

    async def main(broker: Broker) -> int:
        async with AsyncProducer(broker.bootstrap, max_block_ms=1500, delivery_timeout_ms=60_000) as producer:
            await producer.partitions_of("t")
            broker.stop()
            sending = asyncio.ensure_future(producer.send_batch("t", [bytes(1000)] * 45_000))
            while producer.buffered_bytes < 32_000_000:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Sender, "_look_around", counted)
            with pytest.raises(RequestTimedOut, match="no room for more records in 1500 ms"):
                await sending
            waited = turns
            with contextlib.suppress(MillstreamError):
                await producer.close(0)
            return waited

    with Broker() as broker:
        broker.create_topic("t", partitions=4)
        assert run(main(broker)) < 500


def test_rows_that_need_room_do_not_wait_for_others_to_linger(either_bootstrap: str, topic: Make) -> None:
    name = topic()
    options: Any = {"buffer_bytes": 1 << 20, "linger_ms": 50_000, "max_block_ms": 20_000}
    with Producer(either_bootstrap, **options) as producer:
        producer.send(name, b"lingers")
        producer.send_batch(name, [bytes(1000)] * 1200).result(20)
    assert [len(value or b"") for value in values_in(either_bootstrap, name)[0]] == [7] + [1000] * 1200


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_topics_that_take_only_smaller_batches(either_bootstrap: str, topic: Make, acks: Any) -> None:
    name = topic(**{"max.message.bytes": "600000"})
    with Producer(either_bootstrap, acks=acks, idempotent=acks == "all") as producer:
        producer.send_batch(name, [bytes(1000)] * 3000).result(30)
        producer.flush()
    until(lambda: len(values_in(either_bootstrap, name)[0]) == 3000, 30, "all rows are written")


def test_rows_in_transactions(either_bootstrap: str, topic: Make, new_name: Name) -> None:
    name = topic()
    with Producer(either_bootstrap, transactional_id=new_name("id")) as producer:
        with pytest.raises(NoTransaction):
            producer.send_batch(name, VALUES)
        with producer.transaction():
            producer.send_batch(name, VALUES)
        producer.begin_transaction()
        producer.send_batch(name, [b"never"])
        producer.abort_transaction()
    assert values_in(either_bootstrap, name, isolation_level=READ_COMMITTED) == [VALUES]


def test_rows_through_faults(either_bootstrap: str, proxy: FaultProxy, topic: Make) -> None:
    name = topic(2)
    proxy.decide = now_and_then(3, 0.25)
    options: Any = {"retry_backoff_ms": 5, "batch_bytes": 4000, "max_request_bytes": 8000}
    with Producer(proxy.bootstrap, **options) as producer:
        done = [
            producer.send_batch(name, VALUES[start : start + 1000], partition=start // 1000 % 2)
            for start in range(0, 20_000, 1000)
        ]
        for each in done:
            each.result(60)
    halves = [
        [value for start in range(first, 20_000, 2000) for value in VALUES[start : start + 1000]]
        for first in (0, 1000)
    ]
    assert values_in(either_bootstrap, name, 2) == halves
