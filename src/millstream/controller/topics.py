"""What a topic may be: requests to create or grow topics, checked and turned into decisions.

Functions of their inputs: no registry, no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from millstream.cluster.metadata import PartitionState, Topic
from millstream.controller.placement import NONE, place
from millstream.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
)
from millstream.model import CLUSTER_METADATA, check_topic_name

MAX_PARTITIONS_A_REQUEST = 10_000

DEFAULT = -1
"""The number of partitions or replicas that means: as the broker is configured."""


@dataclass(slots=True)
class NewTopic:
    """A topic to be created. Either counts, or an assignment of replicas to each partition."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


def check_new_name(name: str, existing: Iterable[str]) -> None:
    """Raise unless a topic of this name may be made beside the existing ones.

    Names that differ in '.' and '_' alone would be one name in metrics, so Kafka refuses the second.
    """
    check_topic_name(name)
    if name == CLUSTER_METADATA:  # its folder is Kafka's: a start would pass it over, with its records
        raise InvalidTopic(f"the topic name {name!r} is that of Apache Kafka's own controllers")
    folded = name.replace(".", "_")
    for other in existing:
        if other == name:
            raise TopicAlreadyExists(f"the topic {name!r} exists already")
        if other.replace(".", "_") == folded and (
            ("." in name or "_" in name) and ("." in other or "_" in other)
        ):
            raise InvalidTopic(f"the topic name {name!r} collides with {other!r}")


def new_topic(
    wanted: NewTopic,
    topic_id: UUID,
    racks: Mapping[int, str | None],
    default_partitions: int,
    default_replication_factor: int,
    random: Random,
    absent: Mapping[int, str | None] = NONE,
) -> Topic:
    """The topic to be made, its replicas placed on brokers that are there; on `absent` ones if need be."""
    if wanted.assignment:
        if wanted.partitions != DEFAULT or wanted.replication_factor != DEFAULT:
            raise InvalidRequest(
                "give either an assignment or the numbers of partitions and replicas, not both"
            )
        placed = check_assignment(wanted.assignment, range(len(wanted.assignment)), racks, absent)
    else:
        count = default_partitions if wanted.partitions == DEFAULT else wanted.partitions
        if count < 1:
            raise InvalidPartitions(f"a topic has at least one partition, not {count}")
        if count > MAX_PARTITIONS_A_REQUEST:
            raise InvalidPartitions(f"at most {MAX_PARTITIONS_A_REQUEST} partitions can be made at once")
        factor = wanted.replication_factor
        if factor == DEFAULT:
            factor = default_replication_factor
        if factor < 1:
            raise InvalidReplicationFactor(f"a replication factor is at least 1, not {factor}")
        placed = place(count, factor, racks, random, absent=absent)
    return Topic(
        wanted.name, topic_id, [_fresh(replicas, racks) for replicas in placed], dict(wanted.configs)
    )


def more_partitions(
    topic: Topic,
    total: int,
    assignments: Sequence[Sequence[int]] | None,
    racks: Mapping[int, str | None],
    random: Random,
    absent: Mapping[int, str | None] = NONE,
) -> list[PartitionState]:
    """The partitions that a topic gains when it is to have `total`.

    Internal topics gain none: which partition a group, or a transactional id, is in depends on their number.
    """
    if topic.is_internal:
        raise InvalidPartitions(f"the number of partitions of {topic.name!r}, an internal topic, is fixed")
    current = len(topic.partitions)
    if total <= current:
        word = "already has" if total == current else "cannot shrink: it has"
        raise InvalidPartitions(f"the topic {topic.name!r} {word} {current} partitions")
    added = total - current
    if added > MAX_PARTITIONS_A_REQUEST:
        raise InvalidPartitions(f"at most {MAX_PARTITIONS_A_REQUEST} partitions can be made at once")
    if assignments is not None:
        if len(assignments) != added:
            raise InvalidReplicaAssignment(
                f"{added} partitions are new, but {len(assignments)} were assigned"
            )
        numbered = dict(enumerate(assignments, current))
        placed = check_assignment(numbered, range(current, total), racks, absent, topic.replication_factor)
    else:
        placed = place(added, topic.replication_factor, racks, random, current, absent)
    return [_fresh(replicas, racks) for replicas in placed]


def check_assignment(
    assignment: Mapping[int, Sequence[int]],
    expected: range,
    racks: Mapping[int, str | None],
    absent: Mapping[int, str | None] = NONE,
    replication_factor: int | None = None,
) -> list[list[int]]:
    """The replica lists in partition order, or InvalidReplicaAssignment."""
    if sorted(assignment) != list(expected):
        raise InvalidReplicaAssignment(f"partitions must be numbered {expected.start} to {expected.stop - 1}")
    factor = replication_factor or len(assignment[expected.start])
    for partition, replicas in assignment.items():
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"partition {partition} has no replica, or one twice")
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"partition {partition} has {len(replicas)} replicas, not {factor}"
            )
        for replica in replicas:
            if replica not in racks and replica not in absent:
                raise InvalidReplicaAssignment(f"partition {partition}: there is no broker {replica}")
        if not any(replica in racks for replica in replicas):
            raise InvalidReplicaAssignment(f"partition {partition}: none of its brokers is there")
    return [list(assignment[partition]) for partition in expected]


def _fresh(replicas: list[int], live: Container[int]) -> PartitionState:
    """A new partition. Who is away is not in sync: it will find that it has to copy (`_racks`)."""
    isr = [replica for replica in replicas if replica in live]
    return PartitionState(replicas, isr, isr[0], 0)
