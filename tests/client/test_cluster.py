"""The way to a cluster: addresses, metadata, retries, and what happens when nobody is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from millstream.client.cluster import Cluster, parse_bootstrap
from millstream.client.errors import NoSuchTopic, Unreachable
from millstream.client.metadata import Metadata
from millstream.deadline import Deadline
from millstream.errors import (
    InvalidTopic,
    LeaderNotAvailable,
    MillstreamError,
    NotController,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import ApiVersionsRequest, MetadataRequest, MetadataResponse
from millstream.protocol.schema import Request
from tests.client.conftest import Work
from tests.client.scripted import Answer, all_versions, scripted_broker
from tests.processes import free_port

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", [("localhost", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , ,b ", [("a", 1), ("b", 9092)]),
        ("[::1]:9000", [("::1", 9000)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_bootstrap_addresses(text: str | list[str], expected: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize("text", ["", ",", ":9092", "a:b", "a:0", "a:65536"])
def test_what_is_no_address_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(MillstreamError, match="write HOST:PORT"):
        parse_bootstrap(text)


# -------------------------------------------------------------------- metadata


def topic_answer(
    name: str, leader: int, epoch: int, **changes: Any
) -> MetadataResponse.MetadataResponseTopic:
    part = MetadataResponse.MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1]
    )
    return MetadataResponse.MetadataResponseTopic(
        name=name, topic_id=changes.pop("topic_id", NO_UUID), partitions=[part], **changes
    )


def answer(*topics: MetadataResponse.MetadataResponseTopic, port: int = 1) -> MetadataResponse:
    node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)
    return MetadataResponse(brokers=[node], topics=list(topics), cluster_id="c", controller_id=1)


def test_an_answer_behind_the_times_does_not_replace_a_newer_leader() -> None:
    from uuid import uuid4

    one, other = uuid4(), uuid4()
    metadata = Metadata()
    metadata.update(answer(topic_answer("t", 2, 5, topic_id=one)), is_complete=False)
    metadata.update(answer(topic_answer("t", 1, 4, topic_id=one)), is_complete=False)
    assert metadata.topic("t").partition(0).leader == 2
    metadata.update(answer(topic_answer("t", 1, 6, topic_id=one)), is_complete=False)
    assert metadata.topic("t").partition(0).leader == 1
    metadata.update(answer(topic_answer("t", 2, 0, topic_id=other)), is_complete=False)
    assert metadata.topic("t").partition(0).leader == 2, "a topic created anew starts at epoch 0"


def test_a_complete_answer_forgets_topics_that_are_gone() -> None:
    metadata = Metadata()
    metadata.update(answer(topic_answer("a", 1, 0), topic_answer("b", 1, 0)), is_complete=True)
    metadata.update(answer(topic_answer("c", 1, 0)), is_complete=False)
    assert sorted(metadata.topics) == ["a", "b", "c"]
    metadata.update(answer(topic_answer("b", 1, 0)), is_complete=True)
    assert sorted(metadata.topics) == ["b"]


def test_what_is_wrong_with_a_topic_is_its_error() -> None:
    metadata = Metadata()
    bad = topic_answer("bad name", -1, -1, error_code=InvalidTopic.code)
    metadata.update(answer(topic_answer("t", -1, 3), bad), is_complete=True)
    with pytest.raises(LeaderNotAvailable, match="t-0 has no leader"):
        metadata.topic("t").partition(0)
    with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 7"):
        metadata.topic("t").partition(7)
    with pytest.raises(InvalidTopic):
        metadata.topic("bad name")
    with pytest.raises(UnknownTopicOrPartition, match="does not exist"):
        metadata.topic("other")


# -------------------------------------------------------------------- reaching it


def test_nobody_there_is_an_error_at_once_for_a_person_who_waits(on_loop: Run) -> None:
    async def main() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with Cluster(address, must_answer_at_once=True) as cluster:
            started = time.monotonic()
            with pytest.raises(Unreachable, match=f"cannot connect to {address}"):
                await cluster.refresh([], Deadline(30_000))
            assert time.monotonic() - started < 2

    on_loop(main())


def test_nobody_there_is_waited_for_until_the_deadline(on_loop: Run) -> None:
    async def main() -> None:
        async with Cluster(f"127.0.0.1:{free_port()}") as cluster:
            started = time.monotonic()
            with pytest.raises(
                RequestTimedOut, match=r"not done in 400 ms; the last error was: cannot connect"
            ):
                await cluster.refresh([], Deadline(400))
            assert 0.1 < time.monotonic() - started < 2

    on_loop(main())


def test_the_second_address_is_taken_when_the_first_does_not_answer(on_loop: Run) -> None:
    async def main() -> None:
        async with scripted_broker(plain_script) as broker:
            addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{broker.port}"]
            async with Cluster(addresses, must_answer_at_once=True) as cluster:
                await cluster.refresh(None, Deadline(5000))
                assert cluster.metadata.cluster_id == "c"

    on_loop(main())


async def plain_script(header: RequestHeader, request: Request) -> Answer:
    return all_versions() if isinstance(request, ApiVersionsRequest) else answer()


def test_calls_at_the_same_time_share_a_connection(on_loop: Run) -> None:
    async def main() -> None:
        async with scripted_broker(plain_script) as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            deadline = Deadline(5000)
            await asyncio.gather(*(cluster.refresh(None, deadline) for _ in range(20)))
            assert broker.connections == 1

    on_loop(main())


def test_a_lost_connection_is_opened_again(on_loop: Run) -> None:
    async def main() -> None:
        count = 0

        async def script(header: RequestHeader, request: Request) -> Answer:
            nonlocal count
            if isinstance(request, ApiVersionsRequest):
                return all_versions()
            count += 1
            return b"\0" if count % 2 else answer(port=broker.port)

        async with scripted_broker(script) as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            for _ in range(3):
                await cluster.refresh(None, Deadline(10_000))
            assert broker.connections == 4

    on_loop(main())


def test_a_broker_that_has_fallen_silent_does_not_use_up_the_deadline(on_loop: Run) -> None:
    """The first answer never comes; the try ends by itself and the next one succeeds."""

    async def main() -> None:
        asked = 0

        async def script(header: RequestHeader, request: Request) -> Answer:
            nonlocal asked
            if isinstance(request, ApiVersionsRequest):
                return all_versions()
            asked += 1
            return None if asked == 1 else answer(port=broker.port)

        async with (
            scripted_broker(script) as broker,
            Cluster(f"127.0.0.1:{broker.port}", request_timeout_ms=100) as cluster,
        ):
            await cluster.refresh(None, Deadline(30_000))
            assert (asked, broker.connections) == (2, 2)

    on_loop(main())


# -------------------------------------------------------------------- retries


def failing(errors: list[Exception]) -> Callable[[], Coroutine[Any, Any, str]]:
    async def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    return attempt


def test_errors_that_pass_are_tried_again_and_others_are_not(on_loop: Run) -> None:
    async def main() -> None:
        cluster = Cluster("localhost", random=Random(1))
        passing: list[Exception] = [NotController(), LeaderNotAvailable(), RequestTimedOut()]
        assert await cluster.retrying(failing(passing), Deadline(10_000)) == "done"
        with pytest.raises(InvalidTopic):
            await cluster.retrying(failing([NotController(), InvalidTopic()]), Deadline(10_000))

    on_loop(main())


def test_a_topic_that_nobody_knows_is_an_error_soon_but_not_at_once(on_loop: Run) -> None:
    """One that was created a moment ago may not have reached the broker that is asked."""

    async def main() -> None:
        asked = 0

        async def script(header: RequestHeader, request: Request) -> Answer:
            nonlocal asked
            if isinstance(request, ApiVersionsRequest):
                return all_versions()
            assert isinstance(request, MetadataRequest)
            asked += 1
            name = (request.topics or [])[0].name or ""
            known = name == "late" and asked > 2
            topic = topic_answer(name, 1, 0) if known else topic_answer(name, -1, -1, error_code=3)
            return answer(topic, port=broker.port)

        async with scripted_broker(script) as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            assert (await cluster.topic("late", Deadline(10_000))).partition(0).leader == 1
            assert asked == 3
            await cluster.topic("late", Deadline(10_000))
            assert asked == 3, "a fresh topic is known without asking"
            cluster.forget("late")
            await cluster.topic("late", Deadline(10_000))
            assert asked == 4
            started = time.monotonic()
            with pytest.raises(NoSuchTopic, match="never does not exist"):
                await cluster.topic("never", Deadline(30_000))
            assert time.monotonic() - started < 5
            assert asked > 5

    on_loop(main())


# -------------------------------------------------------------------- real ones


def test_a_real_cluster_is_known(with_cluster: Callable[[Work], Any]) -> None:
    async def work(cluster: Cluster, deadline: Deadline) -> None:
        metadata = await cluster.refresh(None, deadline)
        assert metadata.cluster_id
        assert metadata.controller_id in metadata.nodes
        assert await cluster.controller(deadline) == metadata.controller_id
        connection = await cluster.connection(metadata.controller_id, deadline)
        assert connection.is_open
        assert connection.api_versions[MetadataRequest.key][1] >= 12

    with_cluster(work)
