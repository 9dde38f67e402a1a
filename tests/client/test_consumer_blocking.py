"""The blocking consumer: the same records, in the thread of the caller."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from millstream import Consumer, Record, TopicPartition
from millstream.client.consumer_arrow import arrow_schema
from millstream.client.face import Closed
from millstream.protocol.batch import Codec
from tests.client.consuming import fill, new_topic, numbered


def filled(bootstrap: str, partitions: int = 1, count: int = 100, **options: Any) -> str:
    async def body() -> str:
        topic = await new_topic(bootstrap, partitions)
        for partition in range(partitions):
            await fill(bootstrap, topic, partition, numbered(count), **options)
        return topic

    return asyncio.run(body())


def test_polls_and_iterates(either_bootstrap: str) -> None:
    topic = filled(either_bootstrap, count=100)
    with Consumer(either_bootstrap, offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_of(topic))
        got: list[Record] = []
        while len(got) < 10:
            got += consumer.poll(max_records=10)
        for record in consumer:
            got.append(record)
            assert consumer.position((topic, 0)) == record.offset + 1
            if record.offset == 49 and len(got) == 50:
                consumer.seek((topic, 0), 40)
            if record.offset == 99:
                break
        assert [record.offset for record in got] == [*range(50), *range(40, 100)]
        assert consumer.lag() == {TopicPartition(topic, 0): 0}
        assert consumer.poll(timeout=0.05) == []
        consumer.seek_to_time(1_098)
        assert [record.offset for record in consumer.poll(timeout=10)] == [98, 99]
        assert consumer.end_offsets([(topic, 0)]) == {TopicPartition(topic, 0): 100}
        assert consumer.beginning_offsets([(topic, 0)]) == {TopicPartition(topic, 0): 0}
        assert consumer.offsets_at({TopicPartition(topic, 0): 1_005})[TopicPartition(topic, 0)].offset == 5
        assert topic in consumer.topics()


def test_a_paused_partition_stops_within_an_iteration(own_bootstrap: str) -> None:
    topic = filled(own_bootstrap, partitions=2, count=50)
    with Consumer(own_bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        seen = []
        for record in consumer:
            seen.append(record)
            if len(seen) == 5:
                consumer.pause((topic, record.partition))
                assert consumer.paused() == {TopicPartition(topic, record.partition)}
            if len(seen) == 55:
                consumer.resume()
            if len(seen) == 100:
                break
    assert len({record.partition for record in seen[5:55]}) == 1
    for partition in range(2):
        offsets = [record.offset for record in seen if record.partition == partition]
        assert offsets == list(range(50))


def test_callbacks_run_in_the_thread_that_polls_and_may_commit(either_bootstrap: str) -> None:
    topic = filled(either_bootstrap, partitions=2, count=10)
    told: list[tuple[str, int, threading.Thread]] = []
    group = f"blocking-{topic}"
    with Consumer(either_bootstrap, group=group, offset_reset="earliest", auto_commit=False) as consumer:

        def revoked(partitions: list[TopicPartition]) -> None:
            told.append(("-", len(partitions), threading.current_thread()))
            consumer.commit()

        consumer.subscribe(
            topic,
            on_assigned=lambda partitions: told.append(("+", len(partitions), threading.current_thread())),
            on_revoked=revoked,
        )
        assert len(list(islice(consumer, 20))) == 20
        assert consumer.subscription == {topic}
        assert consumer.assignment == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        assert consumer.group_metadata.member_id
    here = threading.current_thread()
    assert told == [("+", 2, here), ("-", 2, here)]
    with Consumer(either_bootstrap, group=group) as consumer:
        committed = consumer.committed([(topic, 0), (topic, 1)])
        assert [each.offset for each in committed.values()] == [10, 10]
        consumer.commit_async({TopicPartition(topic, 0): 3}).result(10)
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)].offset == 3


def test_an_error_in_a_callback_is_raised_by_the_poll(own_bootstrap: str) -> None:
    topic = filled(own_bootstrap)

    def angry(_: list[TopicPartition]) -> None:
        raise ZeroDivisionError("of the caller")

    with Consumer(own_bootstrap, group=f"angry-{topic}", offset_reset="earliest") as consumer:
        consumer.subscribe(topic, on_assigned=angry)
        with pytest.raises(ZeroDivisionError, match="of the caller"):
            next(iter(consumer))
        for record in consumer:
            assert record.value == b"0"
            break


def test_a_closed_consumer_says_so_and_leaves_no_thread(own_bootstrap: str) -> None:
    before = threading.active_count()
    consumer = Consumer(own_bootstrap)
    consumer.close()
    consumer.close()
    assert threading.active_count() == before
    with pytest.raises(Closed):
        consumer.poll()
    with pytest.raises(Closed):
        consumer.topics()
    with pytest.raises(ValueError, match="offset_reset"):
        Consumer(own_bootstrap, offset_reset="first")  # type: ignore[arg-type]
    assert threading.active_count() == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_gives_records_by_the_column(either_bootstrap: str, codec: Codec) -> None:
    topic = filled(either_bootstrap, partitions=2, count=300, codec=codec)
    with Consumer(either_bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        batches: list[Any] = []
        while sum(batch.num_rows for batch in batches) < 600:
            batches.append(consumer.poll_arrow())
        empty = consumer.poll_arrow(timeout=0.05)
        assert (empty.num_rows, empty.schema) == (0, arrow_schema())
        assert consumer.position((topic, 0)) == 300
        table = pa.Table.from_batches(batches)
        table.validate(full=True)
        rows = table.to_pylist()
        assert table.schema == arrow_schema()
        for partition in range(2):
            mine = [row for row in rows if row["partition"] == partition]
            assert [row["value"] for row in mine] == numbered(300)
            assert [row["offset"] for row in mine] == list(range(300))
        last = mine[-1]
        assert (last["topic"], last["key"]) == (topic, b"k299")
        assert last["timestamp"].timestamp() == 1.299
        assert last["headers"] == [{"name": "n", "value": b"299"}]


def test_columns_go_on_where_records_ended_and_show_nulls(own_bootstrap: str) -> None:
    async def body() -> str:
        topic = await new_topic(own_bootstrap)
        await fill(own_bootstrap, topic, 0, [b"a", None, b"c", None])
        return topic

    topic = asyncio.run(body())
    with Consumer(own_bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in consumer.poll(max_records=1, timeout=10)] == [b"a"]
        batch = consumer.poll_arrow(timeout=10)
        assert batch.column("value").to_pylist() == [None, b"c", None]
        assert batch.column("offset").to_pylist() == [1, 2, 3]
        assert consumer.poll(timeout=0.05) == []


def test_a_block_left_by_an_error_commits_nothing_more(own_bootstrap: str) -> None:
    topic = filled(own_bootstrap)
    group, here = f"error-{topic}", TopicPartition(topic, 0)

    def work() -> None:
        with Consumer(own_bootstrap, group=group, offset_reset="earliest") as consumer:
            consumer.subscribe(topic)
            for record in consumer:
                if record.offset == 10:
                    consumer.commit({here: 10})
                if record.offset == 20:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with Consumer(own_bootstrap, group=group) as consumer:
        assert consumer.committed([here])[here].offset == 10


def test_a_callback_that_polls_is_told_not_to(own_bootstrap: str) -> None:
    topic = filled(own_bootstrap)
    with Consumer(own_bootstrap, group=f"polls-{topic}", offset_reset="earliest") as consumer:
        consumer.subscribe(topic, on_assigned=lambda _: consumer.poll())
        with pytest.raises(RuntimeError, match="callbacks must not poll"):
            next(iter(consumer))
        assert next(iter(consumer)).value == b"0"


def test_an_iteration_ends_when_another_thread_closes_the_consumer(own_bootstrap: str) -> None:
    topic = filled(own_bootstrap, count=10)
    consumer = Consumer(own_bootstrap, offset_reset="earliest")
    consumer.assign([(topic, 0)])
    seen = []
    for record in consumer:
        seen.append(record.offset)
        if record.offset == 9:
            threading.Timer(0.1, consumer.close).start()
    assert seen == list(range(10))


def test_commits_by_itself_while_it_is_iterated(own_bootstrap: str) -> None:
    topic = filled(own_bootstrap, count=100)
    here = TopicPartition(topic, 0)
    with Consumer(
        own_bootstrap, group=f"itself-{topic}", offset_reset="earliest", auto_commit_interval_ms=50
    ) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == 50:
                time.sleep(0.2)  # the next step finds that a commit is due, which covers this record
            if record.offset == 51:
                break
        deadline = time.monotonic() + 30
        while not consumer.committed([here]) or consumer.committed([here])[here].offset < 52:
            consumer.poll(max_records=0, timeout=0)
            assert time.monotonic() < deadline
        assert consumer.committed([here])[here].offset == 52
