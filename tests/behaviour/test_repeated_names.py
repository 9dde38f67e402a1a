"""Requests that name the same thing more than once: it is told or done once, or the request is refused."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from millstream.errors import InvalidRequest
from millstream.protocol.messages import (
    AddPartitionsToTxnRequest,
    AlterConfigsRequest,
    ConsumerGroupDescribeRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    WriteTxnMarkersRequest,
)
from tests.behaviour.groups.steps import find
from tests.conftest import Name
from tests.transactional import TransactionalProducer
from tests.wire import Wire, create_topic, end_offset

UNKNOWN_TOPIC, INVALID_REQUEST, POLICY_VIOLATION, NOT_ATTEMPTED, UNKNOWN_TOPIC_ID = 3, 42, 44, 55, 100
TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.fixture
def topics(wire: Wire, new_name: Name) -> dict[str, UUID]:
    names = [new_name("one"), new_name("two")]
    return {name: create_topic(wire, name, 2) for name in names}


@pytest.mark.parametrize("version", [1, 9, 12, 13])
def test_metadata(wire: Wire, topics: dict[str, UUID], version: int) -> None:
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    unknown = MetadataRequest.MetadataRequestTopic(name="none?such")
    answer = wire.ask(MetadataRequest(topics=[*wanted, unknown] * 3), version)
    assert [topic.name for topic in answer.topics] == [*topics, "none?such"]
    assert [len(topic.partitions) for topic in answer.topics] == [2, 2, 0]


def test_metadata_by_id(wire: Wire, topics: dict[str, UUID]) -> None:
    named = MetadataRequest.MetadataRequestTopic
    wanted = [
        named(name=name, topic_id=topic_id) for topic_id in topics.values() for name in (None, "a", "b")
    ]
    answer = wire.ask(MetadataRequest(topics=wanted), 12)
    assert [topic.name for topic in answer.topics] == list(topics)


@pytest.mark.parametrize("version", [5, 6])
def test_deletions(wire: Wire, topics: dict[str, UUID], version: int) -> None:
    """What is named twice is kept: the client may have meant another one."""
    first, second = topics
    named = DeleteTopicsRequest.DeleteTopicState
    names = [first, second, first]
    states = [named(name=name, topic_id=UUID(int=0)) for name in names]
    asked = {"topic_names": names} if version < 6 else {"topics": states}
    answer = wire.ask(DeleteTopicsRequest(timeout_ms=10_000, **asked), version)
    assert sorted((each.name, each.error_code) for each in answer.responses) == sorted(
        [(first, InvalidRequest.code), (second, 0)]
    )
    left = wire.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=first)]), 12)
    assert left.topics[0].topic_id == topics[first]


def test_descriptions_of_configs(wire: Wire, topics: dict[str, UUID]) -> None:
    first, second = topics
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name, keys in (
            (TOPIC, first, None),
            (BROKER, "1", None),
            (TOPIC, second, None),
            (TOPIC, first, ["retention.ms"]),
            (BROKER, "1", None),
            (GROUP, first, None),
        )
    ]
    results = wire.ask(DescribeConfigsRequest(resources=resources)).results
    assert [(result.resource_type, result.resource_name) for result in results] == [
        (TOPIC, first),
        (BROKER, "1"),
        (TOPIC, second),
        (GROUP, first),
    ]
    assert results[0].configs == results[2].configs
    assert len(results[0].configs) > 20  # what was asked for first


def test_descriptions_of_topics_alike_and_not_alike(wire: Wire, new_name: Name) -> None:
    plain, other, last = new_name("plain"), new_name("other"), new_name("last")
    create_topic(wire, plain)
    create_topic(wire, other, retention_ms="77")
    create_topic(wire, last)
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=name, configuration_keys=keys
        )
        for name, keys in ((plain, None), (other, None), (last, None), ("none-such", None))
    ]
    results = wire.ask(DescribeConfigsRequest(resources=resources, include_synonyms=True)).results
    assert [result.error_code for result in results] == [0, 0, 0, UNKNOWN_TOPIC]
    values = [
        {config.name: config.value for config in result.configs}.get("retention.ms") for result in results
    ]
    assert values == ["604800000", "77", "604800000", None]


@pytest.mark.parametrize("is_incremental", [True, False])
def test_changes_of_configs(wire: Wire, topics: dict[str, UUID], is_incremental: bool) -> None:
    first, second = topics
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest
    if is_incremental:
        change = IncrementalAlterConfigsRequest.AlterableConfig(
            name="retention.ms", config_operation=0, value="77"
        )
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=TOPIC, resource_name=name, configs=[change]
                )
                for name in (first, second, first)
            ],
            validate_only=False,
        )
    else:
        new = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="77")
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(
                    resource_type=TOPIC, resource_name=name, configs=[new]
                )
                for name in (first, second, first)
            ],
            validate_only=False,
        )
    answers = wire.ask(request).responses
    assert [answer.error_code for answer in answers] == [INVALID_REQUEST, 0, INVALID_REQUEST]


def test_groups_and_transactional_ids(wire: Wire, new_name: Name) -> None:
    group, producer = new_name("group"), new_name("producer")
    for name, key_type in ((group, 0), (producer, 1)):
        find(wire, name, key_type=key_type)
    assert len(wire.ask(DescribeGroupsRequest(groups=[group] * 3)).groups) == 1
    described = ConsumerGroupDescribeRequest(group_ids=[group] * 3, include_authorized_operations=False)
    assert len(wire.ask(described).groups) == 1
    states = wire.ask(DescribeTransactionsRequest(transactional_ids=[producer] * 3)).transaction_states
    assert [state.transactional_id for state in states] == [producer]


def test_producers(wire: Wire, topics: dict[str, UUID]) -> None:
    first, second = topics
    asked = [
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
        for name, indexes in ((first, [0, 0, 7]), (second, [1]), (first, [1, 0]))
    ]
    answer = wire.ask(DescribeProducersRequest(topics=asked))
    told = {
        topic.name: [(each.partition_index, each.error_code) for each in topic.partitions]
        for topic in answer.topics
    }
    assert told == {first: [(0, 0), (7, UNKNOWN_TOPIC), (1, 0)], second: [(1, 0)]}
    many = DescribeProducersRequest.TopicRequest(name=first, partition_indexes=list(range(2, 2002)))
    (topic,) = wire.ask(DescribeProducersRequest(topics=[many])).topics
    assert {each.error_code for each in topic.partitions} == {UNKNOWN_TOPIC}
    assert sum(each.error_message is not None for each in topic.partitions) == 1000


def commit(wire: Wire, group: str, topic: str, topic_id: UUID) -> None:
    find(wire, group)
    place = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=7, committed_metadata="note"
    )
    entry = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[place])
    (answer,) = wire.ask(OffsetCommitRequest(group_id=group, topics=[entry], member_id="")).topics
    assert answer.partitions[0].error_code == 0


@pytest.mark.parametrize("version", [1, 5, 7])
@pytest.mark.parametrize("more", [0, 20_000])
def test_positions(wire: Wire, topics: dict[str, UUID], new_name: Name, version: int, more: int) -> None:
    """Also where so many are asked for that the broker looks for them in another way."""
    first, second = topics
    group = new_name("group")
    commit(wire, group, first, topics[first])
    asked = [
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
        for name, indexes in ((first, [1, 1, 0]), (second, [0]), (first, [1, *range(2, 2 + more)]))
    ]
    answer = wire.ask(OffsetFetchRequest(group_id=group, topics=asked), version)
    assert answer.error_code == 0
    told = {
        topic.name: [
            (each.partition_index, each.committed_offset, each.metadata) for each in topic.partitions
        ]
        for topic in answer.topics
    }
    assert len(answer.topics) == 2
    rest = [(index, -1, "") for index in range(2, 2 + more)]
    assert told == {first: [(1, 7, "note"), (0, -1, ""), *rest], second: [(0, -1, "")]}


@pytest.mark.parametrize("version", [8, 10])
@pytest.mark.parametrize("more", [0, 20_000])
def test_positions_of_groups(
    wire: Wire, topics: dict[str, UUID], new_name: Name, version: int, more: int
) -> None:
    first, second = topics
    group, other = new_name("group"), new_name("other")
    commit(wire, group, first, topics[first])
    named = OffsetFetchRequest.OffsetFetchRequestTopics
    lost = UUID(int=77)
    wanted = [
        named(name=first, topic_id=topics[first], partition_indexes=[0, 1, 0, *range(2, 2 + more)]),
        named(name=second, topic_id=topics[second], partition_indexes=[0]),
        named(name="none-such", topic_id=lost, partition_indexes=[3, 3]),
    ]
    asked = [
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=wanted),
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=other, topics=None),
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None),
    ]
    groups = wire.ask(OffsetFetchRequest(groups=asked), version).groups
    assert [each.group_id for each in groups] == [group, other, group]
    assert [each.error_code for each in groups] == [0, 0, INVALID_REQUEST]
    told = [
        [(each.partition_index, each.committed_offset, each.error_code) for each in topic.partitions]
        for topic in groups[0].topics
    ]
    missing = UNKNOWN_TOPIC_ID if version >= 10 else 0
    rest = [(index, -1, 0) for index in range(2, 2 + more)]
    assert told == [[(0, -1, 0), (1, 7, 0), *rest], [(0, -1, 0)], [(3, -1, missing)]]
    assert groups[0].topics[0].partitions[1].metadata == "note"


def test_partitions_of_a_transaction(wire: Wire, topics: dict[str, UUID], new_name: Name) -> None:
    first, second = topics
    producer = TransactionalProducer(wire, new_name("id"), first).begun()

    def added(*partitions: tuple[str, list[int]]) -> list[tuple[str, list[tuple[int, int]]]]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in partitions
            ],
        )
        results = wire.ask(request, 3).results_by_topic_v3_and_below
        return [
            (
                topic.name,
                [(each.partition_index, each.partition_error_code) for each in topic.results_by_partition],
            )
            for topic in results
        ]

    refused = added((first, [0, 0, 9]), (second, [-1]), ("none-such", [0]), (first, []))
    assert refused == [
        (first, [(0, NOT_ATTEMPTED), (0, NOT_ATTEMPTED), (9, UNKNOWN_TOPIC)]),
        (second, [(-1, UNKNOWN_TOPIC)]),
        ("none-such", [(0, UNKNOWN_TOPIC)]),
        (first, []),
    ]
    assert added((first, [1, 1]), (second, [0])) == [(first, [(1, 0), (1, 0)]), (second, [(0, 0)])]
    described = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
    (state,) = wire.ask(described).transaction_states
    assert {each.topic: each.partitions for each in state.topics} == {first: [1], second: [0]}


def test_markers(wire: Wire, topics: dict[str, UUID]) -> None:
    first, second = topics
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=77,
        producer_epoch=0,
        transaction_result=False,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in ((first, [0, 0, 0]), (second, [1]), (first, [0, 1]))
        ],
        coordinator_epoch=0,
    )
    (answer,) = wire.ask(WriteTxnMarkersRequest(markers=[marker]), 1).markers
    told = {
        topic.name: [(each.partition_index, each.error_code) for each in topic.partitions]
        for topic in answer.topics
    }
    assert told == {first: [(0, 0), (1, 0)], second: [(1, 0)]}
    assert [end_offset(wire, name, partition=index) for name in topics for index in (0, 1)] == [1, 1, 0, 1]


def test_partitions_of_all_topics_of_a_request(wire: Wire, topics: dict[str, UUID], new_name: Name) -> None:
    """As in Kafka they are counted together."""
    names = [new_name("new"), new_name("newer")]
    wide = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in zip(names, (9999, 2), strict=True)
    ]
    answers = wire.ask(CreateTopicsRequest(topics=wide, timeout_ms=1000, validate_only=True)).topics
    assert [answer.error_code for answer in answers] == [POLICY_VIOLATION] * 2
    wide[1].num_partitions = 1
    answers = wire.ask(CreateTopicsRequest(topics=wide, timeout_ms=1000, validate_only=True)).topics
    assert [answer.error_code for answer in answers] == [0, 0]
    for count, code in ((5003, POLICY_VIOLATION), (5002, 0)):
        grown = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count) for name in topics]
        request = CreatePartitionsRequest(topics=grown, timeout_ms=1000, validate_only=True)
        assert {result.error_code for result in wire.ask(request).results} == {code}


def test_many_elections(wire: Wire, topics: dict[str, UUID]) -> None:
    first, _ = topics
    for count, code in ((50_001, INVALID_REQUEST), (50_000, 0)):
        wanted = ElectLeadersRequest.TopicPartitions(topic=first, partitions=[0] * count)
        answer = wire.ask(ElectLeadersRequest(topic_partitions=[wanted], timeout_ms=1000))
        assert answer.error_code == code
