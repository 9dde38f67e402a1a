"""Metadata, ListOffsets and epochs at every version, as old and new clients ask for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from millstream.model import NO_UUID
from millstream.protocol.messages import (
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from tests.conftest import Name
from tests.processes import BrokerProcess, until
from tests.wire import Wire, append, create_topic, list_offsets

UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, INVALID_TOPIC = 3, 5, 17
UNSUPPORTED_VERSION, UNKNOWN_TOPIC_ID = 35, 100
Wanted = MetadataRequest.MetadataRequestTopic


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.mark.parametrize("version", range(14))
def test_one_topic_all_topics_and_none(wire: Wire, bootstrap: str, new_name: Name, version: int) -> None:
    topic = new_name("metadata")
    topic_id = create_topic(wire, topic, partitions=2)
    answer = wire.ask(MetadataRequest(topics=[Wanted(name=topic)]), version)
    assert [f"{broker.host}:{broker.port}" for broker in answer.brokers] == [bootstrap]
    (found,) = answer.topics
    assert (found.name, found.error_code, found.is_internal) == (topic, 0, False)
    assert found.topic_id == (topic_id if version >= 10 else NO_UUID)
    assert sorted(partition.partition_index for partition in found.partitions) == [0, 1]
    for partition in found.partitions:
        assert partition.leader_id == answer.brokers[0].node_id
        assert partition.replica_nodes == partition.isr_nodes == [partition.leader_id]
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert partition.offline_replicas == []
    if version >= 1:
        assert answer.controller_id == answer.brokers[0].node_id
        assert wire.ask(MetadataRequest(topics=[]), version).topics == []
    everything = wire.ask(MetadataRequest(topics=None if version else []), version)
    assert topic in [each.name for each in everything.topics]
    assert bool(everything.cluster_id) == (version >= 2)


def test_the_topic_of_kafkas_controllers_is_not_made(wire: Wire) -> None:
    """Its folder would be passed over by the next start."""
    request = MetadataRequest(topics=[Wanted(name="__cluster_metadata")], allow_auto_topic_creation=True)
    assert wire.ask(request).topics[0].error_code == INVALID_TOPIC
    wanted = CreateTopicsRequest.CreatableTopic(
        name="__cluster_metadata", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    (answer,) = wire.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=5000)).topics
    assert answer.error_code == INVALID_TOPIC
    assert "Apache Kafka's own controllers" in (answer.error_message or "")


def test_auto_creation_is_the_clients_choice(wire: Wire, new_name: Name) -> None:
    topic = new_name("maybe")
    for version in (4, 13):
        request = MetadataRequest(topics=[Wanted(name=topic)], allow_auto_topic_creation=False)
        assert wire.ask(request, version).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    wire.ask(MetadataRequest(topics=[Wanted(name=topic)], allow_auto_topic_creation=True))
    found = until(
        lambda: [each for each in wire.ask(MetadataRequest(topics=None)).topics if each.name == topic],
        10,
        "made",
    )
    assert len(found[0].partitions) == 4


def test_one_request_does_not_create_very_many_topics(broker_process: Callable[..., BrokerProcess]) -> None:
    """Of those that are left it says what is said of topics that are still coming: the client asks again."""
    broker = broker_process(num_partitions="1").start()
    names = [f"asked-for-{number}" for number in range(130)]
    request = MetadataRequest(topics=[Wanted(name=name) for name in names], allow_auto_topic_creation=True)
    with Wire(broker.bootstrap, timeout_s=60) as wire:
        assert [each.error_code for each in wire.ask(request).topics] == [0] * 100 + [
            LEADER_NOT_AVAILABLE
        ] * 30
        assert len(wire.ask(MetadataRequest(topics=None)).topics) == 100
        assert [each.error_code for each in wire.ask(request).topics] == [0] * 130


def test_auto_creation_can_be_forbidden(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(auto_create_topics_enable="false").start()
    with Wire(broker.bootstrap) as wire:
        answer = wire.ask(MetadataRequest(topics=[Wanted(name="never")]))
        assert answer.topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert wire.ask(MetadataRequest(topics=None)).topics == []


def test_an_invalid_name_without_auto_creation(wire: Wire) -> None:
    request = MetadataRequest(topics=[Wanted(name="not a name")], allow_auto_topic_creation=False)
    assert wire.ask(request).topics[0].error_code == INVALID_TOPIC


def test_several_topics_at_once(wire: Wire, new_name: Name) -> None:
    known, unknown = new_name("known"), new_name("unknown")
    create_topic(wire, known)
    names = [known, unknown]
    request = MetadataRequest(topics=[Wanted(name=name) for name in names], allow_auto_topic_creation=False)
    codes = {topic.name: topic.error_code for topic in wire.ask(request).topics}
    assert codes == {known: 0, unknown: UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name("by-id")
    topic_id = create_topic(wire, topic)
    unknown = uuid.uuid4()
    request = MetadataRequest(
        topics=[Wanted(topic_id=topic_id, name=None), Wanted(topic_id=unknown, name=None)]
    )
    found = {each.topic_id: (each.error_code, each.name) for each in wire.ask(request, version).topics}
    assert found == {topic_id: (0, topic), unknown: (UNKNOWN_TOPIC_ID, None)}


def test_the_cluster_by_its_own_request(wire: Wire, bootstrap: str) -> None:
    for version in range(3):
        answer = wire.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
        assert (answer.error_code, answer.endpoint_type) == (0, 1)
        assert [f"{broker.host}:{broker.port}" for broker in answer.brokers] == [bootstrap]
        assert answer.cluster_id == wire.ask(MetadataRequest(topics=[])).cluster_id


def test_what_may_be_done_is_told_where_it_is_asked_for(wire: Wire, new_name: Name) -> None:
    """Read, write, create, delete, alter, describe and so on, by the codes of these operations."""
    topic = new_name("allowed")
    create_topic(wire, topic)
    on_a_topic = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
    on_the_cluster = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
    unasked = -(2**31)
    for is_asked in (False, True):
        expected = (on_a_topic, on_the_cluster) if is_asked else (unasked, unasked)
        for wanted in ([Wanted(name=topic)], None):
            for version in (8, 10, 11):
                request = MetadataRequest(topics=wanted)
                request.include_topic_authorized_operations = is_asked
                request.include_cluster_authorized_operations = is_asked and version <= 10
                answer = wire.ask(request, version)
                (found,) = (each for each in answer.topics if each.name == topic)
                assert found.topic_authorized_operations == expected[0]
                if version <= 10:
                    assert answer.cluster_authorized_operations == expected[1]
        described = wire.ask(DescribeClusterRequest(include_cluster_authorized_operations=is_asked))
        assert described.cluster_authorized_operations == expected[1]
    by_pages = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=topic)], response_partition_limit=4
    )
    assert wire.ask(by_pages).topics[0].topic_authorized_operations == on_a_topic


def test_topic_partitions_page_by_page(wire: Wire, new_name: Name) -> None:
    names = sorted(new_name("page") for _ in range(3))
    for name in names:
        create_topic(wire, name, partitions=3)
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    seen: list[tuple[str, int]] = []
    cursor = None
    pages = 0
    while True:
        request = DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=4, cursor=cursor)
        answer = wire.ask(request)
        pages += 1
        for topic in answer.topics:
            assert topic.error_code == 0
            seen += [(topic.name, partition.partition_index) for partition in topic.partitions]
        if answer.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
    assert seen == [(name, number) for name in names for number in range(3)]
    assert pages == 3


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_at_every_version(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name("offsets")
    create_topic(wire, topic)
    append(wire, topic, b"a", b"b", b"c")

    def listed(timestamp: int, partition: int = 0) -> tuple[int, int]:
        place = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        entry = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[place])
        (found,) = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[entry]), version).topics
        return found.partitions[0].error_code, found.partitions[0].offset

    assert listed(-1) == (0, 3)
    assert listed(-2) == (0, 0)
    assert listed(0) == (0, 0)
    assert listed(4_000_000_000_000) == (0, -1)
    assert listed(-1, partition=9)[0] == UNKNOWN_TOPIC_OR_PARTITION
    if version >= 7:
        assert listed(-3) == (0, 0)  # the first of those with the largest time
    if version >= 8:
        assert listed(-4) == (0, 0)  # the earliest offset held locally


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_what_may_be_asked_for_since_a_version(
    wire: Wire, new_name: Name, timestamp: int, since: int
) -> None:
    topic = new_name("old")
    create_topic(wire, topic)
    append(wire, topic, b"a")
    for version in range(1, 12):
        place = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        entry = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[place])
        (found,) = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[entry]), version).topics
        assert found.partitions[0].error_code == (UNSUPPORTED_VERSION if version < since else 0)


def test_leader_epochs_and_their_ends(wire: Wire, new_name: Name) -> None:
    topic = new_name("epoch-ends")
    create_topic(wire, topic)
    append(wire, topic, b"a", b"b")
    for version in (2, 3, 4):

        def end_of(
            epoch: int, current: int = -1, partition: int = 0, version: int = version
        ) -> tuple[int, int, int]:
            place = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=partition, current_leader_epoch=current, leader_epoch=epoch
            )
            entry = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[place])
            (found,) = wire.ask(OffsetForLeaderEpochRequest(topics=[entry], replica_id=-1), version).topics
            (answer,) = found.partitions
            return answer.error_code, answer.leader_epoch, answer.end_offset

        assert end_of(0) == (0, 0, 2)
        assert end_of(7) == (0, -1, -1)
        assert end_of(0, current=9)[0] == 75  # UNKNOWN_LEADER_EPOCH
        assert end_of(0, partition=5)[0] == UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_tell_their_epoch(wire: Wire, new_name: Name) -> None:
    topic = new_name("with-epoch")
    create_topic(wire, topic)
    append(wire, topic, b"a")
    (found,) = list_offsets(wire, topic)
    assert (found.offset, found.leader_epoch) == (1, 0)


def test_a_broker_may_have_the_id_0(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(node_id="0").start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "zero")
        answer = wire.ask(MetadataRequest(topics=None))
        assert [each.node_id for each in answer.brokers] == [0]
        assert answer.controller_id == 0
        assert answer.topics[0].partitions[0].leader_id == 0
        assert append(wire, "zero", b"x") == 0
