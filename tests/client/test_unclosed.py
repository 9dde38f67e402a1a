"""Clients that are forgotten: their owner is warned, and their threads and sockets are given back."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from millstream import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from tests.client.consuming import fill, new_topic, numbered
from tests.conftest import Name


def _producer(bootstrap: str, topic: str) -> Producer:
    producer = Producer(bootstrap)
    producer.send(topic, b"1").result(20)
    return producer


def _transactional(bootstrap: str, topic: str) -> Producer:
    producer = Producer(bootstrap, transactional_id=topic)
    with producer.transaction():
        producer.send(topic, b"1")
    return producer


def _reader(bootstrap: str, topic: str) -> Consumer:
    consumer = Consumer(bootstrap, offset_reset="earliest")
    consumer.assign([(topic, 0)])
    next(iter(consumer))
    return consumer


def _member(bootstrap: str, topic: str) -> Consumer:
    consumer = Consumer(bootstrap, group=topic, offset_reset="earliest")
    seen: list[Any] = []
    consumer.subscribe(topic, on_assigned=seen.extend, on_revoked=seen.extend)
    next(iter(consumer))
    return consumer


def _admin(bootstrap: str, topic: str) -> Admin:
    admin = Admin(bootstrap)
    assert topic in admin.list_topics()
    return admin


@pytest.mark.parametrize("make", [_producer, _transactional, _reader, _member, _admin])
def test_a_blocking_client(own_bootstrap: str, make: Callable[[str, str], Any]) -> None:
    async def prepare() -> str:
        topic = await new_topic(own_bootstrap)
        await fill(own_bootstrap, topic, 0, numbered(10))
        return topic

    topic = asyncio.run(prepare())
    client = make(own_bootstrap, topic)
    thread, loop, name = client._thread._thread, client._thread.loop, type(client).__name__
    clusters = getattr(client._core, "_clusters", None) or [client._core._cluster]
    connections = [task.result() for each in clusters for task in each._connections.values() if task.done()]
    assert any(connection.is_open for connection in connections)
    with pytest.warns(ResourceWarning, match=f"unclosed {name}: "):  # noqa: PT031
        del client
        gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    assert loop.is_closed()
    assert not any(connection.is_open for connection in connections)
    if make is _member:
        with Admin(own_bootstrap) as admin:
            assert admin.describe_group(topic).members == [], "it has left its group"


def test_what_a_forgotten_producer_has_taken_is_still_written(own_bootstrap: str, new_name: Name) -> None:
    with pytest.warns(ResourceWarning, match="unclosed Producer: "):  # noqa: PT031
        delivery = Producer(own_bootstrap, linger_ms=100).send(new_name("t"), b"1")
        gc.collect()
    assert delivery.result(20).offset == 0


def test_an_asynchronous_client(own_bootstrap: str) -> None:
    async def main() -> None:
        topic = await new_topic(own_bootstrap)
        clients: list[Any] = [AsyncAdmin(own_bootstrap), AsyncConsumer(own_bootstrap)]
        clients.append(await AsyncProducer(own_bootstrap, linger_ms=0).start())
        await clients[0].list_topics()
        await clients[1].topics()
        await clients[2].send(topic, b"1")
        while clients:
            await asyncio.sleep(0.05)  # what was due is done, and the loop holds nothing of it any more
            client = clients.pop()
            tasks = [*client._cluster._connections.values()]
            assert tasks
            kind = type(client).__name__
            with pytest.warns(ResourceWarning, match=f"unclosed {kind}: "):  # noqa: PT031
                del client
                gc.collect()
            async with asyncio.timeout(20):
                while any(task.result().is_open for task in tasks):
                    await asyncio.sleep(0.001)

    asyncio.run(main())


def test_nothing_is_said_of_clients_that_were_closed_or_never_made(own_bootstrap: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (Admin, Consumer, Producer):
            kind(own_bootstrap).close()
        for kind, options in ((Consumer, {"offset_reset": "never"}), (Producer, {"acks": 7})):
            with pytest.raises(ValueError, match="is"):
                kind(own_bootstrap, **options)
        AsyncProducer(own_bootstrap)  # not started: it holds nothing
        gc.collect()
