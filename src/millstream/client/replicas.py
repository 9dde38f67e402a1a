"""Where replicas lie and which of them lead: reassignments, elections, sizes. Each takes a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from millstream.client.cluster import Cluster
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.errors import ElectionNotNeeded, KafkaError, NotController, error_for
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other brokers."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def reassign(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int] | None], deadline: Deadline
) -> dict[TopicPartition, KafkaError | None]:
    """Begin to move partitions to these brokers, the preferred leader first; None cancels a move."""
    topics: dict[str, list[AlterPartitionReassignmentsRequest.ReassignablePartition]] = {}
    for partition, replicas in targets.items():
        topics.setdefault(partition.topic, []).append(
            AlterPartitionReassignmentsRequest.ReassignablePartition(
                partition_index=partition.partition, replicas=None if replicas is None else list(replicas)
            )
        )
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=cluster.try_timeout_ms(deadline),
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(name=name, partitions=parts)
            for name, parts in topics.items()
        ],
    )
    response = await _ask_controller(
        cluster, request, AlterPartitionReassignmentsResponse, deadline, lambda answer: answer.error_code
    )
    raise_for(response.error_code, response.error_message, "reassignment")
    return {
        TopicPartition(topic.name, part.partition_index): _error(part.error_code, part.error_message)
        for topic in response.responses
        for part in topic.partitions
    }


async def list_reassignments(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, Reassignment]:
    """The partitions that are on their way."""
    response = await _ask_controller(
        cluster,
        _all_moves(cluster, deadline),
        ListPartitionReassignmentsResponse,
        deadline,
        lambda answer: answer.error_code,
    )
    return _reassignments(response)


async def reassignments_by(
    cluster: Cluster, broker_id: int, deadline: Deadline
) -> dict[TopicPartition, Reassignment]:
    """The partitions that are on their way, as one broker says that is asked once: the controller."""
    request = _all_moves(cluster, deadline)
    return _reassignments(
        await cluster.request(broker_id, request, ListPartitionReassignmentsResponse, deadline)
    )


def _all_moves(cluster: Cluster, deadline: Deadline) -> ListPartitionReassignmentsRequest:
    return ListPartitionReassignmentsRequest(timeout_ms=cluster.try_timeout_ms(deadline), topics=None)


def _reassignments(response: ListPartitionReassignmentsResponse) -> dict[TopicPartition, Reassignment]:
    raise_for(response.error_code, response.error_message, "reassignments")
    return {
        TopicPartition(topic.name, part.partition_index): Reassignment(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in response.topics
        for part in topic.partitions
    }


async def elect_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition] | None,
    deadline: Deadline,
    *,
    is_unclean: bool = False,
) -> dict[TopicPartition, KafkaError | None]:
    """Have partitions (all, where None) led by their preferred replica, or by any that is alive.

    Gives an error for each that has none; those that were led so already are left out where all were
    asked for, and have no error otherwise.
    """
    results = await hold_elections(cluster, partitions, deadline, is_unclean=is_unclean)
    return {key: None if isinstance(error, ElectionNotNeeded) else error for key, error in results.items()}


async def hold_elections(
    cluster: Cluster,
    partitions: Iterable[TopicPartition] | None,
    deadline: Deadline,
    *,
    is_unclean: bool = False,
) -> dict[TopicPartition, KafkaError | None]:
    """As `elect_leaders`, with ElectionNotNeeded for those that were asked for and led so already."""
    topics: dict[str, list[int]] = {}
    for partition in partitions or ():
        topics.setdefault(partition.topic, []).append(partition.partition)
    request = ElectLeadersRequest(
        election_type=UNCLEAN if is_unclean else PREFERRED,
        timeout_ms=cluster.try_timeout_ms(deadline),
        topic_partitions=None
        if partitions is None
        else [
            ElectLeadersRequest.TopicPartitions(topic=name, partitions=parts)
            for name, parts in topics.items()
        ],
    )
    response = await _ask_controller(
        cluster, request, ElectLeadersResponse, deadline, lambda answer: answer.error_code
    )
    raise_for(response.error_code, None, "election")
    return {
        TopicPartition(topic.topic, part.partition_id): _error(part.error_code, part.error_message)
        for topic in response.replica_election_results
        for part in topic.partition_result
    }


async def unregister_broker(cluster: Cluster, broker_id: int, deadline: Deadline) -> None:
    """Say that a broker, which is not there, will not come back."""
    request = UnregisterBrokerRequest(broker_id=broker_id)
    response = await _ask_controller(
        cluster, request, UnregisterBrokerResponse, deadline, lambda answer: answer.error_code
    )
    raise_for(response.error_code, response.error_message, "unregistration")


async def log_sizes(cluster: Cluster, node_id: int, deadline: Deadline) -> dict[TopicPartition, int]:
    """How many bytes of each partition lie on a broker."""
    response = await cluster.request(
        node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, deadline
    )
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_size
        for folder in response.results
        for topic in folder.topics
        for part in topic.partitions
    }


async def _ask_controller(
    cluster: Cluster, request: Request, answer: type[R], deadline: Deadline, code: Callable[[R], int]
) -> R:
    """Ask the controller, and the next one if it is not any more."""

    async def attempt() -> R:
        response = await cluster.request(await cluster.controller(deadline), request, answer, deadline)
        if code(response) == NotController.code:
            cluster.metadata.controller_id = -1
            raise NotController
        return response

    return await cluster.retrying(attempt, deadline)


def _error(code: int, message: str | None) -> KafkaError | None:
    if not code:
        return None
    kind = error_for(code)
    return kind(message or kind().message)
