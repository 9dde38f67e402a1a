"""Offsets of groups in every version of every API, through a socket."""

from __future__ import annotations

import os
import time
from typing import Any
from uuid import UUID, uuid4

import pytest

from millstream.protocol.messages import (
    DeleteGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from tests.behaviour.groups.steps import LOADING, find, leave, stable, versions
from tests.conftest import Name
from tests.wire import Wire, create_topic

INVALID_GROUP = 24
UNKNOWN_TOPIC, ILLEGAL_GENERATION, UNKNOWN_MEMBER, GROUP_NOT_FOUND, UNKNOWN_TOPIC_ID = 3, 22, 25, 69, 100


@pytest.fixture
def topic(wire: Wire, new_name: Name) -> tuple[str, UUID]:
    name = new_name("topic")
    return name, create_topic(wire, name, 2)


def commit(
    wire: Wire, group: str, topic: tuple[str, UUID], version: int, partition: int = 0, **fields: Any
) -> int:
    """Commit offset 7 with a note."""
    place = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=7,
        committed_leader_epoch=fields.pop("leader_epoch", -1),
        committed_metadata="note",
    )
    entry = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic[0], topic_id=topic[1], partitions=[place])
    request = OffsetCommitRequest(group_id=group, topics=[entry], **{"member_id": "", **fields})
    (answered,) = wire.ask(request, version).topics
    assert (answered.topic_id == topic[1]) if version >= 10 else (answered.name == topic[0])
    (answer,) = answered.partitions
    assert answer.partition_index == partition
    code: int = answer.error_code
    return code


def fetch(
    wire: Wire, group: str, topic: tuple[str, UUID] | None, version: int, partitions: list[int] | None = None
) -> list[tuple[int, int, str | None, int]]:
    """Partition, offset, note and error, of a topic or of all."""
    indexes = [0, 1] if partitions is None else partitions
    if version < 8:
        single = OffsetFetchRequest.OffsetFetchRequestTopic
        asked = None if topic is None else [single(name=topic[0], partition_indexes=indexes)]
        answer = wire.ask(OffsetFetchRequest(group_id=group, topics=asked), version)
    else:
        many = OffsetFetchRequest.OffsetFetchRequestTopics
        wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group,
            topics=None
            if topic is None
            else [many(name=topic[0], topic_id=topic[1], partition_indexes=indexes)],
        )
        (answer,) = wire.ask(OffsetFetchRequest(groups=[wanted]), version).groups
        assert answer.group_id == group
    assert answer.error_code == 0
    return [
        (part.partition_index, part.committed_offset, part.metadata, part.error_code)
        for each in answer.topics
        for part in each.partitions
    ]


@pytest.mark.parametrize("version", versions(OffsetCommitRequest))
def test_commit(wire: Wire, group: str, topic: tuple[str, UUID], version: int) -> None:
    assert commit(wire, group, topic, version, leader_epoch=0) == 0
    assert fetch(wire, group, topic, 9) == [(0, 7, "note", 0), (1, -1, "", 0)]
    assert commit(wire, group, topic, version, partition=5) == UNKNOWN_TOPIC
    missing = ("no-such-topic", uuid4())
    code = UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC
    assert commit(wire, group, missing, version) == code
    joined = stable(wire, group)
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert commit(wire, group, topic, version, partition=1, **member) == 0
    assert fetch(wire, group, topic, 9) == [(0, 7, "note", 0), (1, 7, "note", 0)]
    assert commit(wire, group, topic, version) == UNKNOWN_MEMBER
    member["generation_id_or_member_epoch"] = 2
    assert commit(wire, group, topic, version, **member) == ILLEGAL_GENERATION
    nobody = f"{group}-nobody"
    code = GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
    assert commit(wire, nobody, topic, version, **member) == code
    leave(wire, group, joined.member_id)


@pytest.mark.parametrize("version", versions(OffsetFetchRequest))
def test_fetch(wire: Wire, group: str, topic: tuple[str, UUID], version: int) -> None:
    assert fetch(wire, group, topic, version) == [(0, -1, "", 0), (1, -1, "", 0)]
    assert commit(wire, group, topic, 9, partition=1) == 0
    assert fetch(wire, group, topic, version) == [(0, -1, "", 0), (1, 7, "note", 0)]
    assert fetch(wire, group, topic, version, [1, 9]) == [(1, 7, "note", 0), (9, -1, "", 0)]
    if version >= 2:
        assert fetch(wire, group, None, version) == [(1, 7, "note", 0)]
        assert fetch(wire, f"{group}-nobody", None, version) == []
    if version >= 10:
        assert fetch(wire, group, ("", uuid4()), version, [3]) == [(3, -1, "", UNKNOWN_TOPIC_ID)]
    if version >= 8:
        asked = OffsetFetchRequest.OffsetFetchRequestGroup
        groups = [asked(group_id=name, topics=None) for name in (group, f"{group}-nobody")]
        answer = wire.ask(OffsetFetchRequest(groups=groups, require_stable=True), version)
        assert [len(each.topics) for each in answer.groups] == [1, 0]


def test_delete_offsets(wire: Wire, group: str, topic: tuple[str, UUID]) -> None:
    def delete(name: str, *partitions: int) -> tuple[int, list[int]]:
        place = OffsetDeleteRequest.OffsetDeleteRequestPartition
        entry = OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=name, partitions=[place(partition_index=partition) for partition in partitions]
        )
        answer = wire.ask(OffsetDeleteRequest(group_id=group, topics=[entry]))
        return answer.error_code, [part.error_code for each in answer.topics for part in each.partitions]

    assert delete(topic[0], 0)[0] == GROUP_NOT_FOUND
    assert commit(wire, group, topic, 9) == 0
    assert delete("no-such-topic", 0) == (0, [UNKNOWN_TOPIC])
    assert delete(topic[0], 0, 1) == (0, [0, 0])
    assert fetch(wire, group, topic, 9) == [(0, -1, "", 0), (1, -1, "", 0)]


@pytest.mark.skipif("MILLSTREAM_TEST_BOOTSTRAP" in os.environ, reason="looks at the broker from within")
def test_a_hostile_group_name(wire: Wire, topic: tuple[str, UUID]) -> None:
    for name in ("", "a/b", "\x00", "ü" * 1000, "x" * 10_000):
        find(wire, name)
        assert commit(wire, name, topic, 9) == 0
        assert fetch(wire, name, topic, 9)[0] == (0, 7, "note", 0)
    assert commit(wire, "x" * 40_000, topic, 9) == INVALID_GROUP
    listed = {each.group_id for each in wire.ask(ListGroupsRequest()).groups}
    assert {"", "a/b", "\x00"} <= listed


def test_a_group_without_a_name_can_be_deleted(wire: Wire, topic: tuple[str, UUID]) -> None:
    """It can have offsets, as in Kafka, which single ones cannot be deleted of."""
    find(wire, "")
    assert until_committed(wire, "", topic) == 0
    assert wire.ask(OffsetDeleteRequest(group_id="", topics=[])).error_code == INVALID_GROUP
    request = DeleteGroupsRequest(groups_names=[""])
    assert [result.error_code for result in wire.ask(request).results] == [0]
    assert [result.error_code for result in wire.ask(request).results] == [GROUP_NOT_FOUND]


def until_committed(wire: Wire, group: str, topic: tuple[str, UUID]) -> int:
    """Commit as soon as the group's coordinator is in service."""
    deadline = time.monotonic() + 20
    while (code := commit(wire, group, topic, 9)) in LOADING and time.monotonic() < deadline:
        time.sleep(0.05)
    return code
