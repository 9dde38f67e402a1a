"""A change to topics that is tried again: it is done only where it may have been done by the first try."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream import AsyncAdmin
from millstream.client.errors import NoSuchTopic
from millstream.errors import (
    InvalidPartitions,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocol.schema import Request
from tests.client.scripted import Answer, all_versions, scripted_broker
from tests.processes import free_port


class Controller:
    """Answers changes with these errors in turn. `away`: the port where it is looked for at first."""

    def __init__(self, *errors: Any, has_topic: bool = True, away: int = 0) -> None:
        self.codes = [error.code for error in errors]
        self.has_topic = has_topic
        self.away = away
        self.port = 0

    async def answer(self, _: RequestHeader, request: Request) -> Answer:
        if isinstance(request, ApiVersionsRequest):
            return all_versions()
        if isinstance(request, MetadataRequest):
            return self.metadata()
        code = self.codes.pop(0)
        if isinstance(request, CreateTopicsRequest):
            return CreateTopicsResponse(
                topics=[CreateTopicsResponse.CreatableTopicResult(name="t", error_code=code)]
            )
        if isinstance(request, CreatePartitionsRequest):
            return CreatePartitionsResponse(
                results=[CreatePartitionsResponse.CreatePartitionsTopicResult(name="t", error_code=code)]
            )
        assert isinstance(request, DeleteTopicsRequest)
        return DeleteTopicsResponse(
            responses=[DeleteTopicsResponse.DeletableTopicResult(name="t", error_code=code)]
        )

    def metadata(self) -> MetadataResponse:
        part = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        away, self.away = self.away, 0
        ports = {1: self.port, 2: away} if away else {1: self.port}
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=number, host="127.0.0.1", port=port)
                for number, port in ports.items()
            ],
            cluster_id="c",
            controller_id=2 if away else 1,
            topics=[
                MetadataResponse.MetadataResponseTopic(name="t", partitions=[part])
                if self.has_topic
                else MetadataResponse.MetadataResponseTopic(
                    name="t", error_code=UnknownTopicOrPartition.code, partitions=[]
                )
            ],
        )


def with_admin(controller: Controller, work: Any) -> Any:
    async def main() -> Any:
        async with scripted_broker(controller.answer) as broker:
            controller.port = broker.port
            async with AsyncAdmin(f"127.0.0.1:{broker.port}") as admin:
                return await work(admin)

    result = asyncio.run(asyncio.wait_for(main(), 30))
    assert not controller.codes, "not asked so often"
    return result


def test_what_a_controller_could_not_wait_for_may_be_done() -> None:
    created = with_admin(
        Controller(RequestTimedOut, TopicAlreadyExists), lambda admin: admin.create_topic("t", 1)
    )
    assert (created.name, created.partitions) == ("t", 1)
    with_admin(Controller(RequestTimedOut, InvalidPartitions), lambda admin: admin.add_partitions("t", 1))
    with_admin(
        Controller(RequestTimedOut, UnknownTopicOrPartition, has_topic=False),
        lambda admin: admin.delete_topic("t"),
    )


def test_what_the_wrong_broker_refused_is_not_done() -> None:
    with pytest.raises(TopicAlreadyExists):
        with_admin(Controller(NotController, TopicAlreadyExists), lambda admin: admin.create_topic("t", 1))
    with pytest.raises(NoSuchTopic):
        with_admin(
            Controller(NotController, UnknownTopicOrPartition, has_topic=False),
            lambda admin: admin.delete_topic("t"),
        )


def test_what_nobody_was_told_is_not_done() -> None:
    with pytest.raises(TopicAlreadyExists):
        with_admin(Controller(TopicAlreadyExists, away=free_port()), lambda admin: admin.create_topic("t", 1))
    with pytest.raises(InvalidPartitions):
        with_admin(
            Controller(InvalidPartitions, away=free_port()), lambda admin: admin.add_partitions("t", 1)
        )
