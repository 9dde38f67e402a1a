"""What an admin sees of a cluster, its log directories and its producers, as plain values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS, Cluster
from millstream.client.coordinators import with_coordinator
from millstream.client.errors import raise_for
from millstream.client.metadata import Node
from millstream.client.offsets import partitions_by_leader
from millstream.deadline import Deadline
from millstream.errors import KafkaError, error_for
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster: its id, its brokers, the one that takes changes, and the features that are in force."""

    id: str
    controller: int
    brokers: list[Node]
    features: dict[str, int]


@dataclass(frozen=True, slots=True)
class LogDir:
    """A folder in which a broker keeps partitions. Sizes in bytes; -1 where the broker does not say."""

    path: str
    error: KafkaError | None
    total_bytes: int
    usable_bytes: int
    sizes: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers. `transaction_start` is -1 where it has none open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_written_ms: int
    coordinator_epoch: int
    transaction_start: int


async def describe_cluster(cluster: Cluster, deadline: Deadline) -> ClusterView:
    async def attempt() -> ClusterView:
        connection = await cluster.any_connection(deadline)
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        response = await connection.request(
            request, DescribeClusterResponse, cluster.try_timeout_ms(deadline)
        )
        raise_for(response.error_code, response.error_message, "the cluster")
        return ClusterView(
            response.cluster_id,
            response.controller_id,
            sorted(
                (Node(each.broker_id, each.host, each.port, each.rack) for each in response.brokers),
                key=lambda node: node.id,
            ),
            dict(connection.finalized_features),
        )

    return await cluster.retrying(attempt, deadline)


async def describe_log_dirs(cluster: Cluster, broker: int, deadline: Deadline) -> list[LogDir]:
    await cluster.refresh([], deadline)

    async def attempt() -> list[LogDir]:
        request = DescribeLogDirsRequest(topics=None)
        response = await cluster.request(broker, request, DescribeLogDirsResponse, deadline)
        raise_for(response.error_code, None, f"the log directories of broker {broker}")
        return [
            LogDir(
                folder.log_dir,
                error_for(folder.error_code)() if folder.error_code else None,
                folder.total_bytes,
                folder.usable_bytes,
                {
                    TopicPartition(topic.name, part.partition_index): part.partition_size
                    for topic in folder.topics
                    for part in topic.partitions
                },
            )
            for folder in response.results
        ]

    return await cluster.retrying(attempt, deadline)


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, list[ActiveProducer]]:
    wanted = list(partitions)

    async def attempt() -> dict[TopicPartition, list[ActiveProducer]]:
        found: dict[TopicPartition, list[ActiveProducer]] = {}
        for leader, led in (await partitions_by_leader(cluster, wanted, deadline)).items():
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, index in led:
                by_topic[topic].append(index)
            request = DescribeProducersRequest(
                topics=[
                    DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
                    for name, indexes in by_topic.items()
                ]
            )
            response = await cluster.request(leader, request, DescribeProducersResponse, deadline)
            for answer in response.topics:
                for part in answer.partitions:
                    where = TopicPartition(answer.name, part.partition_index)
                    if part.error_code:
                        cluster.forget(answer.name)
                    raise_for(part.error_code, part.error_message, f"partition {where}")
                    found[where] = [_producer(each) for each in part.active_producers]
        return found

    return await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)


def _producer(state: DescribeProducersResponse.ProducerState) -> ActiveProducer:
    return ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )


async def remove_members(
    cluster: Cluster,
    group: str,
    deadline: Deadline,
    *,
    member_ids: Iterable[str] = (),
    instance_ids: Iterable[str] = (),
) -> None:
    """Take members out of a classic group, by their ids or, static ones, by their names."""
    identities = [LeaveGroupRequest.MemberIdentity(member_id=each) for each in member_ids]
    identities += [
        LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=each) for each in instance_ids
    ]

    async def attempt(node_id: int) -> None:
        request = LeaveGroupRequest(group_id=group, members=identities)
        response = await cluster.request(node_id, request, LeaveGroupResponse, deadline)
        raise_for(response.error_code, None, f"group {group}")
        for member in response.members:
            name = member.group_instance_id or member.member_id
            raise_for(member.error_code, None, f"member {name} of group {group}")

    await with_coordinator(cluster, group, attempt, deadline)
