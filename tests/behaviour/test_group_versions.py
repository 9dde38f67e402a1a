"""Groups and their offsets in every version of every API, through a socket."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from millstream.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from millstream.testing.broker import Broker
from tests.conftest import OUTSIDE, Name
from tests.wire import Wire, create_topic

LOADING = {14, 15, 16}
UNKNOWN_TOPIC, ILLEGAL_GENERATION, INVALID_GROUP, UNKNOWN_MEMBER, REBALANCING = 3, 22, 24, 25, 27
INVALID_REQUEST, NON_EMPTY, GROUP_NOT_FOUND, MEMBER_ID_REQUIRED, UNKNOWN_TOPIC_ID = 42, 68, 69, 79, 100
SESSION_MS = 10_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if OUTSIDE:
        yield OUTSIDE
        return
    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.fixture
def group(wire: Wire, new_name: Name) -> str:
    """A name whose coordinator is in service."""
    name = new_name("group")
    find(wire, name)
    deadline = time.monotonic() + 20
    while describe(wire, name, 5).error_code in LOADING:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return name


def versions(request: type[Any]) -> list[int]:
    lowest, highest = request.versions
    return list(range(lowest, highest + 1))


def find(wire: Wire, name: str, version: int = 6, key_type: int = 0) -> Any:
    """The coordinator, as soon as there is one."""
    request = FindCoordinatorRequest(coordinator_key=name, coordinator_keys=[name], key_type=key_type)
    deadline = time.monotonic() + 20
    while True:
        answer = wire.ask(request, version)
        found = answer.coordinators[0] if version >= 4 else answer
        if found.error_code not in LOADING or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def describe(wire: Wire, name: str, version: int = 6) -> Any:
    return wire.ask(DescribeGroupsRequest(groups=[name], include_authorized_operations=True), version).groups[
        0
    ]


def join_request(group: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00")
        ],
        **fields,
    )


def join(wire: Wire, group: str, version: int = 9, **fields: Any) -> Any:
    """Join as a client of this version does."""
    answer = wire.ask(join_request(group, **fields), version)
    if answer.error_code == MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = wire.ask(join_request(group, answer.member_id, **fields), version)
    return answer


def sync_request(group: str, joined: Any, **fields: Any) -> SyncGroupRequest:
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
    )


def stable(wire: Wire, group: str) -> Any:
    """A group of one; what it was told when it joined."""
    joined = join(wire, group)
    assert wire.ask(sync_request(group, joined)).error_code == 0
    return joined


def leave(wire: Wire, group: str, *member_ids: str) -> None:
    members = [LeaveGroupRequest.MemberIdentity(member_id=member_id) for member_id in member_ids]
    wire.ask(LeaveGroupRequest(group_id=group, members=members))


# Members


@pytest.mark.parametrize("version", versions(FindCoordinatorRequest))
def test_find_coordinator(wire: Wire, bootstrap: str, group: str, version: int) -> None:
    found = find(wire, group, version)
    assert found.error_code == 0
    assert f"{found.host}:{found.port}" == bootstrap
    if version >= 1:
        assert find(wire, group, version, key_type=9).error_code == INVALID_REQUEST
    if version >= 4:
        keys = [group, f"{group}-2", f"{group}-3"]
        answer = wire.ask(FindCoordinatorRequest(coordinator_key="", coordinator_keys=keys), version)
        assert [(each.key, each.error_code) for each in answer.coordinators] == [(key, 0) for key in keys]


@pytest.mark.parametrize("version", versions(JoinGroupRequest))
def test_join(wire: Wire, group: str, version: int) -> None:
    answer = wire.ask(join_request(group), version)
    if version >= 4:
        assert (answer.error_code, answer.generation_id, answer.members) == (MEMBER_ID_REQUIRED, -1, [])
        assert answer.member_id.startswith("wire-")
        answer = wire.ask(join_request(group, answer.member_id), version)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id
    assert [member.member_id for member in answer.members] == [answer.member_id]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    unknown = wire.ask(join_request(group, "who"), version)
    assert (unknown.error_code, unknown.member_id) == (UNKNOWN_MEMBER, "who")
    assert wire.ask(join_request(""), version).error_code == INVALID_GROUP
    leave(wire, group, answer.member_id)


@pytest.mark.parametrize("version", versions(SyncGroupRequest))
def test_sync(wire: Wire, group: str, version: int) -> None:
    joined = join(wire, group)
    joined.generation_id += 1
    assert wire.ask(sync_request(group, joined), version).error_code == ILLEGAL_GENERATION
    joined.generation_id -= 1
    answer = wire.ask(sync_request(group, joined), version)
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        for wrong in ({"protocol_type": "connect"}, {"protocol_name": None}, {"protocol_type": None}):
            refused = wire.ask(sync_request(group, joined, **wrong), version)
            assert (refused.error_code, refused.assignment) == (23, b"")
    leave(wire, group, joined.member_id)


@pytest.mark.parametrize("version", versions(HeartbeatRequest))
def test_heartbeat(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def beat(member_id: str, generation: int) -> int:
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        code: int = wire.ask(request, version).error_code
        return code

    assert beat(joined.member_id, 1) == 0
    assert beat(joined.member_id, 2) == ILLEGAL_GENERATION
    assert beat("who", 1) == UNKNOWN_MEMBER
    leave(wire, group, joined.member_id)
    assert beat(joined.member_id, 1) == UNKNOWN_MEMBER


@pytest.mark.parametrize("version", versions(LeaveGroupRequest))
def test_leave(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def go(member_id: str) -> list[int]:
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        request = LeaveGroupRequest(group_id=group, member_id=member_id, members=[identity])
        answer = wire.ask(request, version)
        if version < 3:
            return [answer.error_code]
        assert answer.error_code == 0
        return [member.error_code for member in answer.members]

    assert go("who") == [UNKNOWN_MEMBER]
    assert go(joined.member_id) == [0]
    assert describe(wire, group).group_state == "Empty"


def test_a_newcomer_is_answered_after_the_others_came_back(wire: Wire, bootstrap: str, group: str) -> None:
    first = stable(wire, group)
    with Wire(bootstrap) as second:
        given = second.ask(join_request(group)).member_id
        second.send(join_request(group, given))
        deadline = time.monotonic() + 10
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=first.member_id)
        while wire.ask(beat).error_code != REBALANCING:
            assert time.monotonic() < deadline
        again = wire.ask(join_request(group, first.member_id))
        _, other = second.receive()
        assert (again.generation_id, other.generation_id) == (2, 2)
        assert {member.member_id for member in again.members} == {first.member_id, given}
        second.send(sync_request(group, other))
        assert wire.ask(sync_request(group, again)).error_code == 0
        _, synced = second.receive()
        assert (synced.error_code, synced.assignment) == (0, b"")
    leave(wire, group, first.member_id, given)


# What admins ask


@pytest.mark.parametrize("version", versions(DescribeGroupsRequest))
def test_describe(wire: Wire, group: str, version: int) -> None:
    missing = describe(wire, group, version)
    assert (missing.group_state, missing.members) == ("Dead", [])
    assert missing.error_code == (GROUP_NOT_FOUND if version >= 6 else 0)
    if version >= 6:
        assert missing.error_message == f"Group {group} not found."
    joined = stable(wire, group)
    found = describe(wire, group, version)
    assert (found.error_code, found.group_state, found.protocol_type) == (0, "Stable", "consumer")
    assert found.protocol_data == "range"
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (
        joined.member_id,
        "wire",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"\x00\x00\x00\x00\x00\x00", b"mine")
    if version >= 3:
        assert found.authorized_operations & 1 << 3
    wire.ask(join_request(group, joined.member_id))
    rebalancing = describe(wire, group, version)
    assert (rebalancing.group_state, rebalancing.protocol_data) == ("CompletingRebalance", "")
    (member,) = rebalancing.members
    assert (member.member_metadata, member.member_assignment) == (b"", b"mine")
    leave(wire, group, joined.member_id)
    empty = describe(wire, group, version)
    assert (empty.group_state, empty.protocol_type, empty.members) == ("Empty", "consumer", [])


@pytest.mark.parametrize("version", versions(ListGroupsRequest))
def test_list(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def listed(**filters: Any) -> list[Any]:
        answer = wire.ask(ListGroupsRequest(**filters), version)
        assert answer.error_code == 0
        return [each for each in answer.groups if each.group_id == group]

    (found,) = listed()
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
        assert len(listed(states_filter=["stable", "Empty"])) == 1
        assert listed(states_filter=["Empty"]) == []
    if version >= 5:
        assert found.group_type.lower() == "classic"
        assert len(listed(types_filter=["Classic"])) == 1
        assert listed(types_filter=["consumer"]) == []
    leave(wire, group, joined.member_id)


@pytest.mark.parametrize("version", versions(DeleteGroupsRequest))
def test_delete(wire: Wire, group: str, version: int) -> None:
    joined = stable(wire, group)

    def delete() -> int:
        answer = wire.ask(DeleteGroupsRequest(groups_names=[group]), version)
        code: int = answer.results[0].error_code
        return code

    assert delete() == NON_EMPTY
    leave(wire, group, joined.member_id)
    assert delete() == 0
    assert delete() == GROUP_NOT_FOUND


# Offsets


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
    listed = {each.group_id for each in wire.ask(ListGroupsRequest()).groups}
    assert {"", "a/b", "\x00"} <= listed
