"""Consumers that their group has put out: what they got before is no longer theirs to commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream import AsyncConsumer, AsyncProducer, TopicPartition
from millstream.client.admin_views import remove_members
from millstream.client.cluster import Cluster
from millstream.client.group_offsets import fetch_committed
from millstream.deadline import Deadline
from millstream.errors import CoordinatorNotAvailable, IllegalGeneration, UnknownMemberId
from tests.client.consuming import PATIENCE_S, fill, new_topic, numbered, read, until
from tests.client.test_consumer_groups import Body, bootstrap, both_protocols, member, run

__all__ = ["bootstrap", "run"]

SLOW: dict[str, Any] = {"max_poll_interval_ms": 1_000, "auto_commit_interval_ms": 100}


async def committed(bootstrap: str, group: str, partition: TopicPartition) -> int:
    async with Cluster(bootstrap) as cluster:
        return (await fetch_committed(cluster, group, Deadline(30_000)))[partition].offset


async def is_lost(consumer: AsyncConsumer) -> None:
    """Wait until a consumer, which is not polled, has lost its place."""
    group: Any = consumer._group
    async with asyncio.timeout(PATIENCE_S):
        while group.is_joined:
            await asyncio.sleep(0.02)


async def joins_again(consumer: AsyncConsumer) -> None:
    """Poll a consumer that has lost its place until it has one, and a partition."""
    group: Any = consumer._group
    await until(lambda: group.is_joined and bool(consumer.assignment), consumer)


@asynccontextmanager
async def after_five(bootstrap: str, topic: str, **options: Any) -> AsyncIterator[AsyncConsumer]:
    """A consumer that got half of a topic's ten records, and whose caller works on them."""
    await fill(bootstrap, topic, 0, numbered(10))
    async with member(bootstrap, f"lost-{topic}", **{**SLOW, **options}) as consumer:
        consumer.subscribe(topic)
        assert len(await read(consumer, 5, max_records=5)) == 5
        yield consumer


async def read_by_another(bootstrap: str, topic: str, **options: Any) -> None:
    """Another member takes over, reads all, commits and goes: the group is empty then."""
    async with member(bootstrap, f"lost-{topic}", auto_commit=False, **options) as other:
        other.subscribe(topic)
        await read(other, 10)
        await other.commit()


@both_protocols
@pytest.mark.parametrize("is_empty", [False, True])
def test_who_was_too_slow_is_refused_in_a_transaction(
    run: Callable[[Body], None], protocol: str, is_empty: bool
) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        place, group = TopicPartition(topic, 0), f"lost-{topic}"
        options: dict[str, Any] = {"auto_commit": False, "group_protocol": protocol}
        async with (
            after_five(bootstrap, topic, **options) as slow,
            member(bootstrap, group, **options) as other,
            AsyncProducer(bootstrap, transactional_id=group) as producer,
        ):
            before = slow.group_metadata
            await is_lost(slow)
            producer.begin_transaction()
            other.subscribe(topic)
            await read(other, 10)
            await other.commit()
            if is_empty:
                await other.unsubscribe()
            assert slow.group_metadata == before
            with pytest.raises((UnknownMemberId, IllegalGeneration)):
                await producer.send_offsets({place: 5}, slow.group_metadata)
            await producer.abort_transaction()
            assert await committed(bootstrap, group, place) == 10
            await other.unsubscribe()
            await joins_again(slow)
            assert slow.group_metadata != before
            async with producer.transaction():
                await producer.send_offsets({place: 7}, slow.group_metadata)

    run(body)


@both_protocols
def test_what_was_read_before_is_not_committed_by_itself(run: Callable[[Body], None], protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        place, group = TopicPartition(topic, 0), f"lost-{topic}"
        async with after_five(bootstrap, topic, group_protocol=protocol) as slow:
            await is_lost(slow)
            await read_by_another(bootstrap, topic, group_protocol=protocol)
            await slow.poll(timeout=0)
            await asyncio.sleep(0.3)
            assert await committed(bootstrap, group, place) == 10
            await joins_again(slow)
            assert await slow.position(place) == 10

    run(body)


@both_protocols
def test_a_commit_says_that_the_consumer_was_too_slow(run: Callable[[Body], None], protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        place = TopicPartition(topic, 0)
        async with after_five(bootstrap, topic, auto_commit=False, group_protocol=protocol) as slow:
            await is_lost(slow)
            with pytest.raises(UnknownMemberId, match="not polled in max_poll_interval_ms=1000"):
                await slow.commit()
            with pytest.raises(UnknownMemberId, match="the next poll joins again"):
                await slow.commit_async({place: 5})
            assert len(await read(slow, 10)) == 10, "nothing was committed"
            await slow.commit()
            assert await committed(bootstrap, f"lost-{topic}", place) == 10

    run(body)


def test_who_is_put_out_by_an_admin_does_not_commit(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        group = f"lost-{topic}"
        async with after_five(bootstrap, topic, auto_commit=False, max_poll_interval_ms=60_000) as consumer:
            before = consumer.group_metadata
            async with Cluster(bootstrap) as cluster:
                await remove_members(cluster, group, Deadline(30_000), member_ids=[before.member_id])
            await is_lost(consumer)
            assert consumer.group_metadata == before
            with pytest.raises(UnknownMemberId, match="has put this consumer out"):
                await consumer.commit()

    run(body)


@both_protocols
def test_a_commit_of_before_is_not_made_up_for_after_joining_again(
    run: Callable[[Body], None], protocol: str
) -> None:
    """The coordinator could not be asked in between."""
    is_back = asyncio.Event()

    async def away(*_: Any, **__: Any) -> None:
        await is_back.wait()
        raise CoordinatorNotAvailable

    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        place = TopicPartition(topic, 0)
        async with after_five(bootstrap, topic, auto_commit=False, group_protocol=protocol) as slow:
            link: Any = slow._group._commits._link  # type: ignore[union-attr]
            ask, link.ask = link.ask, away
            commit = slow.commit_async()
            await is_lost(slow)
            await read_by_another(bootstrap, topic, group_protocol=protocol)
            await joins_again(slow)
            link.ask = ask
            is_back.set()
            with pytest.raises(UnknownMemberId, match="joined again"):
                await commit
            assert await committed(bootstrap, f"lost-{topic}", place) == 10

    run(body)


@both_protocols
@pytest.mark.parametrize("call", ["close", "unsubscribe", "poll"])
def test_lost_partitions_are_told_as_lost(run: Callable[[Body], None], protocol: str, call: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        told: list[str] = []
        async with member(bootstrap, f"lost-{topic}", **SLOW, group_protocol=protocol) as slow:
            slow.subscribe(
                topic, on_lost=lambda _: told.append("lost"), on_revoked=lambda _: told.append("revoked")
            )
            await until(lambda: bool(slow.assignment), slow)
            await is_lost(slow)
            await getattr(slow, call)()
            assert told == ["lost"]

    run(body)


def test_an_eager_member_that_is_put_out_before_it_gives_up_has_lost(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        told: list[str] = []
        eager: dict[str, Any] = {"assignors": ["range"]}
        async with member(bootstrap, f"lost-{topic}", **SLOW, **eager) as slow:
            slow.subscribe(
                topic, on_lost=lambda _: told.append("lost"), on_revoked=lambda _: told.append("revoked")
            )
            await until(lambda: bool(slow.assignment), slow)
            async with member(bootstrap, f"lost-{topic}", **eager) as other:
                other.subscribe(topic)
                await until(lambda: bool(other.assignment), other)
                await is_lost(slow)
                await slow.poll(timeout=0)
                assert told == ["lost"]

    run(body)


def test_who_assigns_itself_commits_as_nobody(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        place, group = TopicPartition(topic, 0), f"lost-{topic}"
        async with after_five(bootstrap, topic, auto_commit=False) as consumer:
            await is_lost(consumer)
            await consumer.unsubscribe()
            assert consumer.group_metadata == (group, -1, "", None)
            consumer.assign([place])
            await consumer.commit({place: 3})
            assert await committed(bootstrap, group, place) == 3

    run(body)


@pytest.mark.parametrize("call", ["poll", "poll_arrow", "__anext__"])
def test_a_record_that_only_lies_ready_is_no_poll(run: Callable[[Body], None], call: str) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        async with member(bootstrap, f"lost-{topic}", auto_commit=False) as consumer:
            group: Any = consumer._group
            consumer.subscribe(topic)
            await until(lambda: bool(consumer.assignment), consumer)
            await consumer.position((topic, 0))
            await consumer.poll(timeout=0)
            await asyncio.sleep(0.3)
            await fill(bootstrap, topic, 0, numbered(3))
            async with asyncio.timeout(PATIENCE_S):
                while not consumer._assignment.ready:
                    await asyncio.sleep(0.02)
            idle_ms = group.idle_ms
            assert idle_ms > 300
            assert not consumer._poll_point.is_due, "so that records are taken without asking anyone"
            await getattr(consumer, call)()
            assert group.idle_ms < idle_ms

    run(body)
