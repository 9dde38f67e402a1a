"""Partitions that cannot commit what was written to them: others do not wait for them, and nobody forever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.broker import server
from millstream.broker.coordinators import TRANSACTIONS_TOPIC
from millstream.broker.handlers import transactions
from millstream.client.connection import Connection, connect
from millstream.cluster.partition import Partition
from millstream.controller.topics import NewTopic
from millstream.coordinator.shard import Producer
from millstream.coordinator.transactions.transaction import OLD, Status
from millstream.deadline import Deadline
from millstream.errors import CoordinatorNotAvailable, error_for
from millstream.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.coordinator.transactions.test_ends import PATIENCE_S, TOPIC, Case, run, running, until

PATIENCE_MS = PATIENCE_S * 1000


@asynccontextmanager
async def held(partition: Partition, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Within this, nothing that is written to a partition is committed."""
    flush, let_go = partition.log.flush, threading.Event()

    def wait() -> int:
        assert let_go.wait(PATIENCE_S)
        return flush()

    patch.setattr(partition.log, "flush", wait)
    try:
        yield
    finally:
        let_go.set()


async def link(case: Case) -> Connection:
    return await connect("127.0.0.1", case.broker.port, deadline=Deadline(5000), client_id="broker")


def marker(producer_id: int, topic: str) -> WriteTxnMarkersRequest:
    place = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=1,
                transaction_result=True,
                coordinator_epoch=0,
                topics=[place],
            )
        ]
    )


def test_ends_reach_the_partitions_that_can_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with running(tmp_path, log_flush_before_ack="true") as case:
            await case.broker.controller.create_topic(NewTopic("u", 1, 1))
            other = case.broker.replicas.leader("u", 0)
            connection = await link(case)
            async with held(case.partition, monkeypatch):
                asked = [
                    connection.send(marker(7, TOPIC.topic), PATIENCE_MS),
                    connection.send(marker(8, "u"), PATIENCE_MS),
                ]
                await until(lambda: other.high_watermark == 1)
                assert case.partition.high_watermark == 0
            for answer in await asyncio.gather(*asked):
                assert isinstance(answer, WriteTxnMarkersResponse)
                assert answer.markers[0].topics[0].partitions[0].error_code == 0
            await connection.close()

    run(test())


def added(transactional_id: str, producer: Producer) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC.topic, partitions=[0])
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[topic],
            )
        ]
    )


def test_transactions_begin_where_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker asks another one for all its producers over one connection."""

    async def test() -> None:
        monkeypatch.setattr(transactions, "ANSWER_SECONDS", PATIENCE_S)
        async with running(tmp_path, log_flush_before_ack="true") as case:
            await case.init()
            broker = case.broker
            names = map(str, range(100))
            name, index = next(
                (name, index)
                for name in names
                if (index := broker.coordinators.partition_of(TRANSACTIONS_TOPIC, name)) != case.index
            )
            await until(lambda: broker.transactions.is_active(index))
            other = await broker.transactions.write(
                index, lambda shard: shard.init_producer_id(name, 60_000, None, 6)
            )
            assert other is not None
            connection = await link(case)
            async with held(case.coordinator, monkeypatch):
                asked = [
                    connection.send(added("x", case.producer), PATIENCE_MS),
                    connection.send(added(name, other), PATIENCE_MS),
                ]
                found = broker.replicas.leader(TRANSACTIONS_TOPIC, index)
                await until(lambda: found.high_watermark == 2)
            for answer in await asyncio.gather(*asked):
                assert isinstance(answer, AddPartitionsToTxnResponse)
                (result,) = answer.results_by_transaction[0].topic_results
                assert result.results_by_partition[0].partition_error_code == 0
            await connection.close()

    run(test())


def test_a_broker_is_told_to_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(transactions, "ANSWER_SECONDS", 0.05)
        async with running(tmp_path, log_flush_before_ack="true") as case:
            await case.init()
            connection = await link(case)
            request = added("x", case.producer)
            async with held(case.coordinator, monkeypatch):
                codes = [await code(connection, request), await code(connection, request)]
                assert codes == [CoordinatorNotAvailable.code] * 2
            await until(lambda: case.coordinator.high_watermark == 2)
            assert await code(connection, request) == 0
            await connection.close()

    run(test())


async def code(connection: Connection, request: AddPartitionsToTxnRequest) -> int:
    answer = await connection.request(request, AddPartitionsToTxnResponse, PATIENCE_MS)
    return answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code


def test_a_producer_is_told_to_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it asked for may happen all the same, and is answered then."""

    async def test() -> None:
        monkeypatch.setattr(server, "COMMIT_TIMEOUT_MS", 50)
        async with running(tmp_path, log_flush_before_ack="true") as case:
            await insist(case.init)

            def add() -> Awaitable[None]:
                return case.broker.transactions.write(
                    case.index, lambda shard: shard.add_partitions("x", case.producer, [TOPIC], OLD)
                )

            await insist(add)
            request = EndTxnRequest(
                transactional_id="x",
                producer_id=case.producer.producer_id,
                producer_epoch=case.producer.epoch,
                committed=True,
            )
            connection = await link(case)

            async def end() -> None:
                answer = await connection.request(request, EndTxnResponse, PATIENCE_MS, max_version=4)
                if answer.error_code:
                    raise error_for(answer.error_code)()

            async with held(case.coordinator, monkeypatch):
                with pytest.raises(CoordinatorNotAvailable):
                    await end()
                assert case.transaction.status is Status.PREPARE_COMMIT
            await case.completed()
            await insist(end)
            await connection.close()

    run(test())


async def insist(ask: Callable[[], Awaitable[None]]) -> None:
    """Ask until it is committed in time: the disk may be slow here too."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except CoordinatorNotAvailable:
                continue
