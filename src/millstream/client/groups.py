"""Groups, as an admin sees and changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.client.change import Change
from millstream.client.cluster import Cluster
from millstream.client.coordinators import with_coordinator
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.errors import (
    GroupIdNotFound,
    ProtocolError,
    UnsupportedVersion,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from millstream.protocol.subscription import read_assignment, read_subscription

DEAD = "Dead"
CLASSIC = "classic"
CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group in a list; state and type are empty where the broker is too old to say."""

    name: str
    state: str
    type: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member, what it is subscribed to and what it reads, as far as that can be read."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: list[str] = field(default_factory=list)
    partitions: list[TopicPartition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Group:
    """A group with its members."""

    name: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: list[GroupMember]


async def list_groups(
    cluster: Cluster, deadline: Deadline, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[ListedGroup]:
    """All groups of all brokers, by name."""
    await cluster.refresh([], deadline)
    found: dict[str, ListedGroup] = {}

    async def ask(node_id: int) -> None:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response = await cluster.request(node_id, request, ListGroupsResponse, deadline)
        raise_for(response.error_code, None, f"the groups of broker {node_id}")
        for group in response.groups:
            found[group.group_id] = ListedGroup(
                group.group_id, group.group_state, group.group_type.lower(), group.protocol_type, node_id
            )

    for node_id in list(cluster.metadata.nodes):
        await cluster.retrying(lambda node_id=node_id: ask(node_id), deadline)  # type: ignore[misc]
    return sorted(found.values(), key=lambda group: group.name)


async def describe_group(cluster: Cluster, name: str, deadline: Deadline) -> Group:
    """A group, of either protocol; GroupIdNotFound if there is none."""

    async def attempt(node_id: int) -> Group:
        try:
            return await _describe_consumer_group(cluster, node_id, name, deadline)
        except (GroupIdNotFound, UnsupportedVersion):
            return await _describe_classic_group(cluster, node_id, name, deadline)

    return await with_coordinator(cluster, name, attempt, deadline)


async def _describe_consumer_group(cluster: Cluster, node_id: int, name: str, deadline: Deadline) -> Group:
    request = ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=False)
    response = await cluster.request(node_id, request, ConsumerGroupDescribeResponse, deadline)
    (group,) = response.groups
    raise_for(group.error_code, group.error_message, f"group {name}")
    return Group(
        name,
        group.group_state,
        CONSUMER,
        CONSUMER,
        group.assignor_name,
        node_id,
        [
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.subscribed_topic_names,
                sorted(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in group.members
        ],
    )


async def _describe_classic_group(cluster: Cluster, node_id: int, name: str, deadline: Deadline) -> Group:
    request = DescribeGroupsRequest(groups=[name])
    response = await cluster.request(node_id, request, DescribeGroupsResponse, deadline)
    (group,) = response.groups
    raise_for(group.error_code, group.error_message, f"group {name}")
    if group.group_state == DEAD:
        raise GroupIdNotFound(f"group {name}: {GroupIdNotFound().message}")
    return Group(
        name,
        group.group_state,
        CLASSIC,
        group.protocol_type,
        group.protocol_data,
        node_id,
        [_classic_member(member, group.protocol_type) for member in group.members],
    )


def _classic_member(member: DescribeGroupsResponse.DescribedGroupMember, protocol_type: str) -> GroupMember:
    topics: list[str] = []
    partitions: list[TopicPartition] = []
    if protocol_type == CONSUMER and member.member_metadata:
        try:
            topics = read_subscription(member.member_metadata).topics
            partitions = sorted(
                TopicPartition(topic.topic, index)
                for topic in read_assignment(member.member_assignment).assigned_partitions
                for index in topic.partitions
            )
        except ProtocolError:
            pass  # of a kind of group that only its members understand
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, topics, partitions
    )


async def delete_group(cluster: Cluster, name: str, deadline: Deadline) -> None:
    """Delete a group that has no members, with all its offsets."""
    change = Change(cluster, deadline)

    async def attempt(node_id: int) -> None:
        request = DeleteGroupsRequest(groups_names=[name])
        _, code = await change.ask(
            node_id, request, DeleteGroupsResponse, lambda response: response.results[0].error_code
        )
        if code == GroupIdNotFound.code and change.may_be_done:
            return
        raise_for(code, None, f"group {name}")

    await with_coordinator(cluster, name, attempt, deadline)
