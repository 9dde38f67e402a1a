"""Consumers among broken data, impatient callers and broken callbacks: nothing is lost on the way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from millstream import AsyncConsumer, Closed, Consumer, TopicPartition
from millstream.client.consumer_errors import BadRecords
from millstream.errors import CorruptMessage
from millstream.protocol.batch import Codec, Record, encode_batch, seal
from millstream.protocol.messages import FetchRequest, FetchResponse
from tests.client.consuming import fill, new_topic, numbered, read
from tests.client.test_consumer_scripted import (
    HERE,
    Script,
    batch,
    cluster,
    consumer_of,
    fetched,
    offset_asked,
    offsets,
)


def undecompressable(start: int, count: int) -> bytes:
    """A batch whose checksum is right and whose compressed records are not."""
    records = [Record(value=b"%d" % offset, timestamp=1) for offset in range(start, start + count)]
    data = bytearray(encode_batch(records, base_offset=start, codec=Codec.ZSTD))
    data[61:] = bytes(len(data) - 61)
    seal(memoryview(data))
    return bytes(data)


def answer_once(records: bytes) -> list[Any]:
    def answer(request: FetchRequest) -> FetchResponse:
        assert offset_asked(request) == 0
        return fetched(request, records=records)

    return [answer]


@pytest.mark.parametrize("way", ["poll", "iterate", "arrow"])
def test_a_batch_that_cannot_be_decompressed_is_never_passed_over(way: str) -> None:
    """Its checksum is right, so that only reading it shows what it is. It stops whoever comes to it."""

    async def take(consumer: AsyncConsumer) -> list[int]:
        if way == "poll":
            return offsets(await read(consumer, 1))
        if way == "iterate":
            return [(await anext(consumer)).offset]
        found: list[int] = (await consumer.poll_arrow(timeout=5)).column("offset").to_pylist()
        return found

    async def body() -> None:
        script = Script(end=30)
        script.answers[1] = answer_once(batch(0, 10) + undecompressable(10, 10) + batch(20, 10))
        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            seen: list[int] = []
            while len(seen) < 10:
                seen += await take(consumer)
            assert seen == list(range(10)), "what lies before is good"
            for _ in range(3):
                with pytest.raises(BadRecords, match="offset 10"):
                    await take(consumer)
                assert await consumer.position(HERE) == 10
            consumer.seek(HERE, 20)
            rest: list[int] = []
            while len(rest) < 10:
                rest += await take(consumer)
            assert rest == list(range(20, 30))

    asyncio.run(body())


def test_a_bad_record_is_of_a_class_that_does_not_pass() -> None:
    async def body() -> None:
        script = Script(end=10)
        script.answers[1] = answer_once(undecompressable(0, 10))
        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            with pytest.raises(CorruptMessage) as caught:
                await read(consumer, 1)
            assert not caught.value.retriable

    asyncio.run(body())


@pytest.mark.parametrize("way", ["poll", "arrow"])
def test_a_poll_that_is_cancelled_loses_no_records(own_bootstrap: str, way: str) -> None:
    """Whenever the cancellation comes, what the poll had taken is there for the next one."""

    async def body() -> None:
        topic = await new_topic(own_bootstrap, 3)
        for partition in range(3):
            for start in range(0, 300, 100):
                await fill(own_bootstrap, topic, partition, numbered(100, start))
        consumer = AsyncConsumer(own_bootstrap, offset_reset="earliest", fetch_max_wait_ms=20)
        consumer.assign([(topic, partition) for partition in range(3)])
        seen: list[list[int]] = [[], [], []]
        async with consumer, asyncio.timeout(30):
            steps = 0
            while sum(map(len, seen)) < 900:
                steps += 1
                work: Any = consumer.poll(70) if way == "poll" else consumer.poll_arrow()
                task = asyncio.ensure_future(work)
                for _ in range(steps % 4):
                    await asyncio.sleep(0)
                task.cancel()
                found: Any = ()
                try:
                    found = await task
                except asyncio.CancelledError:
                    if steps % 4 == 0:
                        await asyncio.sleep(0.001)
                if way == "arrow":
                    found = found and found.select(["partition", "offset"]).to_pylist()
                    for row in found:
                        seen[row["partition"]].append(row["offset"])
                else:
                    for record in found:
                        seen[record.partition].append(record.offset)
        assert seen == [list(range(300))] * 3

    asyncio.run(body())


def test_a_callback_that_was_cancelled_with_its_poll_is_called_again(own_bootstrap: str) -> None:
    async def body() -> None:
        topic = await new_topic(own_bootstrap)
        await fill(own_bootstrap, topic, 0, numbered(5))
        heard: list[str] = []
        is_slow = True

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            heard.append("begun")
            if is_slow:
                await asyncio.sleep(3600)
            heard.append("done")

        async with AsyncConsumer(own_bootstrap, group=f"g-{topic}", offset_reset="earliest") as consumer:
            consumer.subscribe(topic, on_assigned=on_assigned)
            async with asyncio.timeout(30):
                while not heard:
                    try:
                        await asyncio.wait_for(consumer.poll(timeout=5), 0.3)
                    except TimeoutError:
                        pass
                is_slow = False
                assert offsets(await read(consumer, 5)) == list(range(5))
        assert heard == ["begun", "begun", "done"]

    asyncio.run(body())


def test_partitions_are_not_gone_before_a_cancelled_callback_was_called_again(own_bootstrap: str) -> None:
    async def body() -> None:
        topic, other = await new_topic(own_bootstrap), await new_topic(own_bootstrap)
        await fill(own_bootstrap, topic, 0, numbered(5))
        heard: list[str] = []
        is_slow = True

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            assert consumer.assignment == set(partitions)
            heard.append("begun")
            if is_slow:
                await asyncio.sleep(3600)
            heard.append("done")

        consumer = AsyncConsumer(
            own_bootstrap,
            group=f"g-{topic}",
            offset_reset="earliest",
            assignors=["range"],
            heartbeat_interval_ms=100,
        )
        async with consumer, asyncio.timeout(30):
            consumer.subscribe(topic)
            assert offsets(await read(consumer, 5)) == list(range(5))
            consumer.subscribe([topic, other], on_revoked=on_revoked)
            while not heard:
                try:
                    await asyncio.wait_for(consumer.poll(timeout=5), 0.3)
                except TimeoutError:
                    pass
            assert consumer.assignment == {(topic, 0)}
            is_slow = False
            while len(consumer.assignment) < 2:
                await consumer.poll(timeout=0.1)
            assert heard == ["begun", "begun", "done"]

    asyncio.run(body())


def test_fetches_that_are_given_up_before_they_began_leave_their_lanes(own_bootstrap: str) -> None:
    """Several seeks at one moment: what was about to be sent for the first is not wanted any more."""

    async def body() -> None:
        topic = await new_topic(own_bootstrap)
        await fill(own_bootstrap, topic, 0, numbered(5))
        consumer = AsyncConsumer(own_bootstrap, offset_reset="earliest", fetch_max_wait_ms=20)
        async with consumer, asyncio.timeout(30):
            consumer.assign([(topic, 0)])
            assert offsets(await read(consumer, 5)) == list(range(5))
            fetcher: Any = consumer._fetcher
            for _ in range(10):
                for offset in (1, 2, 3):
                    consumer.seek((topic, 0), offset)
                    fetcher.pump()
                assert offsets(await read(consumer, 2)) == [3, 4]
                flights = [flight for lane in fetcher._lanes for flight in lane.flights.values()]
                assert not any(flight.task.done() for flight in flights)

    asyncio.run(body())


def test_closing_ends_a_poll_of_another_thread(own_bootstrap: str) -> None:
    """It brings nothing more, as a poll whose time is up; the next one says why."""
    topic = asyncio.run(new_topic(own_bootstrap))
    consumer = Consumer(own_bootstrap)
    consumer.assign([(topic, 0)])
    results: list[object] = []

    def poll() -> None:
        try:
            results.append(consumer.poll(timeout=60))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    consumer.close()
    thread.join(10)
    assert time.monotonic() - began < 5
    assert results == [[]]
    with pytest.raises(Closed):
        consumer.poll()


@pytest.mark.parametrize(
    "options",
    [
        {"buffer_bytes": 0},
        {"fetch_max_bytes": 0},
        {"partition_max_bytes": -1},
        {"fetch_min_bytes": -1},
        {"fetch_max_wait_ms": -1},
        {"request_timeout_ms": 0},
        {"max_poll_interval_ms": 0},
        {"auto_commit_interval_ms": 0},
        {"heartbeat_interval_ms": 0},
        {"metadata_max_age_ms": -1},
        {"group": ""},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    async def body() -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            AsyncConsumer("localhost:1", **options)

    asyncio.run(body())


def test_polls_that_make_no_sense(own_bootstrap: str) -> None:
    async def body() -> None:
        async with AsyncConsumer(own_bootstrap) as consumer:
            with pytest.raises(ValueError, match="max_records"):
                await consumer.poll(max_records=-1)

    asyncio.run(body())
    with Consumer(own_bootstrap) as consumer, pytest.raises(ValueError, match="max_records"):
        consumer.poll(max_records=-1)


def test_a_commit_does_not_outlast_its_deadline_behind_another(own_bootstrap: str) -> None:
    async def body() -> None:
        topic = await new_topic(own_bootstrap)
        async with AsyncConsumer(own_bootstrap, group=f"g-{topic}", auto_commit=False) as consumer:
            consumer.assign([(topic, 0)])
            commits: Any = consumer._group._commits  # type: ignore[union-attr]
            async with commits._order:  # as a commit that waits for a coordinator that is away
                began = time.monotonic()
                with pytest.raises(Exception, match="commit"):
                    await consumer.commit({TopicPartition(topic, 0): 1}, timeout=0.3)
                assert time.monotonic() - began < 3

    asyncio.run(body())


def test_names_and_numbers_that_no_partition_can_have(own_bootstrap: str) -> None:
    async def body() -> None:
        async with AsyncConsumer(own_bootstrap, group="odd") as consumer:
            bad: list[Any] = [(b"t", 0), (None, 0), ("half a \ud800 letter", 0), ("t", -1)]
            for partition in bad:
                with pytest.raises((TypeError, ValueError)):
                    consumer.assign([partition])
            for topics in (b"t", [None], [7], ["half a \ud800 letter"]):
                with pytest.raises((TypeError, ValueError)):
                    consumer.subscribe(topics)  # type: ignore[arg-type]
            assert not consumer.assignment
            assert not consumer.subscription

    asyncio.run(body())


def test_commits_that_were_begun_are_done_before_the_consumer_is_closed(own_bootstrap: str) -> None:
    here = TopicPartition(asyncio.run(new_topic(own_bootstrap)), 0)
    group = f"g-{here.topic}"
    with Consumer(own_bootstrap, group=group, auto_commit=False) as consumer:
        consumer.assign([here])
        future = consumer.commit_async({here: 5})
    assert future.done()
    assert future.exception() is None
    with Consumer(own_bootstrap, group=group) as consumer:
        assert consumer.committed([here])[here].offset == 5


def test_columns_do_not_import_pandas(own_bootstrap: str) -> None:
    """pyarrow does where it is given Python objects: it would take long, in the event loop."""
    topic = asyncio.run(new_topic(own_bootstrap, prefix="columns"))
    program = f"""
import sys
import pyarrow as pa
from millstream import Consumer, Producer
ends = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0]))
value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(b"x")])
with Producer({own_bootstrap!r}) as producer:
    producer.send_arrow({topic!r}, pa.RecordBatch.from_arrays([value], ["value"])).result(10)
with Consumer({own_bootstrap!r}, offset_reset="earliest") as consumer:
    consumer.assign([({topic!r}, 0)])
    rows = 0
    while not rows:
        batch = consumer.poll_arrow(timeout=5)
        rows += batch.num_rows
    batch.validate(full=True)
    assert consumer.poll_arrow(timeout=0.1).num_rows == 0
assert "pandas" not in sys.modules
print(*(batch.column(name).to_pylist() for name in ("topic", "partition", "value")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"[{topic!r}] [0] [b'x']"
