"""Every call ends by its deadline, also where a broker takes connections and never says a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream import AsyncAdmin, AsyncConsumer, AsyncProducer, Closed, TopicPartition
from millstream.client.producer_identity import HandedOver
from millstream.client.transactions import OpenTransaction
from millstream.errors import MillstreamError
from millstream.net.listener import close_servers

HERE = TopicPartition("t", 0)
TIMEOUT = 0.2
PATIENCE = 2.5


@asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """A broker that listens and does not answer."""
    writers: list[asyncio.StreamWriter] = []

    async def hush(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            pass

    server = await asyncio.start_server(hush, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await close_servers([server])
        await asyncio.sleep(0.05)  # connections that came just now are met too
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
        await asyncio.sleep(0)


ADMIN: dict[str, Callable[[AsyncAdmin], Awaitable[Any]]] = {
    "describe_cluster": lambda it: it.describe_cluster(timeout=TIMEOUT),
    "describe_log_dirs": lambda it: it.describe_log_dirs(1, timeout=TIMEOUT),
    "list_topics": lambda it: it.list_topics(timeout=TIMEOUT),
    "describe_topic": lambda it: it.describe_topic("t", timeout=TIMEOUT),
    "create_topic": lambda it: it.create_topic("t", timeout=TIMEOUT),
    "delete_topic": lambda it: it.delete_topic("t", timeout=TIMEOUT),
    "add_partitions": lambda it: it.add_partitions("t", 3, timeout=TIMEOUT),
    "offsets_at": lambda it: it.offsets_at({HERE: 0}, timeout=TIMEOUT),
    "describe_config": lambda it: it.describe_config("topic", "t", timeout=TIMEOUT),
    "alter_config": lambda it: it.alter_config("topic", "t", values={"a": "b"}, timeout=TIMEOUT),
    "list_groups": lambda it: it.list_groups(timeout=TIMEOUT),
    "describe_group": lambda it: it.describe_group("g", timeout=TIMEOUT),
    "delete_group": lambda it: it.delete_group("g", timeout=TIMEOUT),
    "remove_members": lambda it: it.remove_members("g", member_ids=["m"], timeout=TIMEOUT),
    "group_offsets": lambda it: it.group_offsets("g", timeout=TIMEOUT),
    "alter_group_offsets": lambda it: it.alter_group_offsets("g", {HERE: 0}, timeout=TIMEOUT),
    "delete_group_offsets": lambda it: it.delete_group_offsets("g", [HERE], timeout=TIMEOUT),
    "group_lag": lambda it: it.group_lag("g", timeout=TIMEOUT),
    "list_transactions": lambda it: it.list_transactions(timeout=TIMEOUT),
    "describe_transaction": lambda it: it.describe_transaction("id", timeout=TIMEOUT),
    "open_transactions": lambda it: it.open_transactions([HERE], timeout=TIMEOUT),
    "hanging_transactions": lambda it: it.hanging_transactions([HERE], timeout=TIMEOUT),
    "end_transaction": lambda it: it.end_transaction(
        HandedOver("id", 1, 0, True), is_commit=False, timeout=TIMEOUT
    ),
    "fence_producer": lambda it: it.fence_producer("id", timeout=TIMEOUT),
    "describe_producers": lambda it: it.describe_producers([HERE], timeout=TIMEOUT),
    "reassign": lambda it: it.reassign({HERE: [1]}, timeout=TIMEOUT),
    "list_reassignments": lambda it: it.list_reassignments(timeout=TIMEOUT),
    "elect_leaders": lambda it: it.elect_leaders([HERE], timeout=TIMEOUT),
    "unregister_broker": lambda it: it.unregister_broker(3, timeout=TIMEOUT),
}
IN_RESULTS = {"delete_records", "abort_transaction"}
"""Calls that tell errors of partitions in their results, or need what only a broker gives."""

CONSUMER: dict[str, Callable[[AsyncConsumer], Awaitable[Any]]] = {
    "position": lambda it: it.position(HERE, timeout=TIMEOUT),
    "lag": lambda it: it.lag(timeout=TIMEOUT),
    "commit": lambda it: it.commit({HERE: 1}, timeout=TIMEOUT),
    "committed": lambda it: it.committed([HERE], timeout=TIMEOUT),
    "beginning_offsets": lambda it: it.beginning_offsets([HERE], timeout=TIMEOUT),
    "end_offsets": lambda it: it.end_offsets([HERE], timeout=TIMEOUT),
    "offsets_at": lambda it: it.offsets_at({HERE: 1}, timeout=TIMEOUT),
    "partitions_of": lambda it: it.partitions_of("t", timeout=TIMEOUT),
    "topics": lambda it: it.topics(timeout=TIMEOUT),
}
POLLS: dict[str, Callable[[AsyncConsumer], Awaitable[Any]]] = {
    "poll": lambda it: it.poll(timeout=TIMEOUT),
    "poll_arrow": lambda it: it.poll_arrow(timeout=TIMEOUT),
    "poll_batches": lambda it: it.poll_batches(timeout=TIMEOUT),
}
PRODUCER: dict[str, Callable[[AsyncProducer], Awaitable[Any]]] = {
    "send": lambda it: it.send("t", b"1"),
    "send_batch": lambda it: it.send_batch("t", [b"1"], timeout=TIMEOUT),
    "partitions_of": lambda it: it.partitions_of("t", timeout=TIMEOUT),
}


async def ends(work: Awaitable[Any]) -> float:
    """How long it takes; whatever it takes, it is an error of ours."""
    began = time.monotonic()
    with pytest.raises(MillstreamError):
        await asyncio.wait_for(_of(work), 20)
    return time.monotonic() - began


async def _of(work: Awaitable[Any]) -> Any:
    return await work


def test_the_admins_calls() -> None:
    every = {name for name in vars(AsyncAdmin) if not name.startswith("_")} - {"close"}
    assert every - IN_RESULTS == set(ADMIN)

    async def main() -> None:
        async with silence() as bootstrap, AsyncAdmin(bootstrap) as admin:
            for name, call in ADMIN.items():
                assert await ends(call(admin)) < PATIENCE, name
            began = time.monotonic()
            found = await admin.delete_records({HERE: 1}, timeout=TIMEOUT)
            assert isinstance(found[HERE], MillstreamError)
            hanging = OpenTransaction(HERE, 1, 0, 0, 0, 0)
            await ends(admin.abort_transaction(hanging, timeout=TIMEOUT))
            assert time.monotonic() - began < 2 * PATIENCE

    asyncio.run(main())


def test_the_consumers_calls() -> None:
    async def main() -> None:
        async with silence() as bootstrap:
            consumer = AsyncConsumer(bootstrap, group="g")
            consumer.assign([HERE])
            for name, call in CONSUMER.items():
                assert await ends(call(consumer)) < PATIENCE, name
            for name, call in POLLS.items():
                began = time.monotonic()
                assert not len(await call(consumer)), name
                assert time.monotonic() - began < PATIENCE, name
            began = time.monotonic()
            await consumer.close(timeout=TIMEOUT)
            assert time.monotonic() - began < PATIENCE

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_leaving_a_group(protocol: Any) -> None:
    async def main() -> None:
        async with silence() as bootstrap:
            consumer = AsyncConsumer(bootstrap, group="g", group_protocol=protocol)
            consumer.subscribe("t")
            assert await consumer.poll(timeout=TIMEOUT) == []
            for work in (consumer.unsubscribe(timeout=TIMEOUT), consumer.close(timeout=TIMEOUT)):
                began = time.monotonic()
                await work
                assert time.monotonic() - began < PATIENCE

    asyncio.run(main())


def test_the_producers_calls() -> None:
    async def main() -> None:
        async with silence() as bootstrap:
            milliseconds = int(TIMEOUT * 1000)
            producer = AsyncProducer(bootstrap, max_block_ms=milliseconds, delivery_timeout_ms=milliseconds)
            await producer.start()
            for name, call in PRODUCER.items():
                assert await ends(call(producer)) < PATIENCE, name
            producer.send("t", b"1")
            began = time.monotonic()
            try:
                await producer.flush(timeout=TIMEOUT)
            except MillstreamError:
                pass
            await producer.close(timeout=TIMEOUT)
            assert time.monotonic() - began < PATIENCE
            transactional = AsyncProducer(bootstrap, transactional_id="id", max_block_ms=milliseconds)
            assert await ends(transactional.start()) < PATIENCE

    asyncio.run(main())


def test_calls_under_way_end_when_their_client_is_closed() -> None:
    """They do not try again, on connections that nobody would close."""

    async def main() -> None:
        async with silence() as bootstrap:
            admin, consumer = AsyncAdmin(bootstrap), AsyncConsumer(bootstrap, group="g")
            calls = [
                asyncio.ensure_future(_of(work))
                for work in (admin.list_topics(), admin.delete_group("g"), consumer.topics())
            ]
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await admin.close()
            await consumer.close(timeout=TIMEOUT)
            results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
            assert time.monotonic() - began < PATIENCE
            assert all(isinstance(result, Closed) for result in results), results

    asyncio.run(main())
