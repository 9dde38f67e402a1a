"""Every message at every version: a round trip, and the same bytes as kio's."""

import pytest
from hypothesis import HealthCheck, given, settings

from millstream.protocol.messages import (
    REQUESTS,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.schema import Message
from tests.protocol.strategies import CASE_IDS, CASES, kio_class, kio_decode, kio_encode, structs, to_kio

APIS = [
    (0, "Produce", 3, 13),
    (1, "Fetch", 4, 18),
    (2, "ListOffsets", 1, 11),
    (3, "Metadata", 0, 13),
    (8, "OffsetCommit", 2, 10),
    (9, "OffsetFetch", 1, 10),
    (10, "FindCoordinator", 0, 6),
    (11, "JoinGroup", 0, 9),
    (12, "Heartbeat", 0, 4),
    (13, "LeaveGroup", 0, 5),
    (14, "SyncGroup", 0, 5),
    (15, "DescribeGroups", 0, 6),
    (16, "ListGroups", 0, 5),
    (17, "SaslHandshake", 0, 1),
    (18, "ApiVersions", 0, 4),
    (19, "CreateTopics", 2, 7),
    (20, "DeleteTopics", 1, 6),
    (21, "DeleteRecords", 0, 2),
    (22, "InitProducerId", 0, 5),
    (23, "OffsetForLeaderEpoch", 2, 4),
    (24, "AddPartitionsToTxn", 0, 5),
    (25, "AddOffsetsToTxn", 0, 4),
    (26, "EndTxn", 0, 5),
    (27, "WriteTxnMarkers", 1, 2),
    (28, "TxnOffsetCommit", 0, 5),
    (29, "DescribeAcls", 1, 3),
    (30, "CreateAcls", 1, 3),
    (31, "DeleteAcls", 1, 3),
    (32, "DescribeConfigs", 1, 4),
    (33, "AlterConfigs", 0, 2),
    (35, "DescribeLogDirs", 1, 4),
    (36, "SaslAuthenticate", 0, 2),
    (37, "CreatePartitions", 0, 3),
    (42, "DeleteGroups", 0, 2),
    (43, "ElectLeaders", 0, 2),
    (44, "IncrementalAlterConfigs", 0, 1),
    (45, "AlterPartitionReassignments", 0, 1),
    (46, "ListPartitionReassignments", 0, 0),
    (47, "OffsetDelete", 0, 0),
    (50, "DescribeUserScramCredentials", 0, 0),
    (51, "AlterUserScramCredentials", 0, 0),
    (60, "DescribeCluster", 0, 2),
    (61, "DescribeProducers", 0, 0),
    (64, "UnregisterBroker", 0, 0),
    (65, "DescribeTransactions", 0, 0),
    (66, "ListTransactions", 0, 2),
    (68, "ConsumerGroupHeartbeat", 0, 1),
    (69, "ConsumerGroupDescribe", 0, 1),
    (75, "DescribeTopicPartitions", 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (78, "ShareFetch", 1, 2),
    (79, "ShareAcknowledge", 1, 2),
    (90, "DescribeShareGroupOffsets", 0, 1),
    (91, "AlterShareGroupOffsets", 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0),
]
"""What clients and tools of Kafka 4.2 send: key, name, and the versions that are declared."""

few = settings(
    max_examples=12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(("message", "version"), CASES, ids=CASE_IDS)
def test_a_message_survives_the_wire_and_equals_kios(message: type[Message], version: int) -> None:
    oracle = kio_class(message, version)

    @few
    @given(structs(message, version))
    def check(sent: Message) -> None:
        encoded = sent.encode(version)
        assert message.decode(encoded, version) == sent
        entity = to_kio(sent, oracle)
        assert kio_encode(entity) == encoded
        assert kio_decode(oracle, encoded) == entity

    check()


def test_every_api_that_clients_use_is_declared_in_kafkas_versions() -> None:
    declared = {
        key: (request.__name__.removesuffix("Request"), *request.versions)
        for key, request in REQUESTS.items()
    }
    assert [(key, *declared[key]) for key, *_ in APIS] == APIS


@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_is_millstreams_own_of_log_dirs_survives_the_wire(version: int) -> None:
    asked = DescribeLogDirsRequest(topics=[], wants_hindrances=True)
    assert DescribeLogDirsRequest.decode(asked.encode(version), version) == asked
    bad = DescribeLogDirsResponse.DamagedTopic(name="t", partitions=[0, 3])
    result = DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir="/a", topics=[], is_full=True, damaged=[bad]
    )
    sent = DescribeLogDirsResponse(results=[result])
    assert DescribeLogDirsResponse.decode(sent.encode(version), version) == sent


def test_what_is_millstreams_own_of_changed_lists_survives_the_wire() -> None:
    for inherited in (None, "", "a,b"):
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="n", config_operation=2, value="c", inherited=inherited
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="1", configs=[config]
        )
        sent = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        assert IncrementalAlterConfigsRequest.decode(sent.encode(1), 1) == sent
