"""What one partition, or a group, waits for does not hold up the records of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from millstream.client.cluster import Cluster as Client
from millstream.client.consumer import AsyncConsumer
from millstream.client.coordinators import with_coordinator
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.errors import NotLeaderOrFollower
from millstream.model import TopicPartition
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocol.schema import Request
from tests.client.consuming import fill, new_topic, numbered, read
from tests.client.fault_proxy import Fault, FaultProxy
from tests.client.scripted import Answer, all_versions, scripted_broker
from tests.client.test_consumer_scripted import TOPIC, TOPIC_ID, batch
from tests.controller.cluster import Cluster


@pytest.mark.parametrize("group", [None, "g"])
def test_a_partition_without_a_leader(tmp_path: Path, group: str | None) -> None:
    """Where it begins cannot be asked for; others begin all the same, and it begins when it is led again."""

    async def main() -> None:
        async with Cluster(tmp_path, count=2, config={"offsets.topic.replication.factor": "1"}) as cluster:
            await cluster.until_controller()
            await cluster.create("t", assignment={0: [1], 1: [2]})
            ports = {number: broker.port for number, broker in cluster.brokers.items()}
            address = f"127.0.0.1:{ports[1]}"
            for partition in (0, 1):
                await fill(address, "t", partition, numbered(10))
            await cluster.stop(2)
            await cluster.until(lambda: cluster.states("t")[1].leader == -1)
            async with AsyncConsumer(address, group=group, offset_reset="earliest") as consumer:
                consumer.assign([("t", 0), ("t", 1)])
                assert {record.partition for record in await read(consumer, 10)} == {0}
                await cluster.start(2, {"listeners": f"PLAINTEXT://127.0.0.1:{ports[2]}"})
                assert {record.partition for record in await read(consumer, 10)} == {1}

    uvloop.run(asyncio.wait_for(main(), 60))


async def join(client: Client, group: str, topic: str, member_id: str = "") -> JoinGroupResponse:
    """Join as a member that asks for a topic and will not be heard of again."""
    metadata = b"\0\0" + (1).to_bytes(4, "big") + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff" * 4
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=120_000,
        rebalance_timeout_ms=120_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative-sticky", metadata=metadata)],
    )

    async def attempt(node_id: int) -> JoinGroupResponse:
        return await client.request(node_id, request, JoinGroupResponse, Deadline(30_000))

    return await with_coordinator(client, group, attempt, Deadline(30_000))


def test_positions_are_found_while_the_group_waits_for_a_member(either_bootstrap: str) -> None:
    """A cooperative member reads on during a rebalance, however long that takes."""

    async def main() -> None:
        topic, other = await new_topic(either_bootstrap), await new_topic(either_bootstrap)
        group = f"waiting-{topic}"
        await fill(either_bootstrap, topic, 0, numbered(10))
        consumer = AsyncConsumer(
            either_bootstrap,
            group=group,
            offset_reset="earliest",
            auto_commit=False,
            heartbeat_interval_ms=50,
        )
        async with consumer, Client(either_bootstrap) as client:
            consumer.subscribe(topic)
            await read(consumer, 10)
            await consumer.commit({TopicPartition(topic, 0): 7})
            member_id = (await join(client, group, topic)).member_id
            joining = asyncio.ensure_future(join(client, group, topic, member_id))
            while not joining.done():
                await consumer.poll(timeout=0.05)
            raise_for(joining.result().error_code, None, group)
            consumer.subscribe([topic, other])  # for which all join again, but the other does not
            await consumer.poll(timeout=0.5)
            consumer.seek_to_committed()
            assert [record.offset for record in await read(consumer, 3)] == [7, 8, 9]

    uvloop.run(asyncio.wait_for(main(), 60))


def test_a_commit_that_overtakes_the_news_of_a_generation(either_bootstrap: str) -> None:
    """It goes another way than JoinGroup, whose answer names the generation that the commit lacks."""

    async def main(proxy: FaultProxy) -> None:
        topic = await new_topic(either_bootstrap)
        here, group = TopicPartition(topic, 0), f"overtaken-{topic}"
        await fill(either_bootstrap, topic, 0, numbered(10))
        consumer = AsyncConsumer(
            proxy.bootstrap, group=group, offset_reset="earliest", auto_commit=False, heartbeat_interval_ms=50
        )
        async with consumer, Client(either_bootstrap) as client:
            consumer.subscribe(topic)
            await read(consumer, 10)
            before = consumer.group_metadata
            proxy.decide = lambda key: Fault.DELAY if key == JoinGroupRequest.key else Fault.NONE
            member_id = (await join(client, group, topic)).member_id
            raise_for((await join(client, group, topic, member_id)).error_code, None, group)
            assert consumer.group_metadata == before, "the answer came too soon"
            await consumer.commit(timeout=30)
            assert consumer.group_metadata.generation_id == before.generation_id + 1
            assert (await consumer.committed())[here].offset == 10

    host, _, port = either_bootstrap.rpartition(":")
    with FaultProxy(host, int(port)) as proxy:
        proxy.delay_s = 1.0
        uvloop.run(asyncio.wait_for(main(proxy), 60))


class OnePartitionFails:
    """A broker with two partitions, of which it cannot give the second; of leaders it tells only once."""

    def __init__(self) -> None:
        self.port = 0
        self.told = 0

    async def answer(self, _: RequestHeader, request: Request) -> Answer:
        if isinstance(request, MetadataRequest):
            self.told += 1
            return self._metadata() if self.told == 1 else None
        if isinstance(request, FetchRequest):
            asked = [(part.partition, part.fetch_offset) for part in request.topics[0].partitions]
            parts = [
                FetchResponse.PartitionData(
                    partition_index=index,
                    error_code=NotLeaderOrFollower.code if index else 0,
                    high_watermark=1000,
                    records=None if index else batch(offset, 5),
                )
                for index, offset in asked
            ]
            topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=parts)
            return FetchResponse(responses=[topic])
        return all_versions()

    def _metadata(self) -> MetadataResponse:
        node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        parts = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
            )
            for index in range(2)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=parts)
        return MetadataResponse(brokers=[node], topics=[topic], cluster_id="c", controller_id=1)


def test_partitions_are_read_while_it_is_asked_who_leads_another() -> None:
    async def main() -> None:
        script = OnePartitionFails()
        async with scripted_broker(script.answer) as broker:
            script.port = broker.port
            async with AsyncConsumer(f"127.0.0.1:{broker.port}", fetch_max_wait_ms=50) as consumer:
                consumer.assign([(TOPIC, 0), (TOPIC, 1)])
                consumer.seek((TOPIC, 0), 0)
                consumer.seek((TOPIC, 1), 0)
                while script.told < 2:
                    await consumer.poll(timeout=0.1)
                assert {record.partition for record in await read(consumer, 100)} == {0}

    asyncio.run(asyncio.wait_for(main(), 25))
