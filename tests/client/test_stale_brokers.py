"""A broker that is cut off from its cluster goes on telling what was: clients ask another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream import AsyncAdmin, AsyncConsumer, AsyncProducer, TopicPartition
from millstream.client.cluster import Cluster
from millstream.client.record_deletion import delete_records
from millstream.deadline import Deadline
from millstream.errors import NotController, NotCoordinator, NotLeaderOrFollower
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from millstream.protocol.schema import Request
from tests.client.scripted import Answer, ScriptedBroker, all_versions, scripted_broker


class Believer:
    """Says that it leads, controls and coordinates everything; one of an older epoch errs."""

    def __init__(self, node_id: int, epoch: int, is_wrong: bool) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.is_wrong = is_wrong
        self.brokers: list[ScriptedBroker] = []

    def error(self, kind: Any) -> int:
        code: int = kind.code
        return code if self.is_wrong else 0

    async def answer(self, header: RequestHeader, request: Request) -> Answer:
        if isinstance(request, ApiVersionsRequest):
            return all_versions()
        if isinstance(request, MetadataRequest):
            return self.metadata()
        if isinstance(request, FindCoordinatorRequest):
            return FindCoordinatorResponse(
                node_id=self.node_id, host="127.0.0.1", port=self.brokers[self.node_id].port
            )
        if isinstance(request, InitProducerIdRequest):
            return InitProducerIdResponse(producer_id=1, producer_epoch=0)
        if isinstance(request, ProduceRequest):
            part = ProduceResponse.PartitionProduceResponse(
                index=0, error_code=self.error(NotLeaderOrFollower), base_offset=5
            )
            topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[part])
            return ProduceResponse(responses=[topic])
        if isinstance(request, ListOffsetsRequest):
            place = ListOffsetsResponse.ListOffsetsPartitionResponse(
                partition_index=0, error_code=self.error(NotLeaderOrFollower), offset=7
            )
            return ListOffsetsResponse(
                topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[place])]
            )
        if isinstance(request, CreateTopicsRequest):
            made = CreateTopicsResponse.CreatableTopicResult(
                name="t", error_code=self.error(NotController), num_partitions=1, replication_factor=1
            )
            return CreateTopicsResponse(topics=[made])
        assert isinstance(request, DeleteGroupsRequest)
        gone = DeleteGroupsResponse.DeletableGroupResult(group_id="g", error_code=self.error(NotCoordinator))
        return DeleteGroupsResponse(results=[gone])

    def metadata(self) -> MetadataResponse:
        part = MetadataResponse.MetadataResponsePartition(
            partition_index=0,
            leader_id=self.node_id,
            leader_epoch=self.epoch,
            replica_nodes=[0, 1],
            isr_nodes=[0, 1],
        )
        nodes = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host="127.0.0.1", port=broker.port)
            for number, broker in enumerate(self.brokers)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=[part])
        return MetadataResponse(brokers=nodes, topics=[topic], cluster_id="c", controller_id=self.node_id)


async def send(bootstrap: str) -> None:
    async with AsyncProducer(bootstrap, linger_ms=0, retry_backoff_ms=10) as producer:
        assert (await producer.send("t", b"v", partition=0)).offset == 5


async def look(bootstrap: str) -> None:
    async with AsyncConsumer(bootstrap, offset_reset="latest") as consumer:
        consumer.assign([("t", 0)])
        assert await consumer.position(("t", 0), timeout=20) == 7


async def ask(bootstrap: str) -> None:
    async with AsyncConsumer(bootstrap) as consumer:
        assert await consumer.end_offsets([("t", 0)], timeout=20) == {TopicPartition("t", 0): 7}


async def create(bootstrap: str) -> None:
    async with AsyncAdmin(bootstrap) as admin:
        assert (await admin.create_topic("t", 1, timeout=20)).name == "t"


async def delete_group(bootstrap: str) -> None:
    async with AsyncAdmin(bootstrap) as admin:
        await admin.delete_group("g", timeout=20)


@pytest.mark.parametrize("work", [send, look, ask, create, delete_group])
def test_another_broker_is_asked(work: Callable[[str], Awaitable[None]]) -> None:
    async def main() -> None:
        old, new = Believer(0, 1, is_wrong=True), Believer(1, 2, is_wrong=False)
        async with scripted_broker(old.answer) as first, scripted_broker(new.answer) as second:
            old.brokers = new.brokers = [first, second]
            await work(f"127.0.0.1:{first.port}")

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_broker_that_is_asked_is_asked_again_until_it_errs() -> None:
    """Brokers learn of a change one after the other: what one has told, another may not know yet."""

    async def main() -> None:
        told = [Believer(number, number, is_wrong=False) for number in range(2)]
        async with scripted_broker(told[0].answer) as first, scripted_broker(told[1].answer) as second:
            for each in told:
                each.brokers = [first, second]
            async with Cluster(f"127.0.0.1:{first.port}") as cluster:
                deadline = Deadline(20_000)
                while (await cluster.refresh(["t"], deadline)).controller_id == 0:
                    cluster.doubt()
                for _ in range(10):
                    assert (await cluster.refresh(["t"], deadline)).controller_id == 1

    asyncio.run(asyncio.wait_for(main(), 30))


class Silent(Believer):
    """Answers nothing any more once it was asked to delete records, as a process that is stopped."""

    is_silent = False

    async def answer(self, header: RequestHeader, request: Request) -> Answer:
        self.is_silent = self.is_silent or isinstance(request, DeleteRecordsRequest)
        return None if self.is_silent else await super().answer(header, request)


class Successor(Believer):
    """Deletes records as it is told to."""

    async def answer(self, header: RequestHeader, request: Request) -> Answer:
        if not isinstance(request, DeleteRecordsRequest):
            return await super().answer(header, request)
        place = DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=0, low_watermark=3)
        return DeleteRecordsResponse(
            topics=[DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=[place])]
        )


def test_a_leader_that_does_not_answer_is_looked_for_anew() -> None:
    async def main() -> None:
        old, new = Silent(0, 1, is_wrong=False), Successor(1, 2, is_wrong=False)
        async with scripted_broker(old.answer) as first, scripted_broker(new.answer) as second:
            old.brokers = new.brokers = [first, second]
            async with Cluster(f"127.0.0.1:{first.port}", request_timeout_ms=200) as cluster:
                place = TopicPartition("t", 0)
                assert await delete_records(cluster, {place: 3}, Deadline(20_000)) == {place: 3}

    asyncio.run(asyncio.wait_for(main(), 30))
