"""Changes to topics: create, delete, add partitions. Each takes a deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from millstream.client.change import Change
from millstream.client.cluster import Cluster
from millstream.client.errors import NoSuchTopic, raise_for
from millstream.client.metadata import Topic
from millstream.deadline import Deadline
from millstream.errors import (
    InvalidPartitions,
    LeaderNotAvailable,
    NotController,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID
from millstream.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

BROKER_DEFAULT = -1
"""For a number of partitions or replicas: what the broker is configured to give."""


@dataclass(frozen=True, slots=True)
class Created:
    """A topic as the cluster made it; -1 and no id where the broker is too old to say."""

    name: str
    id: UUID
    partitions: int
    replication_factor: int


async def create_topic(
    cluster: Cluster,
    name: str,
    deadline: Deadline,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
    validate_only: bool = False,
) -> Created:
    """Create a topic and wait until every partition of it has a leader."""
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=BROKER_DEFAULT if assignment else partitions,
                replication_factor=BROKER_DEFAULT if assignment else replication_factor,
                assignments=[
                    CreateTopicsRequest.CreatableReplicaAssignment(
                        partition_index=index, broker_ids=list(broker_ids)
                    )
                    for index, broker_ids in (assignment or {}).items()
                ],
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ],
            )
        ],
        timeout_ms=cluster.try_timeout_ms(deadline),
        validate_only=validate_only,
    )

    change = Change(cluster, deadline)

    async def attempt() -> Created | None:
        node_id = await cluster.controller(deadline)
        response, code = await change.ask(
            node_id, request, CreateTopicsResponse, lambda response: response.topics[0].error_code
        )
        answer = response.topics[0]
        _check_controller(cluster, code)
        if code == TopicAlreadyExists.code and change.may_be_done and not validate_only:
            return None
        raise_for(answer.error_code, answer.error_message, f"topic {name}")
        return Created(name, answer.topic_id, answer.num_partitions, answer.replication_factor)

    created = await cluster.retrying(attempt, deadline)
    if not validate_only:
        topic = await _until_led(cluster, name, deadline)
        if created is None:
            replicas = max((len(each.replicas) for each in topic.partitions.values()), default=BROKER_DEFAULT)
            created = Created(name, topic.id, len(topic.partitions), replicas)
    if created is None:
        raise TopicAlreadyExists(f"topic {name}: {TopicAlreadyExists().message}")
    return created


async def _until_led(cluster: Cluster, name: str, deadline: Deadline, at_least: int = 1) -> Topic:
    """Wait until the cluster shows so many partitions, each with a leader: brokers learn of a change
    one after the other."""

    async def attempt() -> Topic:
        metadata = await cluster.refresh([name], deadline)
        topic = metadata.topic(name)
        if len(topic.partitions) < at_least:
            raise LeaderNotAvailable(f"topic {name} does not show its new partitions yet")
        for partition in topic.partitions.values():
            if partition.leader not in metadata.nodes:
                raise LeaderNotAvailable(f"partition {name}-{partition.index} has no leader yet")
        return topic

    return await cluster.retrying(attempt, deadline)


async def delete_topic(cluster: Cluster, name: str, deadline: Deadline) -> None:
    """Delete a topic and wait until the cluster does not know it any more."""
    change = Change(cluster, deadline)

    async def attempt() -> None:
        node_id = await cluster.controller(deadline)
        connection = await cluster.connection(node_id, deadline)
        request = DeleteTopicsRequest(timeout_ms=cluster.try_timeout_ms(deadline))
        if connection.version_for(DeleteTopicsRequest) >= 6:
            request.topics = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=NO_UUID)]
        else:
            request.topic_names = [name]
        response, code = await change.ask(
            node_id, request, DeleteTopicsResponse, lambda response: response.responses[0].error_code
        )
        answer = response.responses[0]
        _check_controller(cluster, code)
        if code == UnknownTopicOrPartition.code:
            if change.may_be_done:
                return
            raise NoSuchTopic(f"topic {name} does not exist")
        raise_for(answer.error_code, answer.error_message, f"topic {name}")

    await cluster.retrying(attempt, deadline)

    async def is_gone() -> None:
        metadata = await cluster.refresh([name], deadline)
        if name in metadata.topics:
            raise LeaderNotAvailable(f"topic {name} is still being deleted")

    await cluster.retrying(is_gone, deadline)


async def add_partitions(
    cluster: Cluster, name: str, total: int, deadline: Deadline, *, validate_only: bool = False
) -> None:
    """Grow a topic to `total` partitions and wait until each has a leader."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)],
        timeout_ms=cluster.try_timeout_ms(deadline),
        validate_only=validate_only,
    )

    change = Change(cluster, deadline)

    async def attempt() -> None:
        node_id = await cluster.controller(deadline)
        response, code = await change.ask(
            node_id, request, CreatePartitionsResponse, lambda response: response.results[0].error_code
        )
        answer = response.results[0]
        _check_controller(cluster, code)
        if code == UnknownTopicOrPartition.code:
            raise NoSuchTopic(f"topic {name} does not exist")
        if code == InvalidPartitions.code and change.may_be_done and not validate_only:
            known = (await cluster.refresh([name], deadline)).topic(name)
            if len(known.partitions) == total:
                return
        raise_for(answer.error_code, answer.error_message, f"topic {name}")

    await cluster.retrying(attempt, deadline)
    if not validate_only:
        await _until_led(cluster, name, deadline, at_least=total)


def _check_controller(cluster: Cluster, code: int) -> None:
    """After this error the next try asks anew who the controller is."""
    if code == NotController.code:
        cluster.metadata.controller_id = -1
