"""Replicas are spread evenly over brokers and racks."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller.placement import place
from millstream.errors import InvalidReplicationFactor


@given(
    brokers=st.integers(1, 12),
    factor=st.integers(1, 12),
    partitions=st.integers(1, 200),
    racks=st.integers(1, 4),
    seed=st.integers(),
)
def test_every_partition_has_distinct_replicas_and_leaders_are_even(
    brokers: int, factor: int, partitions: int, racks: int, seed: int
) -> None:
    factor = min(factor, brokers)
    where: dict[int, str | None] = {broker * 3: f"rack-{broker % racks}" for broker in range(brokers)}
    placed = place(partitions, factor, where, Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= where.keys()
        assert len({where[replica] for replica in replicas}) == min(factor, len(set(where.values())))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in where) <= 1


def test_followers_of_one_leader_are_spread_too() -> None:
    placed = place(60, 3, dict.fromkeys(range(6)), Random(1))
    behind_first = Counter(replica for replicas in placed if replicas[0] == 0 for replica in replicas[1:])
    assert set(behind_first) == {1, 2, 3, 4, 5}
    held = Counter(replica for replicas in placed for replica in replicas)
    assert set(held.values()) == {30}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match="there are 2"):
        place(1, 3, {1: None, 2: None}, Random(1))
    with pytest.raises(InvalidReplicationFactor):
        place(1, 0, {1: None}, Random(1))


def test_added_partitions_go_on_where_the_others_ended() -> None:
    placed = place(4, 1, dict.fromkeys(range(4)), Random(3), first=10)
    assert sorted(replicas[0] for replicas in placed) == [0, 1, 2, 3]


@given(
    live=st.integers(1, 6),
    away=st.integers(1, 6),
    factor=st.integers(1, 12),
    partitions=st.integers(1, 60),
    racks=st.integers(1, 4),
    seed=st.integers(),
)
def test_brokers_that_are_away_are_used_only_for_what_is_missing(
    live: int, away: int, factor: int, partitions: int, racks: int, seed: int
) -> None:
    factor = min(factor, live + away)
    there: dict[int, str | None] = {broker: f"rack-{broker % racks}" for broker in range(live)}
    absent: dict[int, str | None] = {broker: f"rack-{broker % racks}" for broker in range(live, live + away)}
    placed = place(partitions, factor, there, Random(seed), absent=absent)
    missing = max(0, factor - live)
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas[: factor - missing]) <= there.keys()  # the leader among them
        assert set(replicas[factor - missing :]) <= absent.keys()
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in there) <= 1
    if not missing:
        assert placed == place(partitions, factor, there, Random(seed))


def test_those_that_are_away_are_taken_in_turn_and_from_racks_not_used_yet() -> None:
    placed = place(30, 3, dict.fromkeys(range(2)), Random(1), absent=dict.fromkeys(range(2, 5)))
    assert Counter(replicas[-1] for replicas in placed) == {2: 10, 3: 10, 4: 10}
    racks: dict[int, str | None] = {3: "a", 4: "b", 5: None, 6: "c"}
    for replicas in place(8, 4, {1: "a", 2: "b"}, Random(1), absent=racks):
        assert sorted(replicas) == [1, 2, 5, 6]


def test_nobody_leads_where_all_are_away() -> None:
    with pytest.raises(InvalidReplicationFactor, match="there are 0, and 3 are away"):
        place(1, 1, {}, Random(1), absent=dict.fromkeys(range(3)))
    with pytest.raises(InvalidReplicationFactor, match="there are 1, and 1 are away"):
        place(1, 3, {1: None}, Random(1), absent={2: None})
