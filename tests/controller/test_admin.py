"""What admin clients ask, of any broker: through sockets, over three brokers in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from millstream.broker.controller_link import PASSING, ControllerLink
from millstream.broker.server import PEER_LISTENER, Broker
from millstream.client.connection import Connection, connect
from millstream.deadline import Deadline
from millstream.errors import (
    ElectionNotNeeded,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
    NetworkException,
    NoReassignmentInProgress,
    NotController,
    NotLeaderOrFollower,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID
from millstream.protocol.messages import (
    INTERNAL_REQUESTS,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    ClusterStateRequest,
    ClusterStateResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocol.schema import Request, Response
from tests.controller.cluster import Cluster
from tests.storage.logs import batch

Test = Callable[[Cluster], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]
R = TypeVar("R", bound=Response)

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(test: Test) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
                await test(cluster)

        asyncio.run(main())

    return start


async def connected(broker: Broker, listener: str = "PLAINTEXT") -> Connection:
    port = broker.listeners[listener].port
    return await connect("127.0.0.1", port, deadline=Deadline(5000), client_id="test")


async def ask(broker: Broker, request: Request, answer: type[R], version: int | None = None) -> R:
    connection = await connected(broker)
    try:
        return await connection.request(request, answer, 10_000, max_version=version)
    finally:
        await connection.close()


def test_every_broker_tells_who_is_there(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 3)
        controller = cluster.controller.config.node_id
        seen = []
        for broker in cluster.brokers.values():
            described = await ask(
                broker,
                DescribeClusterRequest(include_cluster_authorized_operations=False),
                DescribeClusterResponse,
            )
            wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
            metadata = await ask(broker, wanted, MetadataResponse)
            assert described.controller_id == metadata.controller_id == controller
            ports = {each.broker_id: each.port for each in described.brokers}
            assert ports == {each.node_id: each.port for each in metadata.brokers}
            assert ports == {id_: each.port for id_, each in cluster.brokers.items()}
            seen.append(metadata.topics)
        assert seen[0] == seen[1] == seen[2]
        gone = cluster.follower.config.node_id
        await cluster.stop(gone)
        after = await ask(cluster.controller, wanted, MetadataResponse)
        for partition in after.topics[0].partitions:
            assert partition.offline_replicas == [gone]
            assert partition.error_code == 0
            assert partition.leader_id != gone

    run(test)


def test_topics_are_made_through_any_broker_that_is_asked_for_them(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="auto")])
        made = await ask(cluster.follower, wanted, MetadataResponse)
        assert [topic.error_code for topic in made.topics] == [0]
        assert len(made.topics[0].partitions) == 1
        asked = CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=3)]
        )
        created = await ask(cluster.follower, asked, CreateTopicsResponse)
        assert [topic.error_code for topic in created.topics] == [0]
        assert "t" in cluster.follower.metadata.topics
        again = await ask(cluster.controller, asked, CreateTopicsResponse)
        assert [topic.error_code for topic in again.topics] == [TopicAlreadyExists.code]

    run(test)


def test_a_topic_that_was_made_is_known_to_the_broker_that_says_so(run: Run) -> None:
    """Also if it loses its session, and with it the office, between the decision and the answer."""

    async def test(cluster: Cluster) -> None:
        controller = cluster.controller
        applying, apply, may_apply = asyncio.Event(), controller.cluster_state._apply, asyncio.Event()

        async def apply_later(response: ClusterStateResponse) -> None:
            applying.set()
            await may_apply.wait()
            await apply(response)

        controller.cluster_state._apply = apply_later  # type: ignore[method-assign]
        asked = CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        )
        creation = asyncio.create_task(ask(controller, asked, CreateTopicsResponse))
        await cluster.until(lambda: "t" in controller.controller.term.picture.topics)
        cluster.lose(controller.config.node_id)
        await asyncio.sleep(0.3)
        assert not creation.done()
        may_apply.set()
        assert [topic.error_code for topic in (await creation).topics] == [0]
        assert "t" in controller.metadata.topics

    run(test)


def test_a_broker_that_is_not_the_controller_knows_nothing_of_a_topics_absence(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        for name in ("t", "u", "v"):
            await cluster.create(name)
        follower = cluster.follower
        state = DeleteTopicsRequest.DeleteTopicState
        for request, version in (
            (DeleteTopicsRequest(topics=[state(name="u", topic_id=NO_UUID)], timeout_ms=1000), 6),
            (DeleteTopicsRequest(topic_names=["v"], timeout_ms=1000), 5),
        ):
            follower.metadata.remove("u" if version == 6 else "v")  # as if it had not heard of it yet
            deleted = await ask(follower, request, DeleteTopicsResponse, version)
            assert [topic.error_code for topic in deleted.responses] == [0]
        assert set(cluster.controller.metadata.topics) == {"t"}
        controller = cluster.controller
        topic = controller.metadata.topic("t")
        controller.metadata.remove("t")
        wanted = DeleteTopicsRequest.DeleteTopicState(topic_id=topic.topic_id)
        by_id = DeleteTopicsRequest(topics=[wanted], timeout_ms=1000)
        deleted = await ask(controller, by_id, DeleteTopicsResponse)
        assert [(each.error_code, each.name) for each in deleted.responses] == [(0, "t")]
        by_name = DeleteTopicsRequest(topics=[state(name="t", topic_id=NO_UUID)], timeout_ms=1000)
        for request, code in ((by_name, UnknownTopicOrPartition.code), (by_id, UnknownTopicId.code)):
            again = await ask(controller, request, DeleteTopicsResponse)
            assert [each.error_code for each in again.responses] == [code]

    run(test)


def test_what_is_for_the_controller_waits_for_the_next_one(run: Run) -> None:
    """Clients that ask the broker which they take for the controller are served by it at any time."""

    async def test(cluster: Cluster) -> None:
        follower = cluster.follower
        await cluster.stop(cluster.controller.config.node_id)
        asked = CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=2)]
        )
        created = await ask(follower, asked, CreateTopicsResponse)
        assert [topic.error_code for topic in created.topics] == [0]

    run(test)


def test_without_a_controller_clients_are_told_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.broker.controller_link.PATIENCE_MS", 300.0)

    def no_controller(_: ControllerLink) -> int:
        raise NotController

    async def test(cluster: Cluster) -> None:
        follower = cluster.follower
        monkeypatch.setattr(ControllerLink, "_controller_id", property(no_controller))
        asked = CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        )
        refused = await ask(follower, asked, CreateTopicsResponse)
        assert [topic.error_code for topic in refused.topics] == [NotController.code]
        elect = ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]
        )
        for version in (0, 2):
            away = await ask(follower, elect, ElectLeadersResponse, version)
            codes = [
                one.error_code for each in away.replica_election_results for one in each.partition_result
            ]
            assert (codes or [away.error_code]) == [NotController.code]

    run(test)


def test_of_elections_the_controller_did_not_answer_every_version_can_tell(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: Cluster) -> None:
        broker = cluster.follower
        await cluster.create("t", partitions=2)
        await cluster.until(lambda: "t" in broker.metadata.topics)

        async def lost(*_: object) -> NoReturn:
            raise NetworkException("the connection is closed")

        monkeypatch.setattr(broker.peers, "request", lost)
        named = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])]
        for wanted in (named, None):  # these two, and all that there are
            elect = ElectLeadersRequest(topic_partitions=wanted)
            for version, expected in ((0, [RequestTimedOut.code] * 2), (2, [])):
                answer = await ask(broker, elect, ElectLeadersResponse, version)
                codes = [
                    one.error_code
                    for each in answer.replica_election_results
                    for one in each.partition_result
                ]
                assert codes == expected
                assert answer.error_code == (0 if expected else RequestTimedOut.code)

    run(test)


def test_a_broker_judges_its_own_settings_before_it_passes_them_on(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        for broker in (cluster.controller, cluster.follower):
            for wrong in (
                {"log.cleaner.min.compaction.lag.ms": "100", "log.cleaner.max.compaction.lag.ms": "50"},
                {"listener.name.nosuch.max.connections": "5"},
            ):
                configs = [
                    IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
                    for name, value in wrong.items()
                ]
                resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=4, resource_name=str(broker.config.node_id), configs=configs
                )
                request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
                refused = await ask(broker, request, IncrementalAlterConfigsResponse)
                assert [each.error_code for each in refused.responses] == [InvalidConfig.code]
            assert not broker.config.layers[0].texts

    run(test)


def test_a_brokers_own_list_is_what_it_adds_to_at_any_broker(run: Run) -> None:
    """The controller's may be another, if it is not set but in files."""
    key = "log.cleanup.policy"

    async def test(cluster: Cluster) -> None:
        number = cluster.follower.config.node_id
        await cluster.stop(number)
        broker = await cluster.start(number, {key: "compact"})
        assert cluster.controller.config[key] == ("delete",)
        changes = ((APPEND, ("compact", "delete")), (SUBTRACT, ("compact",)), (APPEND, ("compact", "delete")))
        for operation, held in changes:
            assert await alter_own(broker, key, operation, "delete") == [0]
            await cluster.until(lambda held=held: broker.config[key] == held)  # type: ignore[misc]
        # What is asked at the same time is done in the controller's turns, with what is set by then.
        async with held_up(cluster.controller) as until_asked:
            gone = asyncio.create_task(alter_own(broker, key, DELETE, None))
            await until_asked(1)
            added = asyncio.create_task(alter_own(broker, key, APPEND, "compact"))
            await until_asked(2)
        assert [*await asyncio.gather(gone, added)] == [[0]] * 2
        await cluster.until(lambda: broker.config[key] == ("compact",))
        # All brokers' list is none of this broker's.
        assert await alter_own(broker, key, APPEND, "compact", of_all=True) == [0]
        await cluster.until(lambda: cluster.controller.config[key] == ("delete", "compact"))

    run(test)


def test_what_several_clients_do_to_a_brokers_list_is_all_done(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        broker, key = cluster.follower, "metric.reporters"
        async with held_up(cluster.controller) as until_asked:
            first = asyncio.create_task(alter_own(broker, key, SET, "z"))
            await until_asked(1)
            second = asyncio.create_task(alter_own(broker, key, APPEND, "y"))
            await until_asked(2)
        assert [*await asyncio.gather(first, second)] == [[0]] * 2
        await cluster.until(lambda: broker.config[key] == ("z", "y"))
        assert await alter_own(broker, key, DELETE, None) == [0]
        added = await asyncio.gather(*(alter_own(broker, key, APPEND, value) for value in "abc"))
        assert added == [[0]] * 3
        await cluster.until(lambda: set(broker.config[key]) == {*"abc"})

    run(test)


def test_what_is_added_to_a_list_while_its_broker_becomes_the_controller_is_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path, count=2) as cluster:
            old = (await cluster.until_controller()).config.node_id
            broker, key, reach = cluster.follower, "metric.reporters", cluster.follower.peers.link

            def link(broker_id: int, purpose: str) -> object:
                if purpose.endswith(PASSING):
                    raise NetworkException("cut")
                return reach(broker_id, purpose)

            monkeypatch.setattr(broker.peers, "link", link)
            adds = [asyncio.create_task(alter_own(broker, key, APPEND, value)) for value in "abc"]
            await asyncio.sleep(0.3)
            await cluster.stop(old)
            assert await asyncio.gather(*adds) == [[0]] * 3
            assert broker.controller.is_active
            await cluster.until(lambda: set(broker.config[key]) == {*"abc"})

    asyncio.run(main())


async def alter_own(
    broker: Broker, key: str, operation: int, value: str | None, *, of_all: bool = False
) -> list[int]:
    """Change one of a broker's own settings, or of all brokers', through that broker."""
    name = "" if of_all else str(broker.config.node_id)
    config = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name=name, configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = await ask(broker, request, IncrementalAlterConfigsResponse)
    return [each.error_code for each in answer.responses]


@asynccontextmanager
async def held_up(broker: Broker) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """The controller is busy for so long: whatever is asked of it waits for its turn.

    Gives a way to wait until so many changes of brokers' configurations wait.
    """
    controller, end, asked = broker.controller, asyncio.Event(), 0
    change = controller.set_broker_config

    async def busy() -> None:
        await end.wait()

    async def counted(*args: Any, **named: Any) -> None:
        nonlocal asked
        asked += 1
        await change(*args, **named)

    async def until_asked(count: int) -> None:
        async with asyncio.timeout(30):
            while asked < count:
                await asyncio.sleep(0.005)

    controller.set_broker_config = counted  # type: ignore[method-assign]
    turn = asyncio.create_task(controller.in_turn(busy))
    await asyncio.sleep(0)
    try:
        yield until_asked
    finally:
        end.set()
        await turn
        controller.set_broker_config = change  # type: ignore[method-assign]


def resources(
    *settings: tuple[int, str, str, str],
) -> list[IncrementalAlterConfigsRequest.AlterConfigsResource]:
    """Of (type, name, key, value) each."""
    return [
        IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
            ],
        )
        for kind, name, key, value in settings
    ]


@pytest.mark.parametrize("validate_only", [True, False])
def test_each_resource_is_judged_by_itself_at_any_broker(run: Run, validate_only: bool) -> None:
    async def test(cluster: Cluster) -> None:
        for name in ("t", "twice", "u"):
            await cluster.create(name)
        for number, broker in enumerate((cluster.controller, cluster.follower)):
            other = next(id_ for id_ in cluster.brokers if id_ != broker.config.node_id)
            own, new = str(broker.config.node_id), str(1_000_000 + number)
            expected = [
                ((TOPIC, "t", "retention.ms", new), 0),
                ((BROKER, own, "log.cleaner.min.compaction.lag.ms", "x"), InvalidConfig.code),
                ((TOPIC, "twice", "retention.ms", "5"), InvalidRequest.code),
                ((LOGGER, own, "no.such.logger", "INFO"), InvalidConfig.code),
                ((TOPIC, "nowhere", "retention.ms", "5"), UnknownTopicOrPartition.code),
                ((LOGGER, str(other), "root", "INFO"), InvalidRequest.code),
                ((TOPIC, "twice", "retention.ms", "6"), InvalidRequest.code),
                ((BROKER, str(other), "log.segment.bytes", "3000000"), InvalidRequest.code),
                ((BROKER, "", "log.retention.ms", new), 0),
                ((TOPIC, "u", "retention.ms", new), 0),
            ]
            request = IncrementalAlterConfigsRequest(
                resources=resources(*(setting for setting, _ in expected)), validate_only=validate_only
            )
            answer = await ask(broker, request, IncrementalAlterConfigsResponse)
            told = [(each.resource_type, each.resource_name, each.error_code) for each in answer.responses]
            assert told == [(kind, name, code) for (kind, name, *_), code in expected]
            for each in cluster.brokers.values():
                for name in ("t", "u"):
                    overrides = each.metadata.topic(name).overrides
                    assert overrides == ({} if validate_only else {"retention.ms": new})
                assert not each.metadata.topic("twice").overrides
                assert (each.config["log.retention.ms"] == int(new)) != validate_only
                assert not each.config.layers[0].texts

    run(test)


def test_replacements_are_judged_by_themselves_at_any_broker(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t")
        for number, broker in enumerate((cluster.controller, cluster.follower)):
            new = str(1_000_000 + number)
            request = AlterConfigsRequest(
                resources=[
                    AlterConfigsRequest.AlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[AlterConfigsRequest.AlterableConfig(name=key, value=value)],
                    )
                    for kind, name, key, value in (
                        (BROKER, str(broker.config.node_id), "log.segment.bytes", None),
                        (LOGGER, str(broker.config.node_id), "root", "INFO"),
                        (TOPIC, "t", "retention.ms", new),
                    )
                ],
                validate_only=False,
            )
            answer = await ask(broker, request, AlterConfigsResponse)
            codes = [each.error_code for each in answer.responses]
            assert codes == [InvalidConfig.code, InvalidRequest.code, 0]
            assert cluster.controller.metadata.topic("t").overrides == {"retention.ms": new}

    run(test)


def test_what_is_refused_here_is_not_passed_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[list[str]] = []

    async def unanswered(_: ControllerLink, request: Request, *__: object, **___: object) -> None:
        assert isinstance(request, IncrementalAlterConfigsRequest)
        passed.append([each.resource_name for each in request.resources])
        raise RequestTimedOut

    async def test(cluster: Cluster) -> None:
        await cluster.create("t")
        monkeypatch.setattr(ControllerLink, "pass_on", unanswered)
        broker = cluster.follower
        refused = (BROKER, str(broker.config.node_id), "log.cleaner.min.compaction.lag.ms", "x")
        good = (TOPIC, "t", "retention.ms", "5")
        for settings, codes in (
            ([refused], [InvalidConfig.code]),
            ([good, refused], [RequestTimedOut.code, InvalidConfig.code]),
        ):
            request = IncrementalAlterConfigsRequest(resources=resources(*settings), validate_only=False)
            answer = await ask(broker, request, IncrementalAlterConfigsResponse)
            assert [each.error_code for each in answer.responses] == codes
        assert passed == [["t"]]

    run(test)


def test_without_a_controller_only_what_is_for_it_goes_undone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object, **__: object) -> None:
        return None

    async def test(cluster: Cluster) -> None:
        await cluster.create("t")
        monkeypatch.setattr(ControllerLink, "pass_on", unreachable)
        broker = cluster.follower
        request = IncrementalAlterConfigsRequest(
            resources=resources(
                (BROKER, str(broker.config.node_id), "log.cleaner.min.compaction.lag.ms", "x"),
                (TOPIC, "t", "retention.ms", "5"),
            ),
            validate_only=False,
        )
        answer = await ask(broker, request, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in answer.responses] == [InvalidConfig.code, NotController.code]

    run(test)


def test_a_leader_that_may_have_been_replaced_deletes_no_records(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: Cluster) -> None:
        leader, other = cluster.controller.config.node_id, cluster.follower.config.node_id
        await cluster.create("t", assignment={0: [leader, other]})
        partition = cluster.brokers[leader].replicas.leader("t", 0)
        partition.append(batch(b"a"), 1, 9)
        await cluster.until(lambda: partition.high_watermark == 1)
        monkeypatch.setattr(cluster.registries[leader], "session_deadline", lambda: float("-inf"))
        wanted = DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name="t",
                    partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)],
                )
            ],
            timeout_ms=1000,
        )
        refused = await ask(cluster.brokers[leader], wanted, DeleteRecordsResponse)
        assert refused.topics[0].partitions[0].error_code == NotLeaderOrFollower.code
        assert partition.log.start_offset == 0

    run(test)


def test_configurations_are_changed_through_any_broker(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        Incremental = IncrementalAlterConfigsRequest
        broker = cluster.follower

        async def alter(kind: int, name: str, key: str, value: str) -> int:
            request = Incremental(
                resources=[
                    Incremental.AlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[Incremental.AlterableConfig(name=key, config_operation=0, value=value)],
                    )
                ],
                validate_only=False,
            )
            answer = await ask(broker, request, IncrementalAlterConfigsResponse)
            return answer.responses[0].error_code

        assert await alter(TOPIC, "t", "max.message.bytes", "5555") == 0
        assert await alter(TOPIC, "nowhere", "max.message.bytes", "5555") == UnknownTopicOrPartition.code
        assert await alter(BROKER, "", "log.retention.ms", "999999") == 0
        own, other = str(broker.config.node_id), str(cluster.controller.config.node_id)
        assert await alter(BROKER, own, "log.segment.bytes", "3000000") == 0
        assert await alter(BROKER, other, "log.segment.bytes", "3000000") == InvalidRequest.code
        for each in cluster.brokers.values():
            assert each.metadata.topic("t").overrides == {"max.message.bytes": "5555"}
            assert each.config["log.retention.ms"] == 999999
            assert (each.config["log.segment.bytes"] == 3000000) == (each is broker)
        replaced = AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=[AlterConfigsRequest.AlterableConfig(name="retention.ms", value="77")],
                )
            ],
            validate_only=False,
        )
        assert (await ask(broker, replaced, AlterConfigsResponse)).responses[0].error_code == 0
        assert cluster.controller.metadata.topic("t").overrides == {"retention.ms": "77"}

    run(test)


def test_moves_and_elections_are_asked_of_the_controller(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", assignment={0: [1, 2], 1: [2, 3]})
        Alter = AlterPartitionReassignmentsRequest

        async def move(*targets: list[int] | None) -> list[int]:
            request = Alter(
                topics=[
                    Alter.ReassignableTopic(
                        name="t",
                        partitions=[
                            Alter.ReassignablePartition(partition_index=index, replicas=target)
                            for index, target in enumerate(targets)
                        ],
                    )
                ]
            )
            answer = await ask(cluster.controller, request, AlterPartitionReassignmentsResponse)
            assert answer.error_code == 0
            return [each.error_code for each in answer.responses[0].partitions]

        assert await move([3, 1], None, [1]) == [
            0,
            NoReassignmentInProgress.code,
            UnknownTopicOrPartition.code,
        ]
        assert await move([9, 1]) == [InvalidReplicaAssignment.code]
        await cluster.until(lambda: cluster.states("t", 1)[0].replicas == [3, 1])
        listed = await ask(
            cluster.controller,
            ListPartitionReassignmentsRequest(topics=None),
            ListPartitionReassignmentsResponse,
        )
        assert listed.topics == []
        passed = await ask(cluster.follower, Alter(topics=[]), AlterPartitionReassignmentsResponse)
        assert passed.error_code == 0
        unlisted = ListPartitionReassignmentsRequest(topics=None)
        assert await ask(cluster.follower, unlisted, ListPartitionReassignmentsResponse) == listed
        elect = ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])]
        )
        done = await ask(cluster.controller, elect, ElectLeadersResponse)
        (results,) = [each.partition_result for each in done.replica_election_results]
        assert {each.error_code for each in results} <= {0, ElectionNotNeeded.code}
        assert [state.leader for state in cluster.states("t")] == [3, 2]
        assert await move([1, 3]) == [0]
        assert cluster.states("t")[0].leader == 3
        twice = ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 0])] * 2
        )
        done = await ask(cluster.controller, twice, ElectLeadersResponse)
        (results,) = [each.partition_result for each in done.replica_election_results]
        assert [(each.partition_id, each.error_code) for each in results] == [(0, 0)]
        assert cluster.states("t")[0].leader == 1
        everything = await ask(
            cluster.controller, ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse
        )
        assert everything.replica_election_results == []
        for version in (0, 2):
            away = await ask(cluster.follower, elect, ElectLeadersResponse, version)
            codes = {
                each.error_code for one in away.replica_election_results for each in one.partition_result
            }
            assert codes == {ElectionNotNeeded.code}

    run(test)


def test_what_brokers_say_to_each_other_is_heard_on_their_listener_only(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        broker = cluster.controller
        request = ClusterStateRequest(broker_id=1, broker_epoch=-5)
        advertised = await ask(
            broker,
            ApiVersionsRequest(client_software_name="test", client_software_version="1"),
            ApiVersionsResponse,
        )
        assert not {api.api_key for api in advertised.api_keys} & {each.key for each in INTERNAL_REQUESTS}
        for listener in ("PLAINTEXT", PEER_LISTENER):
            connection = await connected(broker, listener)
            connection.api_versions[request.key] = request.versions
            try:
                if listener == PEER_LISTENER:
                    answer = await connection.request(request, ClusterStateResponse, 5000)
                    assert answer.error_code != 0
                else:
                    with pytest.raises(NetworkException):
                        await connection.request(request, ClusterStateResponse, 5000)
            finally:
                await connection.close()

    run(test)


def test_new_partitions_are_answered_when_their_broker_knows_them(run: Run) -> None:
    """Also if it loses its session, and with it the office, before its controller has told everybody."""

    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        broker = cluster.controller
        office, state = broker.controller, broker.cluster_state
        picture = office.term.picture
        await state.stop()
        wanted = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=5000, validate_only=False)
        asking = asyncio.create_task(ask(broker, request, CreatePartitionsResponse))
        await cluster.until(lambda: len(picture.topic("t").partitions) == 3)
        office.session_lost()
        office.joined_again()
        await asyncio.wait([asking], timeout=0.3)
        assert not asking.done()
        await state.start()
        answer = await asking
        assert len(broker.metadata.topic("t").partitions) == 3
        assert [result.error_code for result in answer.results] == [0]

    run(test)
