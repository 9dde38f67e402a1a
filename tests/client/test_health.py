"""What metadata shows to be wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster
from millstream.client.health import Health, ask_brokers, current_metadata, examine, judge
from millstream.client.metadata import Metadata, Node, Partition, Topic
from millstream.deadline import Deadline
from millstream.errors import ClusterAuthorizationFailed, KafkaStorageError
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.frame import RequestHeader
from millstream.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocol.schema import Request
from tests.client.scripted import Answer, Script, ScriptedBroker, all_versions, scripted_broker
from tests.cluster.brokers import Brokers, run, until


def metadata(*partitions: Partition, nodes: tuple[int, ...] = (1, 2, 3), controller: int = 1) -> Metadata:
    topic = Topic("t", NO_UUID, False, {partition.index: partition for partition in partitions})
    return Metadata("id", controller, {n: Node(n, "localhost", 9092 + n) for n in nodes}, {"t": topic})


FINE = Partition(0, 1, 0, (1, 2, 3), (1, 2, 3))
KEY = TopicPartition("t", 0)


def test_a_whole_cluster_is_healthy() -> None:
    found = judge(metadata(FINE), {"t": 2})
    assert found.is_healthy
    assert found.summary == "healthy: 3 brokers, 1 partition"


def test_each_lack_is_named() -> None:
    shrunk = judge(metadata(Partition(0, 1, 0, (1, 2, 3), (1, 2))), {"t": 2})
    assert (list(shrunk.under_replicated), list(shrunk.under_min_isr), list(shrunk.offline)) == (
        [KEY],
        [],
        [],
    )
    refusing = judge(metadata(Partition(0, 1, 0, (1, 2, 3), (1,))), {"t": 2})
    assert (list(refusing.under_replicated), list(refusing.under_min_isr)) == ([KEY], [KEY])
    leaderless = judge(metadata(Partition(0, -1, 0, (1, 2, 3), (1,))), {"t": 1})
    assert list(leaderless.offline) == [KEY]
    for found in (shrunk, refusing, leaderless):
        assert not found.is_healthy
    assert leaderless.summary == "unhealthy: 1 offline; 1 under-replicated (of 1 partition)"


def test_a_broker_that_is_away_counts_before_the_controller_has_said_so() -> None:
    found = judge(metadata(FINE, nodes=(1, 2)), {"t": 3})
    assert found.missing_brokers == [3]
    assert list(found.under_replicated) == list(found.under_min_isr) == [KEY]
    assert found.offline == {}
    assert list(judge(metadata(FINE, nodes=(2, 3)), {}).offline) == [KEY]


def test_no_more_replicas_are_asked_for_than_there_are() -> None:
    """As the brokers take it, and Kafka's UnderMinIsr: min.insync.replicas beyond the replicas means all."""
    assert judge(metadata(Partition(0, 1, 0, (1,), (1,))), {"t": 2}).is_healthy
    assert judge(metadata(Partition(0, 1, 0, (1, 2), (1, 2))), {"t": 3}).is_healthy
    assert list(judge(metadata(Partition(0, 1, 0, (1, 2), (1,))), {"t": 3}).under_min_isr) == [KEY]


def test_a_broker_to_which_a_partition_is_being_moved_is_not_missed_yet() -> None:
    """As Kafka counts: a move is no lack, but what the partition had before must be in sync."""
    moving = metadata(Partition(0, 1, 0, (1, 3, 2), (1, 2)))
    assert list(judge(moving, {}).under_replicated) == [KEY]
    assert judge(moving, {}, adding={KEY: (3,)}).is_healthy
    lagging = metadata(Partition(0, 1, 0, (1, 3, 2), (1,)))
    assert list(judge(lagging, {}, adding={KEY: (3,)}).under_replicated) == [KEY]
    away = judge(metadata(Partition(0, 1, 0, (1, 3, 2), (1, 2)), nodes=(1, 3)), {}, adding={KEY: (3,)})
    assert (away.missing_brokers, list(away.under_replicated)) == ([2], [KEY])


def test_a_controller_that_does_not_tell_of_moves_leaves_the_rest_to_be_judged() -> None:
    """It refuses, does not know the API, or is silent: a partition that lacks replicas is named then."""
    refusing = ListPartitionReassignmentsResponse(error_code=ClusterAuthorizationFailed.code, topics=[])

    async def main(answer: Answer, served: ApiVersionsResponse) -> Health:
        async def script(_: RequestHeader, request: Request) -> Answer:
            if isinstance(request, ApiVersionsRequest):
                return served
            if isinstance(request, MetadataRequest):
                return described(broker.port)
            if isinstance(request, DescribeLogDirsRequest):
                return DescribeLogDirsResponse(results=[])
            if isinstance(request, DescribeConfigsRequest):
                return DescribeConfigsResponse(results=[])
            assert isinstance(request, ListPartitionReassignmentsRequest)
            return answer

        async with scripted_broker(script) as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            return await examine(cluster, Deadline(60_000))

    def described(port: int) -> MetadataResponse:
        part = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=[1, 2], isr_nodes=[1]
        )
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)],
            controller_id=1,
            topics=[MetadataResponse.MetadataResponseTopic(name="t", topic_id=NO_UUID, partitions=[part])],
        )

    old = all_versions()
    old.api_keys = [api for api in old.api_keys if api.api_key != ListPartitionReassignmentsRequest.key]
    for answer, served in ((refusing, all_versions()), (None, all_versions()), (None, old)):
        found = asyncio.run(main(answer, served))
        assert (list(found.under_replicated), found.unresponsive_brokers) == ([KEY], [])


def test_no_controller_is_no_health() -> None:
    found = judge(metadata(FINE, controller=-1), {})
    assert not found.is_healthy
    assert "no controller" in found.summary


def test_log_dirs_that_are_full_or_failed_and_damaged_records_are_no_health() -> None:
    described = DescribeLogDirsResponse.DescribeLogDirsResult
    fine = described(log_dir="/a", topics=[])
    failed = described(log_dir="/b", topics=[], error_code=KafkaStorageError.code)
    full = described(log_dir="/c", topics=[], is_full=True)
    bad = DescribeLogDirsResponse.DamagedTopic(name="t", partitions=[0])
    damaged = described(log_dir="/d", topics=[], damaged=[bad])
    assert judge(metadata(FINE), {}, {1: [fine], 2: [fine]}).is_healthy
    found = judge(metadata(FINE), {}, {1: [fine, failed], 2: [full, damaged], 3: [damaged]})
    assert not found.is_healthy
    assert (found.failed_dirs, found.full_dirs, found.damaged) == ({1: ["/b"]}, {2: ["/c"]}, {KEY: [2, 3]})
    assert found.summary == (
        "unhealthy: 1 with damaged records; log dir /b of broker 1 has failed; "
        "log dir /c of broker 2 is full (of 1 partition)"
    )


def test_a_broker_that_does_not_answer_is_no_health() -> None:
    """It may lead, and nobody elects another while its session with the registry lives."""
    found = judge(metadata(FINE), {}, {}, [1, 3])
    assert not found.is_healthy
    assert found.unresponsive_brokers == [1, 3]
    assert found.summary == "unhealthy: brokers that do not answer: 1, 3 (of 1 partition)"


def test_a_broker_that_is_cut_off_from_the_others_is_not_believed(tmp_path: Path) -> None:
    """What it was told last may be long ago; the controller knows what is so now."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t", partitions=3, min_insync_replicas="2")
        await brokers.send("t", b"v")
        controller = brokers.controller.config.node_id
        deaf, gone = (number for number in brokers.ids if number != controller)
        await brokers[deaf].cluster_state.stop()  # it hears no more news of the controller
        await brokers.stop(gone)
        await brokers.start(4)
        await until(lambda: set(brokers.controller.metadata.brokers) == {controller, deaf, 4})
        await brokers.create("new", partitions=1, replicas=1, min_insync_replicas="1")
        for number in (controller, deaf):
            async with Cluster(f"127.0.0.1:{brokers[number].port}") as cluster:
                found = await examine(cluster, Deadline(20_000))
                assert (found.controller, found.brokers, found.missing_brokers) == (
                    controller,
                    sorted((controller, deaf, 4)),
                    [gone],
                )
                assert (found.partitions, len(found.under_replicated)) == (4, 3)
                metadata, _ = await current_metadata(cluster, Deadline(20_000))
                dirs, silent, _ = await ask_brokers(cluster, metadata, Deadline(20_000))
                assert (sorted(dirs), silent) == (found.brokers, [])

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ((0, 0, 0), {0}),
        ((1, 1, 1), {1}),
        ((1, 2, 2), {2}),  # who was the controller knows who is now
        ((-1, 2, 2), {2}),  # it cannot reach the registry, and others can
        ((1, -1, 2), {2}),
        ((-1, -1, -1), {0, 1, 2}),
        ((1, 2, 0), {0}),  # each says another
        ((1, None, 2), {0}),  # it does not answer
        ((-1, None, 2), {2}),
    ],
)
def test_who_is_said_to_be_the_controller_is_asked(told: Sequence[int | None], asked: set[int]) -> None:
    """`told`: who each broker says is the controller; `asked`: whose word on topics is taken."""

    async def main() -> Metadata:
        brokers: list[ScriptedBroker] = []

        def describing(number: int) -> Script:
            async def script(_: RequestHeader, request: Request) -> Answer:
                if isinstance(request, ApiVersionsRequest):
                    return all_versions()
                controller = told[number]
                if controller is None:
                    return None
                assert isinstance(request, MetadataRequest)
                topic = MetadataResponse.MetadataResponseTopic(name=f"of-{number}", partitions=[])
                return MetadataResponse(
                    brokers=[
                        MetadataResponse.MetadataResponseBroker(node_id=id_, host="127.0.0.1", port=each.port)
                        for id_, each in enumerate(brokers)
                    ],
                    controller_id=controller,
                    topics=[] if request.topics == [] else [topic],
                )

            return script

        async with AsyncExitStack() as stack:
            for script in map(describing, range(3)):
                broker = await stack.enter_async_context(scripted_broker(script))
                brokers.append(broker)
            async with Cluster(f"127.0.0.1:{brokers[0].port}") as cluster:
                cluster.doubt = lambda: None  # type: ignore[method-assign]
                found, told_by = await current_metadata(cluster, Deadline(30_000))
                assert told_by in {*asked, None}
                return found

    (topic,) = asyncio.run(main()).topics
    assert topic in {f"of-{number}" for number in asked}
