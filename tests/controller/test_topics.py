"""What a topic may be."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from millstream.controller.elections import Rules
from millstream.controller.reassignment import begun
from millstream.controller.topics import NewTopic, check_new_name, more_partitions, new_topic
from millstream.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    TopicAlreadyExists,
)

RACKS: dict[int, str | None] = {1: None, 2: None, 3: None}
ID = UUID(int=7)


def made(wanted: NewTopic) -> list[list[int]]:
    topic = new_topic(wanted, ID, RACKS, default_partitions=4, default_replication_factor=2, random=Random(1))
    assert topic.topic_id == ID
    for partition in topic.partitions:
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert partition.leader_epoch == 0
    return [partition.replicas for partition in topic.partitions]


def test_counts_that_are_not_given_are_the_brokers_defaults() -> None:
    assert [len(replicas) for replicas in made(NewTopic("t"))] == [2, 2, 2, 2]
    assert [len(replicas) for replicas in made(NewTopic("t", 1, 3))] == [3]


def test_an_assignment_is_kept_as_given() -> None:
    assert made(NewTopic("t", assignment={1: [3, 1], 0: [2, 3]})) == [[2, 3], [3, 1]]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewTopic("t", 0), InvalidPartitions),
        (NewTopic("t", -2), InvalidPartitions),
        (NewTopic("t", 1_000_000), InvalidPartitions),
        (NewTopic("t", 1, 0), InvalidReplicationFactor),
        (NewTopic("t", 1, 4), InvalidReplicationFactor),
        (NewTopic("t", 1, assignment={0: [1]}), InvalidRequest),
        (NewTopic("t", assignment={1: [1]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={0: [1], 2: [1]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={0: []}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={0: [1, 1]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={0: [1, 2], 1: [1]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={0: [9]}), InvalidReplicaAssignment),
    ],
)
def test_what_cannot_be_made_is_refused(wanted: NewTopic, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        made(wanted)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "__cluster_metadata"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_new_name(name, [])


def test_names_that_exist_or_collide() -> None:
    check_new_name("a.b", ["ab", "a-b"])
    check_new_name("x" * 249, [])
    with pytest.raises(TopicAlreadyExists):
        check_new_name("a", ["b", "a"])
    with pytest.raises(InvalidTopic, match="collides"):
        check_new_name("a.b", ["a_b"])


def test_partitions_are_added_and_never_taken_away() -> None:
    topic = new_topic(NewTopic("t", 2, 1), ID, RACKS, 1, 1, Random(1))
    added = more_partitions(topic, 5, None, RACKS, Random(2))
    assert [len(partition.replicas) for partition in added] == [1, 1, 1]
    assert more_partitions(topic, 3, [[3]], RACKS, Random(2))[0].replicas == [3]
    for total in (2, 1, 0):
        with pytest.raises(InvalidPartitions):
            more_partitions(topic, total, None, RACKS, Random(1))
    with pytest.raises(InvalidReplicaAssignment):
        more_partitions(topic, 4, [[1]], RACKS, Random(1))
    with pytest.raises(InvalidReplicaAssignment):
        more_partitions(topic, 3, [[1, 2]], RACKS, Random(1))


def test_partitions_that_are_added_during_a_move_have_no_more_replicas_than_the_target() -> None:
    topic = new_topic(NewTopic("t", assignment={0: [1]}), ID, RACKS, 1, 1, Random(1))
    topic.partitions[0] = begun(topic.partitions[0], [2], RACKS.keys(), Rules())
    assert topic.partitions[0].replicas == [2, 1]
    assert [len(each.replicas) for each in more_partitions(topic, 3, None, RACKS, Random(2))] == [1, 1]
    assert more_partitions(topic, 2, [[3]], RACKS, Random(2))[0].replicas == [3]


def test_who_is_away_is_not_in_sync_and_does_not_lead() -> None:
    away: dict[int, str | None] = {4: None, 5: None}
    topic = new_topic(NewTopic("t", 6, 4), ID, RACKS, 1, 1, Random(1), away)
    added = more_partitions(topic, 8, None, RACKS, Random(2), away)
    for partition in [*topic.partitions, *added]:
        assert set(partition.isr) == {1, 2, 3}
        assert partition.leader == partition.isr[0]
        assert len(partition.replicas) == 4
        assert partition.eligible == []
    wanted = NewTopic("t", assignment={0: [4, 2, 3]})
    (given,) = new_topic(wanted, ID, RACKS, 1, 1, Random(1), away).partitions
    assert (given.replicas, given.isr, given.leader) == ([4, 2, 3], [2, 3], 2)
    with pytest.raises(InvalidReplicaAssignment, match="none of its brokers is there"):
        new_topic(NewTopic("t", assignment={0: [4, 5]}), ID, RACKS, 1, 1, Random(1), away)
    with pytest.raises(InvalidReplicaAssignment, match="there is no broker 6"):
        more_partitions(topic, 7, [[1, 4, 5, 6]], RACKS, Random(1), away)
