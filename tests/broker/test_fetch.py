"""Fetches that wait while the disk is slow, and what a waiting fetch holds."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millstream import pauses
from millstream.broker.handlers import fetch as fetch_handlers
from millstream.broker.handlers.fetch import fetch
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.cluster.partition import Partition
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower, ProtocolError
from millstream.net.connection import Connection
from millstream.protocol.batch import encode_batch
from millstream.protocol.messages import FetchRequest, FetchResponse
from millstream.protocol.record import Record
from millstream.storage.log import Log
from millstream.storage.reading import Slice

PARTITIONS = 4


def broker_in(folder: Path, **options: str) -> Broker:
    given = {name.replace("_", "."): value for name, value in options.items()}
    places = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "registry": "memory"}
    return Broker(BrokerConfig(places | given))


def add(partition: Partition, value: bytes = b"v") -> None:
    partition.append(encode_batch([Record(value, None, (), int(time.time() * 1000))]), 1, 9)


def request(
    broker: Broker, *, min_bytes: int = 1, max_bytes: int = 1 << 20, from_start: bool = False
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            FetchRequest.FetchTopic(
                topic="t",
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index,
                        fetch_offset=0 if from_start else broker.replicas.leader("t", index).log.end_offset,
                        partition_max_bytes=max_bytes,
                    )
                    for index in range(PARTITIONS)
                ],
            )
        ],
    )


def context(broker: Broker, *, is_local: bool = False, version: int = 11) -> Context:
    connection = Connection(broker.listeners["PLAINTEXT"])
    connection.is_local = is_local
    return Context(broker, connection, "PLAINTEXT", version, None)


async def ask(broker: Broker, req: FetchRequest, *, is_local: bool = False) -> FetchResponse:
    answer = fetch(context(broker, is_local=is_local), req)
    return answer if isinstance(answer, FetchResponse) else await answer


def test_an_answer_names_each_partition_once_also_if_its_time_runs_out_during_a_slow_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(7)
    is_cold = False
    read = Log.read

    def slow(self: Log, offset: int, max_bytes: int, *, nowait: bool = False, **options: Any) -> Slice:
        if is_cold and nowait:
            raise BlockingIOError
        if not nowait:
            time.sleep(random.uniform(0.005, 0.05))
        return read(self, offset, max_bytes, nowait=nowait, **options)

    monkeypatch.setattr(Log, "read", slow)

    async def main() -> None:
        nonlocal is_cold
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            for _ in range(12):
                is_cold = False
                waiting = asyncio.ensure_future(ask(broker, request(broker)))
                await asyncio.sleep(random.uniform(0.04, 0.098))
                is_cold = True
                for index in range(PARTITIONS):
                    add(broker.replicas.leader("t", index))
                response = await waiting
                told = [data.partition_index for topic in response.responses for data in topic.partitions]
                assert told == list(range(PARTITIONS))

    asyncio.run(main())


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_fetch_that_waits_holds_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    parks = asyncio.Event()
    park = fetch_handlers._Fetch._park

    def noted(self: Any, *found: Any) -> asyncio.Future[FetchResponse]:
        parks.set()
        return park(self, *found)

    monkeypatch.setattr(fetch_handlers._Fetch, "_park", noted)

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            for index in range(PARTITIONS):
                add(broker.replicas.leader("t", index), bytes(100_000))
            wanted = request(broker, min_bytes=1 << 30, max_bytes=1 << 30, from_start=True)
            if is_cold:
                monkeypatch.setattr(fetch_handlers, "MANY_PARTITIONS", PARTITIONS - 1)
            answer = fetch(context(broker), wanted)
            assert not isinstance(answer, FetchResponse)
            parked = asyncio.ensure_future(answer)
            await parks.wait()
            gc.collect()  # what other tests left
            held = [
                len(each.records)
                for each in gc.get_objects()
                if isinstance(each, FetchResponse.PartitionData) and each.records
            ]
            assert 100_000 not in [size // 1000 * 1000 for size in held]
            response = await parked
            assert sum(len(data.records or b"") for data in response.responses[0].partitions) > 400_000

    asyncio.run(main())


def test_fetches_that_wait_for_a_disk_together_hold_no_more_than_slow_readers_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, fetches = 200_000, 4
    read, abreast = Log.read, threading.Barrier(fetches, timeout=20)

    def cold(self: Log, offset: int, max_bytes: int, *, nowait: bool = False, **options: Any) -> Slice:
        if nowait:
            raise BlockingIOError
        abreast.wait()
        return read(self, offset, max_bytes, **options)

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path, max_unsent_bytes="1048576") as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            for index in range(PARTITIONS):
                add(broker.replicas.leader("t", index), bytes(size))
            wanted = request(broker, max_bytes=1 << 30, from_start=True)
            monkeypatch.setattr(Log, "read", cold)
            responses = await asyncio.gather(*(ask(broker, wanted) for _ in range(fetches)))
            sizes = [
                sum(len(data.records or b"") for topic in response.responses for data in topic.partitions)
                for response in responses
            ]
            assert min(sizes) > size  # a batch in any case
            assert sum(sizes) < 3 * fetches * size  # the limit, and what was being read when it was reached
            assert broker.cold_bytes == 0

    asyncio.run(main())


def test_a_fetch_answers_less_while_slow_readers_hold_too_much(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path, max_unsent_bytes="1048576") as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            for index in range(PARTITIONS):
                add(broker.replicas.leader("t", index), bytes(1000))

            async def told() -> list[bool]:
                (topic,) = (await ask(broker, request(broker, from_start=True))).responses
                return [bool(data.records) for data in topic.partitions]

            assert await told() == [True] * PARTITIONS
            broker.unsent.bytes += 1 << 20
            assert await told() == [True] + [False] * (PARTITIONS - 1)
            broker.unsent.bytes += (1 << 20) + 1
            assert await told() == [False] * PARTITIONS

    asyncio.run(main())


def test_answers_on_the_same_machine_are_short_unless_more_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path, fetch_local_bytes="1500") as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            for index in range(PARTITIONS):
                for _ in range(2):
                    add(broker.replicas.leader("t", index), bytes(1000))

            async def told(min_bytes: int, is_local: bool) -> list[bool]:
                wanted = request(broker, min_bytes=min_bytes, from_start=True)
                (topic,) = (await ask(broker, wanted, is_local=is_local)).responses
                assert all(data.high_watermark == 2 for data in topic.partitions)
                assert all(len(data.records or b"") in (0, 2 * 1070) for data in topic.partitions)
                return [bool(data.records) for data in topic.partitions]

            assert await told(1, is_local=False) == [True, True, True, True]
            assert await told(1, is_local=True) == [True, False, False, False]
            assert await told(4000, is_local=True) == [True, True, False, False]
            monkeypatch.setattr(fetch_handlers, "FEW_PARTITIONS", 2)
            assert await told(1, is_local=True) == [True, True, False, False]  # 3000 bytes of four partitions

    asyncio.run(main())


@pytest.mark.parametrize(("partitions", "record_bytes", "is_given"), [(400, 4000, True), (30_000, 0, False)])
def test_records_that_were_read_while_there_was_room_are_sent_however_small_they_are(
    tmp_path: Path, partitions: int, record_bytes: int, is_given: bool
) -> None:
    """Others may have taken the room since. What is not records is looked at when it is sent."""
    listed = [
        FetchResponse.PartitionData(partition_index=index, high_watermark=1, records=bytes(record_bytes))
        for index in range(partitions)
    ]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=listed)])

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path, max_unsent_bytes="1048576") as broker:
            connection = Connection(broker.listeners["PLAINTEXT"])
            route = broker.router.routes[FetchRequest.key]
            broker.unsent.bytes += 1 << 20
            with nullcontext() if is_given else pytest.raises(ProtocolError, match="large answer"):
                chunks = broker.router._framed(connection, route, 1, response, 11)
                assert sum(map(len, chunks)) > partitions * record_bytes

    asyncio.run(main())


def test_more_bytes_than_may_be_answered_are_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            add(broker.replicas.leader("t", 0), bytes(5000))
            wanted = request(broker, min_bytes=1 << 30, max_bytes=4000, from_start=True)
            wanted.max_wait_ms = 600_000
            (topic,) = (await ask(broker, wanted)).responses
            assert topic.partitions[0].records

    asyncio.run(main())


def test_a_fetch_of_very_many_partitions_gives_others_their_turn_and_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "TURN_SECONDS", 0)

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            for index in range(PARTITIONS):
                add(broker.replicas.leader("t", index), b"%d" % index)
            wanted = request(broker, from_start=True)
            at_once = await ask(broker, wanted)
            monkeypatch.setattr(fetch_handlers, "MANY_PARTITIONS", PARTITIONS - 1)
            later = fetch(context(broker), wanted)
            assert not isinstance(later, FetchResponse)
            assert (await later).responses == at_once.responses
            # One that waits is woken too, and what came is in its answer.
            waiting = asyncio.ensure_future(ask(broker, request(broker)))
            for _ in range(20):
                await asyncio.sleep(0)
            add(broker.replicas.leader("t", 2), b"new")
            (topic,) = (await waiting).responses
            assert [bool(data.records) for data in topic.partitions] == [False, False, True, False]
            # And one for which nothing comes ends with its time.
            (topic,) = (await ask(broker, request(broker))).responses
            assert [bool(data.records) for data in topic.partitions] == [False] * PARTITIONS
            assert broker.cold_bytes == 0

    asyncio.run(main())


def test_a_partition_that_serves_no_more_keeps_nothing_of_who_asked(tmp_path: Path) -> None:
    """An error that is raised again and again would hold every frame that it came through."""

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            wanted = request(broker, from_start=True)
            failed, resigned = (broker.replicas.leader("t", index) for index in range(2))
            failed.fail(KafkaStorageError("its disk is gone"))
            resigned.resign()
            for _ in range(3):
                (topic,) = (await ask(broker, wanted)).responses
                codes = [data.error_code for data in topic.partitions[:2]]
                assert codes == [KafkaStorageError.code, NotLeaderOrFollower.code]
                for partition in (failed, resigned):
                    with pytest.raises(KafkaError):
                        add(partition)
                    with pytest.raises(KafkaError):
                        broker.replicas.leader("t", partition.name.partition)
            for kept in (failed.failure, failed.refusal, resigned.refusal):
                assert kept is not None
                assert kept.__traceback__ is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "error"),
    [(4, NotLeaderOrFollower), (5, NotLeaderOrFollower), (6, KafkaStorageError), (12, KafkaStorageError)],
)
def test_a_disk_that_fails_is_told_in_words_that_the_clients_version_knows(
    tmp_path: Path, version: int, error: type[KafkaError]
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await broker.controller.create_topic(NewTopic("t", PARTITIONS, 1))
            wanted = request(broker, from_start=True)
            broker.replicas.leader("t", 0).fail(KafkaStorageError("its disk is gone"))
            response = fetch(context(broker, version=version), wanted)
            assert isinstance(response, FetchResponse)
            codes = [data.error_code for data in response.responses[0].partitions]
            assert codes == [error.code] + [0] * (PARTITIONS - 1)
            assert broker.metrics.fetch_errors.labels("KafkaStorageError").value == 1

    asyncio.run(main())
