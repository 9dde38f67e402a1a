"""Calls that are cancelled or interrupted half-way leave a client that works, or can be closed."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from millstream import AsyncConsumer, AsyncProducer, Consumer, Producer
from millstream.client import producer_coordinator
from millstream.client.face import Closed
from millstream.client.offsets import READ_COMMITTED
from millstream.client.producer_coordinator import TransactionCoordinator
from millstream.deadline import Deadline
from millstream.errors import RequestTimedOut
from tests.client.consuming import fill, new_topic, numbered
from tests.client.logs import values_in
from tests.conftest import Name


class Interrupted(BaseException):
    """What a signal's handler raises, like KeyboardInterrupt."""


def test_who_does_not_wait_for_the_end_of_unsubscribing_reads_nothing_more(
    own_bootstrap: str, new_name: Name
) -> None:
    """Its partitions are another member's by then."""

    async def main() -> None:
        topic, group = await new_topic(own_bootstrap), new_name("group")
        await fill(own_bootstrap, topic, 0, numbered(10))
        is_free = asyncio.Event()

        async def slowly(_: object) -> None:
            await is_free.wait()

        async with AsyncConsumer(own_bootstrap, group=group, offset_reset="earliest") as consumer:
            consumer.subscribe(topic, on_revoked=slowly)
            while not consumer.assignment:
                await consumer.poll(timeout=0.1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await consumer.unsubscribe()
            assert not consumer.assignment
            assert not consumer.subscription
            is_free.set()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["unsubscribe", "close"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_who_is_cancelled_at_any_step_of_leaving_has_left(
    own_bootstrap: str, new_name: Name, call: str, steps: int
) -> None:
    async def main() -> None:
        topic, group = await new_topic(own_bootstrap), new_name("group")
        others = asyncio.all_tasks()
        consumer = AsyncConsumer(own_bootstrap, group=group, auto_commit=call == "close")
        consumer.subscribe(topic)
        while not consumer.assignment:
            await consumer.poll(timeout=0.1)
        leaving = asyncio.ensure_future(getattr(consumer, call)())
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving], timeout=10)
        assert leaving.cancelled()
        await consumer.close()
        assert asyncio.all_tasks() == others
        async with AsyncConsumer(own_bootstrap, group=group) as next_one, asyncio.timeout(10):
            next_one.subscribe(topic)
            while not next_one.assignment:  # long before the session of the first would end
                await next_one.poll(timeout=0.1)

    asyncio.run(main())


@pytest.mark.parametrize("way", ["times out", "is cancelled"])
def test_an_abort_is_repeated_whose_last_answer_was_lost(
    own_bootstrap: str, new_name: Name, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """With transactions of version 1, where a failed batch has the producer ask for its next epoch."""
    monkeypatch.setattr(producer_coordinator, "VERSION_2", 99)
    init = TransactionCoordinator.init

    async def lost(self: TransactionCoordinator, deadline: Deadline, *, is_known: bool = False) -> None:
        identity = self._identity
        before = identity.producer_id, identity.producer_epoch
        await init(self, deadline, is_known=is_known)
        identity.take(*before)
        if way == "times out":
            raise RequestTimedOut("no answer")
        await asyncio.sleep(30)

    async def main() -> str:
        topic = await new_topic(own_bootstrap)
        async with AsyncProducer(own_bootstrap, transactional_id=new_name("id")) as producer:
            producer.begin_transaction()
            await producer.send(topic, b"never")
            producer._open_transactions._must_raise_epoch = True  # as after a batch that failed
            with monkeypatch.context() as patch:
                patch.setattr(TransactionCoordinator, "init", lost)
                with pytest.raises((TimeoutError, RequestTimedOut)):
                    await asyncio.wait_for(producer.abort_transaction(), 2)
            await producer.abort_transaction()
            producer.begin_transaction()
            await producer.send(topic, b"one")
            await producer.commit_transaction()
        return topic

    topic = asyncio.run(main())
    assert values_in(own_bootstrap, topic, isolation_level=READ_COMMITTED) == [[b"one"]]


def test_a_signal_while_the_sender_is_woken(own_bootstrap: str) -> None:
    topic = asyncio.run(new_topic(own_bootstrap))
    with Producer(own_bootstrap) as producer:
        producer.send(topic, b"one").result(10)
        time.sleep(0.3)  # the sender rests
        thread = producer._thread
        call_soon = thread.call_soon

        def interrupted(*_: Any) -> None:
            thread.call_soon = call_soon  # type: ignore[method-assign]
            raise Interrupted

        thread.call_soon = interrupted  # type: ignore[assignment, method-assign]
        with pytest.raises(Interrupted):
            producer.send(topic, b"two")
        producer.send(topic, b"three").result(10)
    assert values_in(own_bootstrap, topic) == [[b"one", b"two", b"three"]]


def test_a_signal_while_the_fetcher_is_woken(own_bootstrap: str) -> None:
    topic = asyncio.run(new_topic(own_bootstrap))
    for start in range(0, 2000, 100):
        asyncio.run(fill(own_bootstrap, topic, 0, numbered(100, start)))
    with Consumer(own_bootstrap, offset_reset="earliest", partition_max_bytes=2000) as consumer:
        consumer.assign([(topic, 0)])
        found = list(consumer.poll(10, timeout=5))
        time.sleep(0.5)  # answers lie ready, and nothing is asked for
        core = consumer._core
        loop = core._loop

        class Interrupting:
            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

            def call_soon_threadsafe(self, *_: Any) -> None:
                core._loop = loop
                raise Interrupted

        core._loop = Interrupting()  # type: ignore[assignment]
        was_interrupted = False
        while not was_interrupted:
            try:
                found += consumer.poll(10, timeout=2)
            except Interrupted:
                was_interrupted = True
        deadline = time.monotonic() + 20
        while len(found) < 2000 and time.monotonic() < deadline:
            found += consumer.poll(500, timeout=1)
        assert [record.offset for record in found] == list(range(2000))


def test_a_close_that_is_cancelled_leaves_nobody_waiting() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and answers nothing
            producer = AsyncProducer(f"127.0.0.1:{silent.getsockname()[1]}")
            await producer.start()
            delivery = producer.send("t", b"x")
            await asyncio.sleep(0.2)
            closing = asyncio.ensure_future(producer.close(0))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            with pytest.raises(Closed):
                async with asyncio.timeout(5):
                    await delivery
            assert not producer._cluster._connections

    asyncio.run(main())
