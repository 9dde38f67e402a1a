"""Topics and configs by raw requests: what strict clients look at in the answers, and requests that clash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from millstream.model import NO_UUID
from millstream.protocol.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from tests.conftest import Name
from tests.processes import BrokerProcess, until
from tests.wire import Wire, create_topic

INVALID_TOPIC, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR = 17, 36, 37, 38
INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST = 39, 40, 42
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
Creatable = CreateTopicsRequest.CreatableTopic


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


def creation(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> Creatable:
    return Creatable(name=name, num_partitions=partitions, replication_factor=replicas, **more)


def described(
    wire: Wire,
    name: str,
    kind: int = TOPIC,
    version: int = 4,
    keys: list[str] | None = None,
    *,
    docs: bool = False,
) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=docs)
    (result,) = wire.ask(request, version).results
    return result


@pytest.mark.parametrize("version", range(2, 8))
def test_creation_at_every_version(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name("created")
    config = CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="60000")
    request = CreateTopicsRequest(topics=[creation(topic, 2, configs=[config])], timeout_ms=10_000)
    (answer,) = wire.ask(request, version).topics
    assert (answer.name, answer.error_code) == (topic, 0)
    assert not answer.error_message
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor) == (2, 1)
        values = {
            entry.name: entry.value for entry in answer.configs
        }  # never null: the Java client would fail
        assert values["retention.ms"] == "60000"
        assert values["cleanup.policy"] == "delete"
    if version >= 7:
        assert answer.topic_id != NO_UUID
    (again,) = wire.ask(request, version).topics
    assert again.error_code == TOPIC_ALREADY_EXISTS
    assert again.error_message


def test_a_topic_named_twice_in_one_request(wire: Wire, new_name: Name) -> None:
    topic, other = new_name("twice"), new_name("once")
    request = CreateTopicsRequest(
        topics=[creation(topic), creation(other), creation(topic)], timeout_ms=10_000
    )
    codes: dict[str, int] = {}
    for answer in wire.ask(request).topics:
        codes[answer.name] = answer.error_code
    assert codes == {topic: INVALID_REQUEST, other: 0}


def test_names_that_metrics_could_not_tell_apart(wire: Wire, new_name: Name) -> None:
    base = new_name("dots")
    create_topic(wire, f"{base}.a_b")
    (answer,) = wire.ask(CreateTopicsRequest(topics=[creation(f"{base}_a.b")], timeout_ms=10_000)).topics
    assert answer.error_code == INVALID_TOPIC


def test_assignments_must_make_sense(wire: Wire, new_name: Name) -> None:
    broker_id = wire.ask(MetadataRequest(topics=[])).brokers[0].node_id
    assignment = CreateTopicsRequest.CreatableReplicaAssignment

    def code(*places: tuple[int, list[int]], partitions: int = -1, replicas: int = -1) -> int:
        assignments = [assignment(partition_index=index, broker_ids=ids) for index, ids in places]
        topic = creation(new_name("assigned"), partitions, replicas, assignments=assignments)
        (answer,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        error: int = answer.error_code
        return error

    assert code((0, [broker_id]), (1, [broker_id])) == 0
    assert code((0, [broker_id]), (2, [broker_id])) == INVALID_REPLICA_ASSIGNMENT
    assert code((0, [broker_id + 5])) == INVALID_REPLICA_ASSIGNMENT
    assert code((0, [broker_id, broker_id])) == INVALID_REPLICA_ASSIGNMENT
    assert code((0, [])) == INVALID_REPLICA_ASSIGNMENT
    assert code((0, [broker_id]), partitions=1, replicas=1) == INVALID_REQUEST


def test_numbers_that_make_no_topic(wire: Wire, new_name: Name) -> None:
    cases = {(0, 1): INVALID_PARTITIONS, (-2, 1): INVALID_PARTITIONS, (1, 0): INVALID_REPLICATION_FACTOR}
    for (partitions, replicas), expected in cases.items():
        request = CreateTopicsRequest(
            topics=[creation(new_name("n"), partitions, replicas)], timeout_ms=10_000
        )
        assert wire.ask(request).topics[0].error_code == expected


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_at_every_version(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name("more")
    create_topic(wire, topic)
    entry = CreatePartitionsRequest.CreatePartitionsTopic

    def grow(count: int, name: str = topic) -> list[tuple[str, int]]:
        request = CreatePartitionsRequest(
            topics=[entry(name=name, count=count)], timeout_ms=10_000, validate_only=False
        )
        return [(result.name, result.error_code) for result in wire.ask(request, version).results]

    assert grow(3) == [(topic, 0)]
    assert grow(3) == [(topic, INVALID_PARTITIONS)]
    assert grow(2) == [(topic, INVALID_PARTITIONS)]
    missing = new_name("missing")
    assert grow(2, missing) == [(missing, 3)]


@pytest.mark.parametrize("version", range(1, 7))
def test_deletion_at_every_version(wire: Wire, new_name: Name, version: int) -> None:
    topic, missing = new_name("deleted"), new_name("missing")
    create_topic(wire, topic)
    state = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(
        topic_names=[topic, missing],
        topics=[state(name=topic, topic_id=NO_UUID), state(name=missing, topic_id=NO_UUID)],
        timeout_ms=10_000,
    )
    codes = {result.name: result.error_code for result in wire.ask(request, version).responses}
    assert codes == {topic: 0, missing: 3}


@pytest.mark.parametrize("version", range(1, 5))
def test_configs_are_described_at_every_version(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name("described")
    create_topic(wire, topic, flush_ms="1234")
    result = described(wire, topic, version=version)
    assert (result.error_code, result.error_message, result.resource_name) == (0, "", topic)
    entries = {entry.name: entry for entry in result.configs}
    assert len(entries) > 30
    entry = entries["flush.ms"]
    assert (entry.value, entry.config_source, entry.read_only, entry.is_sensitive) == (
        "1234",
        1,
        False,
        False,
    )
    synonym = entry.synonyms[0]
    assert (synonym.name, synonym.value, synonym.source) == ("flush.ms", "1234", 1)
    (only,) = described(wire, topic, version=version, keys=["segment.ms"]).configs
    assert (only.name, only.value, only.config_source) == ("segment.ms", "604800000", 5)
    unknown_key = described(wire, topic, version=version, keys=["no.such.key"])
    assert (unknown_key.error_code, unknown_key.configs) == (0, [])
    unknown_topic = described(wire, topic + "-missing", version=version)
    assert (unknown_topic.error_code, unknown_topic.configs) == (3, [])


def test_every_config_has_a_documentation_and_a_type(wire: Wire, new_name: Name) -> None:
    topic = new_name("documented")
    create_topic(wire, topic)
    broker_id = str(wire.ask(MetadataRequest(topics=[])).brokers[0].node_id)
    for result in (described(wire, topic, docs=True), described(wire, broker_id, BROKER, docs=True)):
        assert result.error_code == 0
        assert len(result.configs) > 30
        for entry in result.configs:
            assert entry.documentation, entry.name
            assert 1 <= entry.config_type <= 9, entry.name
    types = {entry.name: entry.config_type for entry in described(wire, topic).configs}
    assert (types["preallocate"], types["compression.type"], types["segment.bytes"]) == (1, 2, 3)
    assert (types["retention.ms"], types["min.cleanable.dirty.ratio"], types["cleanup.policy"]) == (5, 6, 7)
    names = {entry.name for entry in described(wire, broker_id, BROKER).configs}
    assert {"advertised.listeners", "node.id", "log.dirs", "num.partitions"} <= names


def test_a_broker_says_which_addresses_it_advertises(broker_process: Callable[..., BrokerProcess]) -> None:
    """Also where none are configured."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        broker_id = str(wire.ask(MetadataRequest(topics=[])).brokers[0].node_id)
        (entry,) = described(wire, broker_id, BROKER, keys=["advertised.listeners"]).configs
        assert entry.value == f"PLAINTEXT://{broker.bootstrap}"


def test_a_broker_that_is_not_there(wire: Wire) -> None:
    assert described(wire, "4711", BROKER).error_code == INVALID_REQUEST
    assert described(wire, "not-a-number", BROKER).error_code == INVALID_REQUEST


def test_configs_of_the_past_are_unknown(wire: Wire, new_name: Name) -> None:
    config = CreateTopicsRequest.CreatableTopicConfig(name="message.timestamp.difference.max.ms", value="1")
    request = CreateTopicsRequest(topics=[creation(new_name("old"), configs=[config])], timeout_ms=10_000)
    assert wire.ask(request).topics[0].error_code == INVALID_CONFIG


def alter(
    wire: Wire, topic: str, *changes: tuple[str, int, str | None], version: int = 1
) -> tuple[int, str | None]:
    entries = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC, resource_name=topic, configs=entries
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    (answer,) = wire.ask(request, version).responses
    return answer.error_code, answer.error_message


def overrides(wire: Wire, topic: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in described(wire, topic).configs if entry.config_source == 1}


def has_overrides(wire: Wire, topic: str, expected: dict[str, str]) -> bool:
    return overrides(wire, topic) == expected


@pytest.mark.parametrize("version", [0, 1])
def test_steps_of_change(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name("steps")
    create_topic(wire, topic)

    def becomes(expected: dict[str, str]) -> None:
        until(partial(has_overrides, wire, topic, expected), 10, f"overrides {expected}")

    assert (
        alter(wire, topic, ("flush.ms", SET, "5"), ("cleanup.policy", APPEND, "compact"), version=version)[0]
        == 0
    )
    becomes({"flush.ms": "5", "cleanup.policy": "delete,compact"})
    assert alter(wire, topic, ("cleanup.policy", SUBTRACT, "delete"), version=version)[0] == 0
    becomes({"flush.ms": "5", "cleanup.policy": "compact"})
    assert alter(wire, topic, ("cleanup.policy", APPEND, "compact"), version=version)[0] == 0
    becomes({"flush.ms": "5", "cleanup.policy": "compact"})  # what is there is not added again
    assert (
        alter(wire, topic, ("flush.ms", DELETE, None), ("cleanup.policy", DELETE, None), version=version)[0]
        == 0
    )
    becomes({})


def test_wrong_steps_change_nothing(wire: Wire, new_name: Name) -> None:
    topic = new_name("wrong")
    create_topic(wire, topic)
    for changes in (
        [("flush.ms", SET, "5"), ("no.such.key", SET, "1")],
        [("flush.ms", SET, "soon")],
        [("flush.ms", APPEND, "5")],
        [("flush.ms", SET, None)],
        [("cleanup.policy", APPEND, "burn")],
        [("min.insync.replicas", SET, "0")],
    ):
        code, message = alter(wire, topic, *changes)
        assert code in (INVALID_CONFIG, INVALID_REQUEST), changes
        assert message, changes
    code, _ = alter(wire, topic, ("flush.ms", SET, "5"), ("flush.ms", DELETE, None))
    assert code == INVALID_REQUEST
    assert overrides(wire, topic) == {}


def test_the_old_request_replaces_everything(wire: Wire, new_name: Name) -> None:
    topic = new_name("replaced")
    create_topic(wire, topic, flush_ms="5", segment_ms="70000")
    for version in range(3):
        entry = AlterConfigsRequest.AlterableConfig(name="flush.messages", value=str(version + 10))
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC, resource_name=topic, configs=[entry]
        )
        for validate_only in (True, False):
            before = overrides(wire, topic)
            request = AlterConfigsRequest(resources=[resource], validate_only=validate_only)
            (answer,) = wire.ask(request, version).responses
            assert answer.error_code == 0
            if validate_only:
                assert overrides(wire, topic) == before
        expected = {"flush.messages": str(version + 10)}
        until(partial(has_overrides, wire, topic, expected), 30, "replaced")
