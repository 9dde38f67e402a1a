"""The consumer protocol on the wire (KIP-848): what is told, what is refused, and who may commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from millstream.protocol.messages import (
    ApiVersionsRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from tests.conftest import Name
from tests.transactional import find_coordinator, until_settled
from tests.wire import Wire, create_topic

UNKNOWN_MEMBER, UNSUPPORTED_VERSION, INVALID_REQUEST = 25, 35, 42
NON_EMPTY_GROUP, GROUP_NOT_FOUND, SUBSCRIBED, FENCED_EPOCH = 68, 69, 86, 110
UNSUPPORTED_ASSIGNOR, STALE_EPOCH, INVALID_REGEX = 112, 113, 128


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire, new_name: Name) -> str:
    name = new_name("topic")
    create_topic(wire, name, 4)
    return name


@pytest.fixture
def group(wire: Wire, new_name: Name) -> str:
    name = new_name("group")
    find_coordinator(wire, name, key_type=0)
    return name


def beat(
    wire: Wire, group: str, member: str, epoch: int, version: int = 1, **fields: Any
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)
    answer = wire.ask(request, version)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def join(wire: Wire, group: str, member: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    values: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
    }
    answer = until_settled(lambda: beat(wire, group, member, 0, **{**values, **fields}))
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def assigned(answer: ConsumerGroupHeartbeatResponse) -> list[int] | None:
    """The partitions in an answer, None if it has no assignment."""
    if answer.assignment is None:
        return None
    return sorted(number for topic in answer.assignment.topic_partitions for number in topic.partitions)


def own(topic_id: UUID, *partitions: int) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    return [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=list(partitions))]


def topic_id_of(wire: Wire, topic: str) -> UUID:
    asked = MetadataRequest.MetadataRequestTopic(name=topic)
    topic_id = wire.ask(MetadataRequest(topics=[asked])).topics[0].topic_id
    assert isinstance(topic_id, UUID)
    return topic_id


def describe(wire: Wire, group: str, version: int = 1) -> ConsumerGroupDescribeResponse.DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    (described,) = wire.ask(request, version).groups
    assert isinstance(described, ConsumerGroupDescribeResponse.DescribedGroup)
    return described


def commit(
    wire: Wire, group: str, member: str, epoch: int, topic: str, *partitions: int, version: int = 9
) -> list[int]:
    """Commit offset 7 everywhere; the error codes."""
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=7, committed_metadata=""
                    )
                    for number in partitions
                ],
            )
        ],
    )
    answer = wire.ask(request, version)
    return [each.error_code for each in answer.topics[0].partitions]


def test_the_feature_is_told(wire: Wire) -> None:
    answer = wire.ask(ApiVersionsRequest(client_software_name="me", client_software_version="1"))
    assert ("group.version", 1) in [(each.name, each.max_version_level) for each in answer.finalized_features]
    assert {68, 69} <= {each.api_key for each in answer.api_keys}


def test_two_members_share(wire: Wire, topic: str, group: str) -> None:
    """Step by step, what Kafka's own broker answers as well."""
    topic_id = topic_id_of(wire, topic)
    one, two = str(uuid4()), str(uuid4())
    first = join(wire, group, one, topic)
    assert (first.error_code, first.error_message, first.member_id) == (0, None, one)
    assert assigned(first) == [0, 1, 2, 3]
    assert first.heartbeat_interval_ms > 0
    epoch = first.member_epoch
    # nothing is new
    quiet = beat(wire, group, one, epoch)
    assert (quiet.member_epoch, quiet.assignment) == (epoch, None)
    second = join(wire, group, two, topic)
    while second.member_epoch == epoch:  # assignments keep a distance
        assert not assigned(second)
        second = beat(wire, group, two, second.member_epoch)
    assert not assigned(second)
    assert second.member_epoch == epoch + 1
    told = beat(wire, group, one, epoch, topic_partitions=own(topic_id, 0, 1, 2, 3))
    assert told.member_epoch == epoch
    kept = assigned(told)
    assert kept is not None
    assert len(kept) == 2
    described = describe(wire, group)
    assert described.group_state == "Reconciling"
    given_up = beat(wire, group, one, epoch, topic_partitions=own(topic_id, *kept))
    assert (given_up.member_epoch, given_up.assignment) == (epoch + 1, None)
    got = beat(wire, group, two, epoch + 1, topic_partitions=[])
    assert assigned(got) == sorted({0, 1, 2, 3} - set(kept))
    described = describe(wire, group)
    epochs = described.group_epoch, described.assignment_epoch
    assert (described.group_state, *epochs) == ("Stable", epoch + 1, epoch + 1)
    assert described.assignor_name == "uniform"
    members = {member.member_id: member for member in described.members}
    assert members[one].member_type == 1
    assert members[one].client_id == "wire"
    assert members[one].subscribed_topic_names == [topic]
    assert [each.topic_name for each in members[one].assignment.topic_partitions] == [topic]
    assert sorted(members[one].target_assignment.topic_partitions[0].partitions) == kept
    left = beat(wire, group, two, -1)
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (0, -1, 0)
    assert beat(wire, group, two, epoch + 1).error_code == UNKNOWN_MEMBER


def test_what_is_refused(wire: Wire, topic: str, group: str) -> None:
    assert beat(wire, group, "m", 3).error_code == GROUP_NOT_FOUND
    assert join(wire, "", "m", topic).error_code == INVALID_REQUEST
    assert join(wire, group, "", topic).error_code == INVALID_REQUEST
    assert join(wire, group, "m", topic, rebalance_timeout_ms=-1).error_code == INVALID_REQUEST
    assert join(wire, group, "m", topic, topic_partitions=None).error_code == INVALID_REQUEST
    assert join(wire, group, "m", subscribed_topic_names=None).error_code == INVALID_REQUEST
    assert join(wire, group, "m", topic, server_assignor="mine").error_code == UNSUPPORTED_ASSIGNOR
    assert join(wire, group, "m", subscribed_topic_regex="(open").error_code == INVALID_REGEX
    assert describe(wire, group).error_code == GROUP_NOT_FOUND
    assert join(wire, group, "m", topic).error_code == 0
    assert beat(wire, group, "m", 7).error_code == FENCED_EPOCH
    assert beat(wire, group, "other", 1).error_code == UNKNOWN_MEMBER
    assert beat(wire, group, "m", -2).error_code == INVALID_REQUEST
    assert beat(wire, group, "m", -3).error_code == INVALID_REQUEST
    assert beat(wire, group, "m", -1).error_code == 0


def test_a_regular_expression(wire: Wire, topic: str, group: str) -> None:
    """It is matched from end to end."""
    regex = f"{topic[:-1]}[{topic[-1]}]"
    answer = join(wire, group, "m", subscribed_topic_names=[], subscribed_topic_regex=regex)
    assert answer.error_code == 0
    while not assigned(answer):
        answer = beat(wire, group, "m", answer.member_epoch)
    assert assigned(answer) == [0, 1, 2, 3]
    (member,) = describe(wire, group).members
    assert member.subscribed_topic_regex == regex
    # a part of the name is no match
    owned = own(topic_id_of(wire, topic), 0, 1, 2, 3)
    answer = beat(
        wire, group, "m", answer.member_epoch, subscribed_topic_regex=topic[1:], topic_partitions=owned
    )
    assert assigned(answer) == []


def test_patterns_that_would_hold_a_broker(wire: Wire, group: str, new_name: Name) -> None:
    """RE2 takes no more time for them than for others; Python's own would take years."""
    create_topic(wire, "a" * 60 + new_name("a"), 1)
    began = time.monotonic()
    answer = join(wire, group, "m", subscribed_topic_names=[], subscribed_topic_regex="(a+)+(a+)+b")
    assert answer.error_code == 0
    assert not assigned(answer)
    assert join(wire, group, "n", subscribed_topic_regex="(a{1000}){1000}").error_code == INVALID_REGEX
    assert join(wire, group, "n", subscribed_topic_regex="(" * 5000).error_code == INVALID_REGEX
    assert time.monotonic() - began < 5


def test_who_may_commit_and_fetch(wire: Wire, topic: str, group: str) -> None:
    epoch = join(wire, group, "m", topic).member_epoch
    assert commit(wire, group, "m", epoch, topic, 0, 1) == [0, 0]
    assert commit(wire, group, "m", epoch + 1, topic, 0) == [STALE_EPOCH]
    assert commit(wire, group, "other", epoch, topic, 0) == [UNKNOWN_MEMBER]
    assert commit(wire, group, "", -1, topic, 0) == [UNKNOWN_MEMBER]
    assert commit(wire, group, "m", epoch, topic, 0, version=8) == [UNSUPPORTED_VERSION]

    def fetch(member: str | None, member_epoch: int) -> tuple[int, list[int]]:
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group, member_id=member, member_epoch=member_epoch, topics=None
        )
        (found,) = wire.ask(OffsetFetchRequest(groups=[asked], require_stable=False), 9).groups
        offsets = [each.committed_offset for topic in found.topics for each in topic.partitions]
        return found.error_code, offsets

    assert fetch("m", epoch) == (0, [7, 7])
    assert fetch(None, -1) == (0, [7, 7])
    assert fetch("m", epoch + 1) == (STALE_EPOCH, [])
    assert fetch("other", epoch) == (UNKNOWN_MEMBER, [])


def test_a_member_commits_what_it_had_before_its_newest_epoch(wire: Wire, topic: str, group: str) -> None:
    """KIP-1251: it has not heard of the epoch yet, but nobody else had the partition since."""
    other_topic = f"{topic}-other"
    create_topic(wire, other_topic, 1)
    epoch = join(wire, group, "m", topic).member_epoch
    answer = beat(wire, group, "m", epoch, subscribed_topic_names=[topic, other_topic])
    while answer.member_epoch == epoch:  # assignments keep a distance
        answer = beat(wire, group, "m", epoch)
    assert assigned(answer) == [0, 0, 1, 2, 3]
    assert commit(wire, group, "m", epoch, topic, 0) == [0]
    assert commit(wire, group, "m", epoch, other_topic, 0) == [STALE_EPOCH]
    assert commit(wire, group, "m", answer.member_epoch, other_topic, 0) == [0]


def test_what_admins_do(wire: Wire, topic: str, group: str) -> None:
    epoch = join(wire, group, "m", topic).member_epoch
    commit(wire, group, "m", epoch, topic, 0)
    listed = wire.ask(ListGroupsRequest(states_filter=[], types_filter=["Consumer"])).groups
    assert [
        (each.protocol_type, each.group_state, each.group_type) for each in listed if each.group_id == group
    ] == [("consumer", "Stable", "consumer")]
    assert group not in [
        each.group_id
        for each in wire.ask(ListGroupsRequest(states_filter=[], types_filter=["classic"])).groups
    ]
    old = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    (described,) = wire.ask(old, 6).groups
    assert (described.error_code, described.group_state) == (GROUP_NOT_FOUND, "Dead")
    assert described.error_message == f"Group {group} is not a classic group."
    (described,) = wire.ask(old, 5).groups
    assert (described.error_code, described.group_state) == (0, "Dead")

    def delete_offset() -> int:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)],
                )
            ],
        )
        code: int = wire.ask(request).topics[0].partitions[0].error_code
        return code

    assert delete_offset() == SUBSCRIBED
    deletion = DeleteGroupsRequest(groups_names=[group])
    assert [each.error_code for each in wire.ask(deletion).results] == [NON_EMPTY_GROUP]
    assert beat(wire, group, "m", -1).error_code == 0
    assert describe(wire, group).group_state == "Empty"
    assert delete_offset() == 0
    # without members it is anybody's
    assert commit(wire, group, "", -1, topic, 1) == [0]
    assert [each.error_code for each in wire.ask(deletion).results] == [0]
    assert describe(wire, group).error_code == GROUP_NOT_FOUND


def test_classic_groups_are_not_described(wire: Wire, topic: str, group: str) -> None:
    """One that only has offsets counts as classic."""
    assert commit(wire, group, "", -1, topic, 0) == [0]
    assert describe(wire, group).error_code == GROUP_NOT_FOUND
    answer = join(wire, group, "m", topic)
    assert answer.error_code == 0
    assert describe(wire, group).group_state == "Stable"
