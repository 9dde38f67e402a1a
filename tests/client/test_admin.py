"""What an admin sees and changes, on Millstream and on Apache Kafka."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from itertools import count, islice
from pathlib import Path

import pytest
from confluent_kafka import Producer as ForeignProducer

from millstream import Admin, AsyncAdmin, Consumer, TopicPartition, client
from millstream.client.cluster import Cluster
from millstream.client.errors import NoSuchTopic
from millstream.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from millstream.deadline import Deadline
from millstream.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidPartitions,
    InvalidRegularExpression,
    NonEmptyGroup,
    TopicAlreadyExists,
    TransactionalIdNotFound,
    UnknownMemberId,
    UnsupportedVersion,
)
from millstream.protocol.messages import (
    REQUESTS,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    ApiVersionsRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    UnregisterBrokerRequest,
    WriteTxnMarkersRequest,
)
from millstream.protocol.schema import Request
from tests.client.conftest import Seen
from tests.client.consuming import fill, numbered
from tests.processes import until

_numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"administered-{next(_numbers)}"


def write(bootstrap: str, topic: str, values: int, partition: int = 0) -> None:
    asyncio.run(fill(bootstrap, topic, partition, numbered(values)))


def test_topics_are_made_described_grown_and_deleted(either_bootstrap: str, topic: str) -> None:
    with Admin(either_bootstrap) as admin:
        admin.create_topic(topic, 2, replication_factor=1, validate_only=True)
        assert topic not in admin.list_topics()
        created = admin.create_topic(topic, 2, replication_factor=1, configs={"retention.ms": "1234567"})
        assert (created.name, created.partitions) == (topic, 2)
        with pytest.raises(TopicAlreadyExists):
            admin.create_topic(topic, 2, replication_factor=1)
        described = admin.describe_topic(topic)
        assert described.id == created.id
        (broker,) = admin.describe_cluster().brokers
        assert [(p.leader, p.replicas, p.isr) for p in described.partitions.values()] == [
            (broker.id, (broker.id,), (broker.id,))
        ] * 2
        admin.add_partitions(topic, 3)
        assert len(admin.describe_topic(topic).partitions) == 3
        with pytest.raises(InvalidPartitions):
            admin.add_partitions(topic, 1)
        assert topic in admin.list_topics()
        assert "__consumer_offsets" not in admin.list_topics()
        admin.delete_topic(topic)
        assert topic not in admin.list_topics(with_internal=True)
        with pytest.raises(NoSuchTopic):
            admin.describe_topic(topic)


def test_a_topic_is_laid_out_by_hand(either_bootstrap: str, topic: str) -> None:
    with Admin(either_bootstrap) as admin:
        (broker,) = admin.describe_cluster().brokers
        admin.create_topic(topic, assignment={0: [broker.id], 1: [broker.id]})
        assert len(admin.describe_topic(topic).partitions) == 2


def test_the_cluster_and_its_folders_are_described(either_bootstrap: str, topic: str) -> None:
    with Admin(either_bootstrap) as admin:
        cluster = admin.describe_cluster()
        assert cluster.id
        assert cluster.controller in {broker.id for broker in cluster.brokers}
        assert cluster.features
        admin.create_topic(topic, 1, replication_factor=1)
        write(either_bootstrap, topic, 100)
        (folder,) = admin.describe_log_dirs(cluster.brokers[0].id)
        assert folder.error is None
        assert folder.sizes[TopicPartition(topic, 0)] > 1000
        assert folder.total_bytes >= folder.usable_bytes > 0


def test_offsets_are_looked_up_and_records_deleted(either_bootstrap: str, topic: str) -> None:
    here = TopicPartition(topic, 0)
    with Admin(either_bootstrap) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
        write(either_bootstrap, topic, 50)
        for place, offset in ((EARLIEST, 0), (LATEST, 50), (MAX_TIMESTAMP, 49), (1_020, 20), (9_999, -1)):
            assert admin.offsets_at({here: place})[here].offset == offset
        assert admin.delete_records({here: 30}) == {here: 30}
        assert admin.offsets_at({here: EARLIEST}, only_committed=True)[here].offset == 30


def test_configurations_are_read_and_changed(either_bootstrap: str, topic: str, seen: Seen) -> None:
    with Admin(either_bootstrap) as admin:

        def value(key: str) -> str:
            return admin.describe_config("topic", topic, keys=[key])[key].value or ""

        admin.create_topic(topic, 1, replication_factor=1)
        config = admin.describe_config("topic", topic)
        assert config["cleanup.policy"].value == "delete"
        assert config["cleanup.policy"].is_default
        before = value("retention.ms")
        admin.alter_config(
            "topic", topic, values={"retention.ms": "99"}, append={"cleanup.policy": "compact"}
        )
        seen(lambda: value("retention.ms") == "99")
        config = admin.describe_config("topic", topic, keys=["retention.ms", "cleanup.policy"])
        assert config["retention.ms"].source == "topic"
        assert set((config["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
        admin.alter_config("topic", topic, delete=["retention.ms"], subtract={"cleanup.policy": "delete"})
        seen(lambda: value("retention.ms") == before)
        assert value("cleanup.policy") == "compact"
        with pytest.raises(InvalidConfig):
            admin.alter_config("topic", topic, values={"retention.ms": "soon"})
        broker = str(admin.describe_cluster().brokers[0].id)
        assert admin.describe_config("broker", broker, keys=["num.partitions"])["num.partitions"].value == "1"
        admin.alter_config("group", topic, values={"consumer.session.timeout.ms": "50000"})
        seen(
            lambda: admin.describe_config("group", topic)["consumer.session.timeout.ms"].value == "50000",
        )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_seen_and_their_offsets_moved(either_bootstrap: str, topic: str, protocol: str) -> None:
    group, here = f"group-of-{topic}", TopicPartition(topic, 0)
    with Admin(either_bootstrap) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
        write(either_bootstrap, topic, 20)
        with pytest.raises(GroupIdNotFound):
            admin.describe_group(group)
        with Consumer(
            either_bootstrap,
            group=group,
            group_protocol=protocol,  # type: ignore[arg-type]
            offset_reset="earliest",
        ) as consumer:
            consumer.subscribe(topic)
            assert len(list(islice(consumer, 5))) == 5
            consumer.commit()
            described = admin.describe_group(group)
            assert (described.state, described.type) == ("Stable", protocol)
            assert [member.partitions for member in described.members] == [[here]]
            (listed,) = [each for each in admin.list_groups(types=[protocol]) if each.name == group]
            assert listed.state == "Stable"
            assert admin.group_lag(group) == {here: 15}
            with pytest.raises(NonEmptyGroup):
                admin.delete_group(group)
            with pytest.raises(UnknownMemberId):
                admin.alter_group_offsets(group, {here: 1})
        admin.alter_group_offsets(group, {here: 11})
        assert admin.group_offsets(group)[here].offset == 11
        assert admin.group_offsets(group, [TopicPartition(topic, 7)]) == {}
        admin.delete_group_offsets(group, [here])
        assert admin.group_offsets(group) == {}
        admin.delete_group(group)
        assert group not in {each.name for each in admin.list_groups()}


def test_a_static_member_is_put_out(either_bootstrap: str, topic: str) -> None:
    group = f"group-of-{topic}"
    with Admin(either_bootstrap) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
        write(either_bootstrap, topic, 1)
        with Consumer(
            either_bootstrap, group=group, group_instance_id="one", offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(topic)
            next(iter(consumer))
        assert [member.instance_id for member in admin.describe_group(group).members] == ["one"]
        admin.remove_members(group, instance_ids=["one"])
        assert admin.describe_group(group).members == []
        with pytest.raises(UnknownMemberId):
            admin.remove_members(group, instance_ids=["one"])


def test_transactions_and_producers_are_seen_and_ended(either_bootstrap: str, topic: str) -> None:
    here, name = TopicPartition(topic, 0), f"tx-{topic}"
    with Admin(either_bootstrap) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
        with pytest.raises(TransactionalIdNotFound):
            admin.describe_transaction(name)
        producer = ForeignProducer({"bootstrap.servers": either_bootstrap, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(30) == 0
        described = admin.describe_transaction(name)
        assert (described.state, described.partitions) == ("Ongoing", [here])
        assert name in {each.transactional_id for each in admin.list_transactions(states=["Ongoing"])}
        until(lambda: time.time() * 1000 > described.started_ms + 1, 10, "time passes")
        for filters, is_listed in (
            ({"longer_than_ms": 0}, True),
            ({"longer_than_ms": 3_600_000}, False),
            ({"pattern": f"t.-{topic}"}, True),
            ({"pattern": "t."}, False),
            ({"pattern": f"t.-{topic}", "states": ["Ongoing"], "longer_than_ms": 0}, True),
        ):
            listed = admin.list_transactions(**filters)
            assert (name in {each.transactional_id for each in listed}) == is_listed, filters
        with pytest.raises(InvalidRegularExpression):
            admin.list_transactions(pattern="(")
        with pytest.raises(ValueError, match="negative"):
            admin.list_transactions(longer_than_ms=-1)
        (found,) = admin.open_transactions([here])
        assert found.producer_id == described.producer_id
        ((active,),) = admin.describe_producers([here]).values()
        assert (active.producer_id, active.transaction_start) == (found.producer_id, found.start_offset)
        assert admin.hanging_transactions([here]) == []
        admin.fence_producer(name)
        deadline = time.monotonic() + 20
        while admin.open_transactions([here]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert admin.open_transactions([here]) == []


def test_a_filter_that_a_broker_does_not_know_is_an_error(own_bootstrap: str) -> None:
    async def main() -> None:
        async with AsyncAdmin(own_bootstrap) as admin:
            await admin.list_transactions()
            (task,) = admin._cluster._connections.values()
            versions = task.result().api_versions
            versions[ListTransactionsRequest.key] = (0, 1)
            await admin.list_transactions(longer_than_ms=5)
            with pytest.raises(UnsupportedVersion, match="by a pattern"):
                await admin.list_transactions(pattern=".*")
            versions[ListTransactionsRequest.key] = (0, 0)
            await admin.list_transactions(states=["Ongoing"], producer_ids=[1])
            with pytest.raises(UnsupportedVersion, match="by how long they are open"):
                await admin.list_transactions(longer_than_ms=5)

    asyncio.run(main())


def test_replicas_stay_where_they_are_on_one_broker(either_bootstrap: str, topic: str) -> None:
    here = TopicPartition(topic, 0)
    with Admin(either_bootstrap) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
        (broker,) = admin.describe_cluster().brokers
        assert admin.reassign({here: [broker.id]}) == {here: None}
        assert admin.list_reassignments() == {}
        assert admin.elect_leaders([here]) == {here: None}
        assert isinstance(admin.reassign({here: [broker.id + 77]})[here], Exception)


def test_the_blocking_admin_has_every_method_of_the_other() -> None:
    def public(kind: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(member))
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }

    assert public(Admin) == public(AsyncAdmin)


def test_an_admin_without_a_cluster_says_so_in_time_and_leaves_no_thread() -> None:
    before = threading.active_count()
    began = time.monotonic()
    with Admin("127.0.0.1:1") as admin, pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        admin.list_topics(timeout=0.5)
    assert time.monotonic() - began < 5
    assert threading.active_count() == before


OF_CLIENTS = {  # what producers and consumers ask
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    ConsumerGroupHeartbeatRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
}
SUPERSEDED = {  # what other calls do as well, or better
    AlterConfigsRequest: "alter_config",
    DescribeTopicPartitionsRequest: "describe_topic",
}
REACHED = {
    ConsumerGroupDescribeRequest: "describe_group",
    CreatePartitionsRequest: "add_partitions",
    CreateTopicsRequest: "create_topic",
    DeleteGroupsRequest: "delete_group",
    DeleteRecordsRequest: "delete_records",
    DeleteTopicsRequest: "delete_topic",
    DescribeClusterRequest: "describe_cluster",
    DescribeConfigsRequest: "describe_config",
    DescribeGroupsRequest: "describe_group",
    DescribeLogDirsRequest: "describe_log_dirs",
    DescribeProducersRequest: "describe_producers",
    DescribeTransactionsRequest: "describe_transaction",
    ElectLeadersRequest: "elect_leaders",
    EndTxnRequest: "end_transaction",
    IncrementalAlterConfigsRequest: "alter_config",
    InitProducerIdRequest: "fence_producer",
    LeaveGroupRequest: "remove_members",
    ListGroupsRequest: "list_groups",
    ListOffsetsRequest: "offsets_at",
    ListPartitionReassignmentsRequest: "list_reassignments",
    AlterPartitionReassignmentsRequest: "reassign",
    ListTransactionsRequest: "list_transactions",
    MetadataRequest: "list_topics",
    OffsetCommitRequest: "alter_group_offsets",
    OffsetDeleteRequest: "delete_group_offsets",
    OffsetFetchRequest: "group_offsets",
    UnregisterBrokerRequest: "unregister_broker",
    WriteTxnMarkersRequest: "abort_transaction",
}


def test_whatever_the_broker_serves_can_be_asked_for(own_bootstrap: str) -> None:
    """An API that is new to the broker belongs into one of the tables, most likely with a call of Admin."""

    async def served() -> set[type[Request]]:
        async with Cluster(own_bootstrap) as cluster:
            connection = await cluster.any_connection(Deadline(30_000))
            return {REQUESTS[key] for key in connection.api_versions}

    assert asyncio.run(served()) == OF_CLIENTS | SUPERSEDED.keys() | REACHED.keys()
    calls = {*SUPERSEDED.values(), *REACHED.values()}
    assert calls <= {name for name in vars(Admin) if not name.startswith("_")}
    source = "".join(path.read_text("utf-8") for path in Path(client.__path__[0]).glob("*.py"))
    for request in REACHED:
        assert f" {request.__name__}(" in source, "nobody asks it"
