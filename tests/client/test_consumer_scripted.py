"""What a consumer does when brokers answer as real ones seldom do: scripted brokers, real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from millstream import AsyncConsumer, TopicPartition
from millstream.client.consumer_errors import BadRecords, LogTruncated
from millstream.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
)
from millstream.protocol.batch import Record, encode_batch
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from millstream.protocol.schema import Request
from tests.client.consuming import read
from tests.client.scripted import Answer, ScriptedBroker, all_versions, scripted_broker

TOPIC, TOPIC_ID = "scripted", UUID(int=77)
HERE = TopicPartition(TOPIC, 0)
Part = FetchResponse.PartitionData


@dataclass
class Script:
    """Brokers 1 and 2 and one partition with records 0 to `end`; what a Fetch gets can be told."""

    leader: int = 1
    leader_epoch: int = 0
    end: int = 100
    epoch_ends: dict[int, int] = field(default_factory=dict)
    answers: dict[int, list[Callable[[FetchRequest], FetchResponse]]] = field(default_factory=dict)
    brokers: dict[int, ScriptedBroker] = field(default_factory=dict)
    fetches: list[tuple[int, FetchRequest]] = field(default_factory=list)
    positions: dict[int, int | None] = field(default_factory=dict)

    def serve(self, node: int) -> Callable[[RequestHeader, Request], Any]:
        async def answer(header: RequestHeader, request: Request) -> Answer:
            if isinstance(request, MetadataRequest):
                return self._metadata()
            if isinstance(request, ListOffsetsRequest):
                return self._offsets(request)
            if isinstance(request, OffsetForLeaderEpochRequest):
                return self._epochs(request)
            if isinstance(request, FetchRequest):
                self.fetches.append((node, request))
                asked = offset_asked(request)
                if asked is not None or request.forgotten_topics_data:
                    self.positions[node] = asked
                told = self.answers.get(node)
                if told:
                    return told.pop(0)(request)
                return await self._fetch(node, request)
            return all_versions()

        return answer

    def _metadata(self) -> MetadataResponse:
        part = MetadataResponse.MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.leader_epoch,
            replica_nodes=[1, 2],
            isr_nodes=[1, 2],
            offline_replicas=[],
        )
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=broker.port)
                for node, broker in self.brokers.items()
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[
                MetadataResponse.MetadataResponseTopic(
                    error_code=0, name=TOPIC, topic_id=TOPIC_ID, is_internal=False, partitions=[part]
                )
            ],
        )

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        offset = {-2: 0, -1: self.end}[request.topics[0].partitions[0].timestamp]
        part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(
            topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name=TOPIC, partitions=[part])]
        )

    def _epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        asked = request.topics[0].partitions[0].leader_epoch
        end = OffsetForLeaderEpochResponse.EpochEndOffset(
            partition=0, leader_epoch=asked, end_offset=self.epoch_ends.get(asked, self.end)
        )
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=TOPIC, partitions=[end])]
        )

    async def _fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        position = self.positions.get(node)
        if position is None or position >= self.end:
            await asyncio.sleep(request.max_wait_ms / 1000)
            return fetched(request)
        return fetched(request, records=batch(position, min(10, self.end - position), self.leader_epoch))


def offset_asked(request: FetchRequest) -> int | None:
    return request.topics[0].partitions[0].fetch_offset if request.topics else None


def batch(start: int, count: int, leader_epoch: int = 0) -> bytes:
    records = [Record(value=b"%d" % offset, timestamp=1) for offset in range(start, start + count)]
    return bytes(encode_batch(records, base_offset=start, leader_epoch=leader_epoch))


def fetched(request: FetchRequest, error: int = 0, **part: Any) -> FetchResponse:
    data = Part(partition_index=0, error_code=error, high_watermark=100, **part)
    topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[data])
    return FetchResponse(responses=[topic], session_id=request.session_id or 4711)


@asynccontextmanager
async def cluster(script: Script) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        for node in (1, 2):
            script.brokers[node] = await stack.enter_async_context(scripted_broker(script.serve(node)))
        yield f"127.0.0.1:{script.brokers[1].port}"


def consumer_of(bootstrap: str, **options: Any) -> AsyncConsumer:
    consumer = AsyncConsumer(bootstrap, fetch_max_wait_ms=50, **{"offset_reset": "earliest", **options})
    consumer.assign([HERE])
    return consumer


def offsets(records: list[Any]) -> list[int]:
    return [record.offset for record in records]


def test_reads_from_the_replica_that_the_leader_names_and_comes_back_to_the_leader() -> None:
    async def body() -> None:
        script = Script()
        script.answers[1] = [lambda request: fetched(request, preferred_read_replica=2)]
        async with cluster(script) as bootstrap, consumer_of(bootstrap, rack="here") as consumer:
            assert offsets(await read(consumer, 30, max_records=30)) == list(range(30))
            assert {node for node, _ in script.fetches[1:]} == {2}
            assert {request.rack_id for _, request in script.fetches} == {"here"}
            script.answers[2] = [lambda request: fetched(request, error=OffsetOutOfRange.code)] * 2
            assert offsets(await read(consumer, 70)) == list(range(30, 100))
            assert any(node == 1 for node, _ in script.fetches[1:]), "the leader has what it lacked"

    asyncio.run(body())


def test_a_new_leader_is_asked_whether_it_has_what_was_read() -> None:
    async def body() -> None:
        script = Script(epoch_ends={0: 50})

        def moved(request: FetchRequest) -> FetchResponse:
            script.leader, script.leader_epoch = 2, 1
            return fetched(request, error=NotLeaderOrFollower.code)

        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            assert offsets(await read(consumer, 20, max_records=20)) == list(range(20))
            script.answers[1] = [moved]
            rest = await read(consumer, 80)
            assert offsets(rest) == list(range(20, 100))
            asked = [request for broker in script.brokers.values() for _, request in broker.seen]
            assert any(isinstance(request, OffsetForLeaderEpochRequest) for request in asked)

    asyncio.run(body())


def test_the_leader_that_an_answer_names_is_asked_at_once() -> None:
    """KIP-951: no Metadata request is needed, and would not help while it still names the old leader."""

    async def body() -> None:
        script = Script()

        def moved(request: FetchRequest) -> FetchResponse:
            leader = FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
            answer = fetched(request, error=NotLeaderOrFollower.code, current_leader=leader)
            answer.node_endpoints = [
                FetchResponse.NodeEndpoint(node_id=2, host="127.0.0.1", port=script.brokers[2].port)
            ]
            return answer

        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            assert offsets(await read(consumer, 20, max_records=20)) == list(range(20))
            asked_before = metadata_requests(script)
            script.answers[1] = [moved] * 100
            began = time.monotonic()
            assert offsets(await read(consumer, 80)) == list(range(20, 100))
            assert time.monotonic() - began < 2
            assert metadata_requests(script) == asked_before
            assert script.fetches[-1][0] == 2

    asyncio.run(body())


def metadata_requests(script: Script) -> int:
    seen = [request for broker in script.brokers.values() for _, request in broker.seen]
    return sum(isinstance(request, MetadataRequest) for request in seen)


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_new_leader_that_lost_what_was_read_is_noticed(policy: str) -> None:
    async def body() -> None:
        script = Script(end=40)

        def moved(request: FetchRequest) -> FetchResponse:
            script.leader, script.leader_epoch, script.end = 2, 1, 35
            script.epoch_ends[0] = 25
            return fetched(request, error=FencedLeaderEpoch.code)

        async with cluster(script) as bootstrap, consumer_of(bootstrap, offset_reset=policy) as consumer:
            consumer.seek(HERE, 0)
            assert offsets(await read(consumer, 40)) == list(range(40))
            script.answers[1] = [moved] * 2
            if policy == "earliest":
                assert offsets(await read(consumer, 10)) == list(range(25, 35)), "from where they differ"
            else:
                with pytest.raises(LogTruncated) as caught:
                    await read(consumer, 1)
                assert (caught.value.partition, caught.value.diverging_offset) == (HERE, 25)

    asyncio.run(body())


def test_records_that_do_not_match_their_checksum_are_not_handed_out() -> None:
    async def body() -> None:
        script = Script(end=30)
        good, bad = batch(0, 10), bytearray(batch(10, 10))
        bad[-1] ^= 1

        def broken(request: FetchRequest) -> FetchResponse:
            return fetched(request, records=good + bytes(bad) if offset_asked(request) == 0 else bytes(bad))

        script.answers[1] = [broken] * 2
        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            assert offsets(await read(consumer, 10)) == list(range(10)), "what lies before is good"
            with pytest.raises(BadRecords, match="at offset 10"):
                await read(consumer, 1)
            consumer.seek(HERE, 20)
            assert offsets(await read(consumer, 10)) == list(range(20, 30))

    asyncio.run(body())


def test_records_that_the_broker_found_to_be_bad_are_an_error_and_not_waited_for() -> None:
    async def body() -> None:
        script = Script(end=30)
        script.answers[1] = [lambda request: fetched(request, error=CorruptMessage.code)] * 2
        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            with pytest.raises(BadRecords, match="scripted-0 at offset 0"):
                await read(consumer, 1)
            consumer.seek(HERE, 20)
            with pytest.raises(BadRecords, match="scripted-0 at offset 20"):
                await read(consumer, 1)
            assert offsets(await read(consumer, 10)) == list(range(20, 30)), "it may have been mended"

    asyncio.run(body())


def test_a_lost_session_is_begun_anew_with_all_partitions() -> None:
    async def body() -> None:
        script = Script()

        def lost(request: FetchRequest) -> FetchResponse:
            return FetchResponse(error_code=FetchSessionIdNotFound.code, responses=[])

        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            assert offsets(await read(consumer, 20, max_records=20)) == list(range(20))
            script.answers[1] = [lost]
            assert offsets(await read(consumer, 80)) == list(range(20, 100))
            anew = [request for _, request in script.fetches if request.session_epoch == 0]
            assert len(anew) >= 2
            assert any(request.session_epoch > 0 for _, request in script.fetches)

    asyncio.run(body())


def test_what_is_forbidden_is_raised_once_for_each_poll_and_keeps_nothing_waiting() -> None:
    async def body() -> None:
        script = Script()
        script.answers[1] = [lambda request: fetched(request, error=TopicAuthorizationFailed.code)] * 3
        async with cluster(script) as bootstrap, consumer_of(bootstrap) as consumer:
            await asyncio.sleep(1.0)
            with pytest.raises(TopicAuthorizationFailed, match="scripted-0"):
                await consumer.poll()
            assert offsets(await read(consumer, 100)) == list(range(100))

    asyncio.run(body())


def test_a_seek_is_not_kept_waiting_by_a_fetch_that_waits_for_records() -> None:
    async def body() -> None:
        script = Script(end=10)
        async with cluster(script) as bootstrap:
            consumer = AsyncConsumer(bootstrap, fetch_max_wait_ms=10_000, offset_reset="earliest")
            consumer.assign([HERE])
            async with consumer:
                assert offsets(await read(consumer, 10)) == list(range(10))
                for _ in range(4):
                    began = time.monotonic()
                    await consumer.poll(timeout=0.05)
                    consumer.seek(HERE, 5)
                    assert offsets(await read(consumer, 5)) == list(range(5, 10))
                    assert time.monotonic() - began < 3

    asyncio.run(body())


def test_a_broker_that_is_silent_to_fetches_is_not_waited_for_on_other_connections() -> None:
    """It would be asked who leads instead, for as long again."""

    async def body() -> None:
        script = Script()
        silent: Any = lambda request: None  # noqa: E731
        script.answers[1] = [silent]
        async with cluster(script) as bootstrap, consumer_of(bootstrap, request_timeout_ms=300) as consumer:
            assert await consumer.position(HERE) == 0
            connection = consumer._cluster.open_connection(1)
            assert connection is not None
            assert connection.is_open
            assert offsets(await read(consumer, 100)) == list(range(100))
            assert not connection.is_open

    asyncio.run(body())


def test_closing_without_a_broker_takes_no_longer_than_it_may() -> None:
    async def body() -> None:
        script = Script()
        async with cluster(script) as bootstrap:
            consumer = AsyncConsumer(bootstrap, group="gone", offset_reset="earliest")
            consumer.subscribe(TOPIC)
            await consumer.poll(timeout=0.1)
        began = time.monotonic()
        await consumer.close(timeout=1)
        assert time.monotonic() - began < 5

    asyncio.run(body())
