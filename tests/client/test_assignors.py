"""What the leader of a classic group works out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.client.assignors import (
    ASSIGNORS,
    Member,
    Plan,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    is_cooperative,
)
from millstream.model import TopicPartition


def parts(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def test_range_gives_consecutive_partitions_of_each_topic() -> None:
    members = [Member(name, frozenset({"x", "y"})) for name in ("b", "a")]
    assert assign_range(members, {"x": 3, "y": 2}) == {
        "a": [*parts("x", 0, 1), *parts("y", 0)],
        "b": [*parts("x", 2), *parts("y", 1)],
    }


def test_static_members_come_first_by_their_own_names() -> None:
    members = [Member("m1", frozenset({"x"})), Member("m2", frozenset({"x"}), instance_id="zeta")]
    assert assign_range(members, {"x": 3}) == {"m2": parts("x", 0, 1), "m1": parts("x", 2)}


def test_round_robin_deals_partitions_out_in_turn_to_those_who_want_them() -> None:
    members = [Member("a", frozenset({"x"})), Member("b", frozenset({"x", "y"}))]
    assert assign_round_robin(members, {"x": 3, "y": 2, "z": 9}) == {
        "a": parts("x", 0, 2),
        "b": [*parts("x", 1), *parts("y", 0, 1)],
    }


def settle(members: list[Member], sizes: dict[str, int], generation: int = 1) -> tuple[Plan, int]:
    """Rebalance as members do, each keeping what it has, until nothing moves; and in how many rounds."""
    for round_number in range(1, 10):
        plan = assign_cooperative_sticky(members, sizes)
        held = [partition for partitions in plan.values() for partition in partitions]
        assert len(held) == len(set(held)), "two members read one partition"
        for member in members:
            for other in members:
                if other is not member and other.generation == member.generation:
                    assert not member.owned & frozenset(plan[other.id]) & frozenset(plan[member.id])
        if all(frozenset(plan[member.id]) == member.owned for member in members):
            return plan, round_number
        members[:] = [
            Member(
                member.id,
                member.topics,
                member.instance_id,
                frozenset(plan[member.id]),
                generation + round_number,
            )
            for member in members
        ]
    raise AssertionError("it never settles")


def test_cooperative_sticky_moves_a_partition_in_two_steps() -> None:
    members = [Member("a", frozenset({"x"}), owned=frozenset(parts("x", 0, 1, 2)), generation=1)]
    members.append(Member("b", frozenset({"x"})))
    first = assign_cooperative_sticky(members, {"x": 3})
    assert len(first["a"]) == 2
    assert first["b"] == [], "what a still reads is not b's yet"
    settled, _ = settle(members, {"x": 3})
    assert sorted(map(len, settled.values())) == [1, 2]
    assert set(first["a"]) <= set(settled["a"]), "a keeps what it kept"


def test_of_two_that_claim_a_partition_the_later_generation_is_believed() -> None:
    members = [
        Member("old", frozenset({"x"}), owned=frozenset(parts("x", 0, 1)), generation=3),
        Member("new", frozenset({"x"}), owned=frozenset(parts("x", 0)), generation=4),
    ]
    plan = assign_cooperative_sticky(members, {"x": 2})
    assert plan == {"old": parts("x", 1), "new": parts("x", 0)}


def test_nobody_gets_topics_that_nobody_wants_or_that_are_gone() -> None:
    members = [Member("a", frozenset({"gone"}), owned=frozenset(parts("gone", 0)), generation=1)]
    assert assign_cooperative_sticky(members, {"other": 2}) == {"a": []}
    assert assign_round_robin(members, {"other": 2}) == {"a": []}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_an_empty_world_is_assigned_too(name: str) -> None:
    assert ASSIGNORS[name]([Member("a", frozenset({"x"}))], {}) == {"a": []}


def test_only_a_list_of_cooperative_assignors_is_cooperative() -> None:
    assert is_cooperative(("cooperative-sticky",))
    assert not is_cooperative(("cooperative-sticky", "range"))


groups = st.lists(st.sets(st.sampled_from("xyz"), min_size=1), min_size=1, max_size=5)
worlds = st.dictionaries(st.sampled_from("xyz"), st.integers(1, 7), max_size=3)


@settings(max_examples=150, deadline=None)
@given(subscriptions=groups, sizes=worlds, name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_goes_to_one_member_that_wants_it(
    subscriptions: list[set[str]], sizes: dict[str, int], name: str
) -> None:
    members = [Member(f"m{i}", frozenset(topics)) for i, topics in enumerate(subscriptions)]
    plan = ASSIGNORS[name](members, sizes)
    wanted = frozenset[str]().union(*(member.topics for member in members))
    given_out = sorted(partition for partitions in plan.values() for partition in partitions)
    assert given_out == sorted(
        TopicPartition(topic, index)
        for topic, size in sizes.items()
        if topic in wanted
        for index in range(size)
    )
    for member in members:
        assert all(partition.topic in member.topics for partition in plan[member.id])


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.dictionaries(st.sampled_from("xyz"), st.integers(1, 9), min_size=1),
    before=st.integers(1, 6),
    after=st.integers(1, 6),
)
def test_a_changing_group_settles_evenly_and_moves_little(
    sizes: dict[str, int], before: int, after: int
) -> None:
    topics = frozenset(sizes)
    members = [Member(f"m{i}", topics) for i in range(before)]
    first, _ = settle(members, sizes)
    members = members[:after] + [Member(f"m{i}", topics) for i in range(before, after)]
    second, rounds = settle(members, sizes, generation=20)
    assert rounds <= 3
    loads = [len(partitions) for partitions in second.values()]
    assert max(loads) - min(loads) <= 1
    total = sum(sizes.values())
    kept = sum(len(set(first.get(name, ())) & set(second[name])) for name in second)
    share = -(-total // after)
    could_keep = sum(min(len(first[name]), share) for name in second if name in first)
    assert kept >= could_keep - after
