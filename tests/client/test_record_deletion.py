"""Records are deleted once, whatever becomes of a try, and partitions do not wait for one another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream import AsyncProducer, TopicPartition
from millstream.client.cluster import Cluster as Client
from millstream.client.errors import NoSuchTopic
from millstream.client.record_deletion import delete_records
from millstream.deadline import Deadline
from millstream.errors import (
    NetworkException,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    ApiVersionsRequest,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocol.schema import Request
from tests.client.scripted import Answer, all_versions, scripted_broker
from tests.controller.cluster import Cluster

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_second_try_deletes_nothing_that_came_after_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path, count=1) as cluster:
            head = await cluster.until_controller()
            await cluster.create("t", 2, 1)
            bootstrap = f"127.0.0.1:{head.listeners['PLAINTEXT'].port}"
            async with Client(bootstrap) as client, AsyncProducer(bootstrap) as producer:
                await producer.send("t", b"before", partition=0)
                ask, tries = client.request, 0

                async def request(node_id: int | None, asked: Request, *rest: Any, **others: Any) -> Any:
                    nonlocal tries
                    answer = await ask(node_id, asked, *rest, **others)
                    if isinstance(asked, DeleteRecordsRequest):
                        tries += 1
                        if tries == 1:
                            await producer.send("t", b"after", partition=0)
                            raise NetworkException("the answer is lost")
                    return answer

                monkeypatch.setattr(client, "request", request)
                assert await delete_records(client, {FIRST: -1, SECOND: -1}, Deadline(20_000)) == {
                    FIRST: 1,
                    SECOND: 0,
                }
                assert tries == 2
                log = head.replicas.topic("t")[0].log
                assert (log.start_offset, log.end_offset) == (1, 2)

    asyncio.run(main())


def test_each_partition_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path, count=1) as cluster:
            head = await cluster.until_controller()
            await cluster.create("t", 2, 1)
            bootstrap = f"127.0.0.1:{head.listeners['PLAINTEXT'].port}"
            async with Client(bootstrap) as client, AsyncProducer(bootstrap) as producer:
                await producer.send("t", b"v", partition=0)
                unknown = [TopicPartition("t", 2), TopicPartition("no-such", 0)]
                asked = {FIRST: -1, SECOND: 5, unknown[0]: 0, unknown[1]: -1}
                results = await delete_records(client, asked, Deadline(20_000))
                assert [*results] == [*asked]
                assert results[FIRST] == 1
                assert isinstance(results[SECOND], OffsetOutOfRange)
                assert [type(results[each]) for each in unknown] == [NoSuchTopic] * 2
                assert await delete_records(client, {}, Deadline(20_000)) == {}

    asyncio.run(main())


class Waiting:
    """Leads two partitions, of which the first one's followers never follow."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[DeleteRecordsRequest] = []

    async def answer(self, header: RequestHeader, request: Request) -> Answer:
        if isinstance(request, ApiVersionsRequest):
            return all_versions()
        if isinstance(request, MetadataRequest):
            node = MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)
            parts = [
                MetadataResponse.MetadataResponsePartition(
                    partition_index=index, leader_id=0, leader_epoch=0, replica_nodes=[0], isr_nodes=[0]
                )
                for index in range(2)
            ]
            topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=parts)
            return MetadataResponse(brokers=[node], topics=[topic], cluster_id="c", controller_id=0)
        assert isinstance(request, DeleteRecordsRequest)
        self.asked.append(request)
        results = [
            DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=part.partition_index,
                low_watermark=-1 if part.partition_index == 0 else part.offset,
                error_code=RequestTimedOut.code if part.partition_index == 0 else 0,
            )
            for part in request.topics[0].partitions
        ]
        return DeleteRecordsResponse(
            topics=[DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=results)]
        )


def test_a_partition_that_waits_holds_up_no_other() -> None:
    async def main() -> None:
        broker = Waiting()
        async with scripted_broker(broker.answer) as served:
            broker.port = served.port
            async with Client(f"127.0.0.1:{served.port}", request_timeout_ms=1000) as client:
                results = await delete_records(client, {FIRST: 3, SECOND: 4}, Deadline(4000))
        assert results[SECOND] == 4
        waited = results[FIRST]
        assert isinstance(waited, RequestTimedOut)
        assert "partition t-0" in waited.message
        first, *later = broker.asked
        assert [part.offset for part in first.topics[0].partitions] == [3, 4]
        assert first.timeout_ms <= 750  # it answers while its client still waits
        assert later
        assert all([part.offset for part in each.topics[0].partitions] == [3] for each in later)

    asyncio.run(asyncio.wait_for(main(), 30))


class Fickle(Waiting):
    """Answers tries with errors, one after the other, and then as it should; each partition ends at 5."""

    def __init__(self, *errors: tuple[int, int]) -> None:
        super().__init__()
        self._errors = list(errors)

    async def answer(self, header: RequestHeader, request: Request) -> Answer:
        if isinstance(request, ListOffsetsRequest):
            ends = [
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index, error_code=0, offset=5
                )
                for part in request.topics[0].partitions
            ]
            return ListOffsetsResponse(
                topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=ends)]
            )
        answer = await super().answer(header, request)
        if isinstance(answer, DeleteRecordsResponse):
            codes = self._errors.pop(0) if self._errors else (0, 0)
            for result in answer.topics[0].partitions:
                result.error_code = codes[result.partition_index]
                result.low_watermark = -1 if result.error_code else 5
        return answer


@pytest.mark.parametrize(
    "errors",
    [
        # A new leader does not know yet that what was committed is; another one leads no more.
        (OffsetOutOfRange.code, NotLeaderOrFollower.code),
        (NotLeaderOrFollower.code, OffsetOutOfRange.code),
        # It has not heard of the topic yet.
        (UnknownTopicOrPartition.code, 0),
    ],
)
def test_what_passes_by_itself_is_waited_for(errors: tuple[int, int]) -> None:
    async def main() -> None:
        broker = Fickle(*[errors] * 4)  # for longer than a new topic is waited for
        async with scripted_broker(broker.answer) as served:
            broker.port = served.port
            async with Client(f"127.0.0.1:{served.port}") as client:
                results = await delete_records(client, {FIRST: -1, SECOND: -1}, Deadline(30_000))
        assert results == {FIRST: 5, SECOND: 5}
        assert {part.offset for each in broker.asked for part in each.topics[0].partitions} == {5}

    asyncio.run(main())


def test_topics_that_are_gone_hold_up_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path, count=1) as cluster:
            head = await cluster.until_controller()
            await cluster.create("t", 2, 1)
            bootstrap = f"127.0.0.1:{head.listeners['PLAINTEXT'].port}"
            gone = [TopicPartition(f"gone-{number}", 0) for number in range(100)]
            async with Client(bootstrap) as client:
                results = await delete_records(client, dict.fromkeys([*gone, FIRST], -1), Deadline(20_000))
        assert results.pop(FIRST) == 0
        assert {type(error) for error in results.values()} == {NoSuchTopic}

    asyncio.run(main())
