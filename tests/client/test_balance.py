"""Even placements: what is asked for holds for any cluster, and nothing moves without need."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.client.balance import Placement, balanced
from millstream.errors import InvalidReplicationFactor
from millstream.model import TopicPartition


def after(placement: Placement, moves: Placement) -> dict[TopicPartition, list[int]]:
    return {partition: list(moves.get(partition, replicas)) for partition, replicas in placement.items()}


def spread(counts: Counter[int], brokers: list[int]) -> int:
    numbers = [counts[broker] for broker in brokers]
    return max(numbers) - min(numbers)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Placement, list[int]]:
    old = list(range(1, draw(st.integers(1, 5)) + 1))
    placement = {}
    for topic in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, len(old)))
        for index in range(draw(st.integers(1, 8))):
            replicas = draw(st.permutations(old))[:factor]
            placement[TopicPartition(f"t{topic}", index)] = replicas
    most = max(len(replicas) for replicas in placement.values())
    brokers = draw(st.sets(st.integers(1, 7), min_size=most, max_size=7))
    return placement, sorted(brokers)


@settings(max_examples=200, deadline=None)
@given(clusters())
def test_each_topic_and_the_whole_lie_evenly(cluster: tuple[Placement, list[int]]) -> None:
    placement, brokers = cluster
    result = after(placement, balanced(placement, brokers))
    for partition, replicas in result.items():
        assert len(set(replicas)) == len(replicas) == len(placement[partition])
        assert set(replicas) <= set(brokers)
    for topic in {partition.topic for partition in result}:
        of_topic = [replicas for partition, replicas in result.items() if partition.topic == topic]
        assert spread(Counter(broker for replicas in of_topic for broker in replicas), brokers) <= 1
    assert balanced(result, brokers) == {}


def test_growing_moves_no_more_than_it_must() -> None:
    """Three brokers to five: two fifths of the replicas move, none between the old ones."""
    old = {TopicPartition("t", i): [1 + i % 3, 1 + (i + 1) % 3, 1 + (i + 2) % 3] for i in range(30)}
    moves = balanced(old, [1, 2, 3, 4, 5])
    result = after(old, moves)
    assert Counter(broker for replicas in result.values() for broker in replicas) == dict.fromkeys(
        range(1, 6), 18
    )
    assert Counter(replicas[0] for replicas in result.values()) == dict.fromkeys(range(1, 6), 6)
    arriving = [set(result[partition]) - set(old[partition]) for partition in old]
    assert sum(map(len, arriving)) == 36
    assert set().union(*arriving) == {4, 5}


def test_leaders_even_without_moving_replicas() -> None:
    old = {TopicPartition("t", i): [1, 2, 3] for i in range(9)}
    moves = balanced(old, [1, 2, 3])
    result = after(old, moves)
    assert Counter(replicas[0] for replicas in result.values()) == {1: 3, 2: 3, 3: 3}
    assert all(set(replicas) == {1, 2, 3} for replicas in result.values())


def test_racks_are_kept_apart() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    old = {TopicPartition("t", i): [1, 3] for i in range(8)}
    result = after(old, balanced(old, [1, 2, 3, 4], racks))
    for replicas in result.values():
        assert {racks[broker] for broker in replicas} == {"a", "b"}
    assert Counter(broker for replicas in result.values() for broker in replicas) == {1: 4, 2: 4, 3: 4, 4: 4}


def test_replicas_that_came_to_share_a_rack_are_parted() -> None:
    """Racks were named after the topics were made."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    old = {TopicPartition("t", i): [1, 2] if i % 2 else [4, 3] for i in range(8)}
    result = after(old, balanced(old, [1, 2, 3, 4], racks))
    assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in result.values())
    assert Counter(broker for replicas in result.values() for broker in replicas) == {1: 4, 2: 4, 3: 4, 4: 4}
    assert balanced(result, [1, 2, 3, 4], racks) == {}
    assert balanced({TopicPartition("t", 0): [1, 2, 3]}, [1, 2, 3, 4], racks) == {}  # there is no third rack


def test_fewer_replicas_still_lie_in_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    old = {TopicPartition("t", i): [1, 2, 3] for i in range(9)}
    result = after(old, balanced(old, [1, 2, 3], racks, factor=2))
    assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in result.values())


def test_the_number_of_replicas_may_change() -> None:
    old = {TopicPartition("t", i): [1] for i in range(6)}
    more = after(old, balanced(old, [1, 2, 3], factor=3))
    assert all(sorted(replicas) == [1, 2, 3] for replicas in more.values())
    fewer = after(more, balanced(more, [1, 2, 3], factor=1))
    assert Counter(replicas[0] for replicas in fewer.values()) == {1: 2, 2: 2, 3: 2}
    with pytest.raises(InvalidReplicationFactor):
        balanced(old, [1, 2], factor=3)


def test_a_broker_that_is_named_twice_is_one() -> None:
    placement = {TopicPartition("t", 0): [1]}
    assert balanced(placement, [1, 1, 2], factor=2) == {TopicPartition("t", 0): [1, 2]}
    with pytest.raises(InvalidReplicationFactor):
        balanced(placement, [1, 1, 2], factor=3)
