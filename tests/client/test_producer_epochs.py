"""What a producer does when a broker's idea of its sequence is not its own (KIP-360)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.client.batch_builder import Batch
from millstream.client.producer import AsyncProducer
from millstream.client.producer_line import MAX_EPOCH, Line
from millstream.errors import (
    ClusterAuthorizationFailed,
    InvalidRecord,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    UnknownProducerId,
)
from millstream.protocol.batch import BatchHeader, decode_records, read_header
from millstream.protocol.client_kernel import BatchBuilder
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    ApiVersionsRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from millstream.protocol.schema import Request
from tests.client.scripted import Answer, all_versions, scripted_broker

TOPIC = "t"


def numbered(number: int) -> bytes:
    """A value so large that, without room for more, it has a batch of its own."""
    return b"%0100d" % number


@dataclass
class Leader:
    """A broker with one partition; `judge` says with which error it refuses a batch, 0 for none."""

    judge: Callable[[BatchHeader], int] = lambda _: 0
    port: int = 0
    first_epoch: int = 0
    init_error: int = 0
    leader_id: int = 1
    other_port: int | None = None
    """Where broker 2 is told to be."""
    hold: Callable[[], Awaitable[object]] | None = None
    """What comes before the answer to each request for records."""
    ids_given: int = 0
    next_leader: ProduceResponse.NodeEndpoint | None = None
    tried: list[tuple[int, int, int]] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)

    async def answer(self, _: RequestHeader, request: Request) -> Answer:
        if isinstance(request, ApiVersionsRequest):
            return all_versions()
        if isinstance(request, MetadataRequest):
            return self.metadata()
        if isinstance(request, InitProducerIdRequest):
            self.ids_given += 1
            return InitProducerIdResponse(
                producer_id=6 + self.ids_given, producer_epoch=self.first_epoch, error_code=self.init_error
            )
        assert isinstance(request, ProduceRequest)
        if self.hold is not None:
            await self.hold()
        records = request.topic_data[0].partition_data[0].records
        assert records is not None
        header = read_header(records)
        self.tried.append((header.producer_id, header.producer_epoch, header.base_sequence))
        code = self.judge(header)
        base = len(self.written)
        if not code:
            self.written += [record.value or b"" for record in decode_records(records)]
        part = ProduceResponse.PartitionProduceResponse(index=0, error_code=code, base_offset=base)
        topic = ProduceResponse.TopicProduceResponse(name=TOPIC, partition_responses=[part])
        topic.topic_id = request.topic_data[0].topic_id
        answer = ProduceResponse(responses=[topic])
        if code and self.next_leader is not None:
            part.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=2)
            answer.node_endpoints = [self.next_leader]
        return answer

    def metadata(self) -> MetadataResponse:
        node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        part = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=self.leader_id, leader_epoch=1, replica_nodes=[1], isr_nodes=[1]
        )
        topic = MetadataResponse.MetadataResponseTopic(name=TOPIC, partitions=[part])
        nodes = [node]
        if self.other_port is not None:
            nodes.append(
                MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=self.other_port)
            )
        return MetadataResponse(brokers=nodes, topics=[topic], cluster_id="c", controller_id=1)


@asynccontextmanager
async def producing_to(leader: Leader, **options: Any) -> Any:
    async with scripted_broker(leader.answer) as broker:
        leader.port = broker.port
        options = {"linger_ms": 0, "retry_backoff_ms": 5, **options}
        async with AsyncProducer(f"127.0.0.1:{broker.port}", **options) as producer:
            yield producer


def in_sequence(leader: Leader) -> Callable[[BatchHeader], int]:
    """A judge that is as strict as a broker that knows the producer."""
    state = {"epoch": -1, "next": 0}

    def judge(header: BatchHeader) -> int:
        if header.producer_epoch > state["epoch"]:
            state["epoch"], state["next"] = header.producer_epoch, 0
        if header.base_sequence != state["next"]:
            return OutOfOrderSequenceNumber.code
        state["next"] += header.count
        return 0

    return judge


@pytest.mark.parametrize("error", [OutOfOrderSequenceNumber, UnknownProducerId])
def test_a_broker_that_lost_the_producer_gets_a_higher_epoch(error: Any) -> None:
    async def main() -> None:
        leader = Leader()
        async with producing_to(leader) as producer:
            assert (await producer.send(TOPIC, b"one")).offset == 0
            leader.judge = lambda header: error.code if header.producer_epoch == 0 else 0
            assert (await producer.send(TOPIC, b"two")).offset == 1
            assert (await producer.send(TOPIC, b"three")).offset == 2
        assert leader.tried == [(7, 0, 0), (7, 0, 1), (7, 1, 0), (7, 1, 1)]
        assert leader.written == [b"one", b"two", b"three"]
        assert leader.ids_given == 1, "the epoch is raised, the id is kept"

    asyncio.run(main())


def test_a_batch_behind_one_that_waits_is_only_sent_again() -> None:
    """Out of order because the one before was refused for a while: no new epoch, the same sequences."""

    async def main() -> None:
        leader = Leader()
        leader.judge = in_sequence(leader)
        async with producing_to(leader, batch_bytes=0) as producer:
            await producer.send(TOPIC, numbered(0))
            strict, refusals = leader.judge, iter([True])
            leader.judge = lambda header: (
                NotLeaderOrFollower.code if next(refusals, False) else strict(header)
            )
            deliveries = [producer.send(TOPIC, numbered(number)) for number in range(1, 6)]
            assert [(await each).offset for each in deliveries] == [1, 2, 3, 4, 5]
        assert leader.written == [numbered(number) for number in range(6)]
        assert {epoch for _, epoch, _ in leader.tried} == {0}
        assert len(leader.tried) > 6

    asyncio.run(main())


def test_what_a_broker_refuses_for_good_leaves_no_gap() -> None:
    async def main() -> None:
        leader = Leader()
        strict = in_sequence(leader)
        async with producing_to(leader, batch_bytes=0) as producer:
            leader.judge = strict
            await producer.send(TOPIC, numbered(0))
            bad = iter([False, True])
            leader.judge = lambda header: InvalidRecord.code if next(bad, False) else strict(header)
            deliveries = [producer.send(TOPIC, numbered(number)) for number in range(1, 6)]
            results = await asyncio.gather(*deliveries, return_exceptions=True)
        assert [isinstance(each, InvalidRecord) for each in results] == [False, True, False, False, False]
        assert leader.written == [numbered(number) for number in (0, 1, 3, 4, 5)]
        assert max(epoch for _, epoch, _ in leader.tried) == 1

    asyncio.run(main())


def test_another_id_when_no_epoch_is_left() -> None:
    async def main() -> None:
        leader = Leader(first_epoch=MAX_EPOCH)
        async with producing_to(leader) as producer:
            await producer.send(TOPIC, b"one")
            leader.judge = lambda header: OutOfOrderSequenceNumber.code if header.producer_id == 7 else 0
            assert (await producer.send(TOPIC, b"two")).offset == 1
        assert leader.tried == [(7, MAX_EPOCH, 0), (7, MAX_EPOCH, 1), (8, MAX_EPOCH, 0)]

    asyncio.run(main())


def test_a_producer_that_gets_no_id_says_why() -> None:
    async def main() -> None:
        leader = Leader(init_error=ClusterAuthorizationFailed.code)
        async with producing_to(leader) as producer:
            with pytest.raises(ClusterAuthorizationFailed):
                await producer.send(TOPIC, b"one")

    asyncio.run(main())


def test_the_first_batch_of_an_epoch_goes_alone() -> None:
    """A broker that does not know the producer takes any sequence: the second must not come first."""

    async def main() -> None:
        leader = Leader()
        refusals = iter([True, True])
        leader.judge = lambda _: NotLeaderOrFollower.code if next(refusals, False) else 0
        async with producing_to(leader, batch_bytes=0) as producer:
            deliveries = [producer.send(TOPIC, numbered(number)) for number in range(5)]
            assert [(await each).offset for each in deliveries] == [0, 1, 2, 3, 4]
        assert leader.tried[:3] == [(7, 0, 0)] * 3
        assert leader.written == [numbered(number) for number in range(5)]

    asyncio.run(main())


def test_a_leader_that_an_answer_names_is_asked_at_once() -> None:
    """KIP-951: neither a pause nor a question for metadata comes between."""

    async def main() -> None:
        old, new = Leader(), Leader()
        async with (
            scripted_broker(new.answer) as other,
            producing_to(old, retry_backoff_ms=60_000) as producer,
        ):
            new.port = other.port
            await producer.send(TOPIC, b"one")
            old.judge = lambda _: NotLeaderOrFollower.code
            old.next_leader = ProduceResponse.NodeEndpoint(node_id=2, host="127.0.0.1", port=other.port)
            await asyncio.wait_for(producer.send(TOPIC, b"two"), 5)
            await asyncio.wait_for(producer.send(TOPIC, b"three"), 5)
        assert (old.written, new.written) == ([b"one"], [b"two", b"three"])
        assert new.tried == [(7, 0, 1), (7, 0, 2)], "with the sequence that it had"

    asyncio.run(main())


def test_retries_can_be_limited() -> None:
    async def main() -> None:
        leader = Leader(judge=lambda _: NotLeaderOrFollower.code)
        async with producing_to(leader, retries=2) as producer:
            with pytest.raises(NotLeaderOrFollower):
                await producer.send(TOPIC, b"one")
        assert len(leader.tried) == 3

    asyncio.run(main())


def test_a_new_transaction_has_its_epoch_though_what_timed_out_before_is_still_on_its_way() -> None:
    line = Line(TOPIC, 0)
    old, new = (Batch(TOPIC, 0, float(number), BatchBuilder(1000), 1000, 0.0) for number in range(2))
    for batch in (old, new):
        batch.count = 3
    line.number(old, 7, 4, is_transactional=True)
    line.in_flight.append(old)
    old.failed(RequestTimedOut("its time was up before its request's was"))
    line.number(new, 7, 5, is_transactional=True)
    assert (new.producer_epoch, new.base_sequence) == (5, 0)
