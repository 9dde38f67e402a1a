"""The assignors: every partition to exactly one subscriber, shared as evenly as subscriptions allow, and
nothing moved without need."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from time import thread_time
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.coordinator.groups.assignor import ASSIGNORS, Assignor
from millstream.coordinator.groups.consumer_member import Partitions
from millstream.coordinator.groups.range_assignor import assign_ranges
from millstream.coordinator.groups.subscriber import Subscriber
from millstream.coordinator.groups.uniform_assignor import assign_uniformly

T = [UUID(int=number) for number in range(1, 7)]
"""Topics."""

Members = dict[str, Subscriber]
Counts = dict[UUID, int]


def size(partitions: Partitions) -> int:
    return sum(len(numbers) for numbers in partitions.values())


def owners(assigned: Mapping[str, Partitions]) -> dict[tuple[UUID, int], str]:
    """Who has each partition; no two may."""
    found: dict[tuple[UUID, int], str] = {}
    for member_id, partitions in assigned.items():
        for topic_id, numbers in partitions.items():
            for number in numbers:
                assert (topic_id, number) not in found
                found[topic_id, number] = member_id
    return found


def members_of(
    subscriptions: Mapping[str, set[UUID]], target: Mapping[str, Partitions] | None = None
) -> Members:
    return {
        member_id: Subscriber(frozenset(topic_ids), (target or {}).get(member_id, {}))
        for member_id, topic_ids in subscriptions.items()
    }


def check(members: Members, counts: Counts, assigned: Mapping[str, Partitions]) -> None:
    """Every partition that somebody reads is with one who reads it; nobody else has anything."""
    assert set(assigned) == set(members)
    read = {topic_id for member in members.values() for topic_id in member.topic_ids if topic_id in counts}
    found = owners(assigned)
    assert set(found) == {(topic_id, number) for topic_id in read for number in range(counts[topic_id])}
    for (topic_id, _), member_id in found.items():
        assert topic_id in members[member_id].topic_ids
    assert all(numbers for partitions in assigned.values() for numbers in partitions.values())


names = st.sampled_from([f"m{number}" for number in range(7)])
topic_counts = st.dictionaries(st.sampled_from(T), st.integers(1, 9))
some_topics = st.sets(st.sampled_from(T))


@st.composite
def groups(draw: st.DrawFn) -> tuple[Members, Counts]:
    """A group in any state: topics that are gone, targets that no longer fit, even ones that overlap."""
    counts = draw(topic_counts)
    is_alike = draw(st.booleans())
    shared = draw(some_topics)
    members: Members = {}
    for member_id in draw(st.sets(names, min_size=1)):
        target = draw(st.dictionaries(st.sampled_from(T), st.frozensets(st.integers(0, 10), min_size=1)))
        topic_ids = shared if is_alike else draw(some_topics)
        instance = draw(st.sampled_from([None, f"i-{member_id}"]))
        members[member_id] = Subscriber(frozenset(topic_ids), target, instance)
    return members, counts


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
@settings(max_examples=100)
@given(group=groups())
def test_assigns_each_partition_once(assign: Assignor, group: tuple[Members, Counts]) -> None:
    members, counts = group
    check(members, counts, assign(members, counts))


@settings(max_examples=100)
@given(group=groups())
def test_uniform_is_at_rest_once_it_has_assigned(group: tuple[Members, Counts]) -> None:
    """A second assignment of the same group moves nothing."""
    members, counts = group
    first = assign_uniformly(members, counts)
    again = {member_id: member._replace(target=first[member_id]) for member_id, member in members.items()}
    assert assign_uniformly(again, counts) == first


def imbalance(members: Members, counts: Counts, assigned: Mapping[str, Partitions]) -> int:
    return sum(size(partitions) ** 2 for partitions in assigned.values())


@st.composite
def small_groups(draw: st.DrawFn) -> tuple[Members, Counts]:
    counts = draw(st.dictionaries(st.sampled_from(T[:3]), st.integers(1, 3), min_size=1))
    members = {}
    for number in range(draw(st.integers(1, 4))):
        topic_ids = draw(st.sets(st.sampled_from(T[:3])))
        target = draw(st.dictionaries(st.sampled_from(T[:3]), st.frozensets(st.integers(0, 3), min_size=1)))
        members[f"m{number}"] = Subscriber(frozenset(topic_ids), target)
    return members, counts


@settings(max_examples=100)
@given(group=small_groups())
def test_uniform_is_as_even_as_can_be(group: tuple[Members, Counts]) -> None:
    """No other assignment has a smaller sum of squares: tried out, all of them."""
    members, counts = group
    partitions = [
        [member_id for member_id, member in members.items() if topic_id in member.topic_ids]
        for topic_id, count in counts.items()
        for _ in range(count)
        if any(topic_id in member.topic_ids for member in members.values())
    ]
    best = min(sum(choice.count(member_id) ** 2 for member_id in members) for choice in product(*partitions))
    assert imbalance(members, counts, assign_uniformly(members, counts)) == best


@settings(max_examples=100)
@given(counts=topic_counts, before=st.sets(names, min_size=1), after=st.sets(names, min_size=1))
def test_uniform_moves_no_more_than_it_must(counts: Counts, before: set[str], after: set[str]) -> None:
    """Members of one subscription come and go: each that stays gives up only what is over its share."""
    everything = set(counts)
    first = assign_uniformly(members_of(dict.fromkeys(before, everything)), counts)
    loads = sorted(map(size, first.values()))
    assert loads[-1] - loads[0] <= 1
    second = assign_uniformly(members_of(dict.fromkeys(after, everything), first), counts)
    loads = sorted(map(size, second.values()))
    assert loads[-1] - loads[0] <= 1
    held, share = owners(first), sum(counts.values()) // len(after)
    for member_id in before & after:
        kept = sum(
            held[partition] == member_id for partition, owner in owners(second).items() if owner == member_id
        )
        assert kept >= min(size(first[member_id]), share)


def test_uniform_gives_the_rest_to_those_that_have_it() -> None:
    """Seven partitions on two members: whoever has four keeps them."""
    target = {"a": {T[0]: frozenset({0, 1, 2})}, "b": {T[0]: frozenset({3, 4, 5, 6})}}
    members = members_of({"a": {T[0]}, "b": {T[0]}}, target)
    assert assign_uniformly(members, {T[0]: 7}) == target


def test_uniform_makes_nothing_anew_for_those_who_keep_what_they_have() -> None:
    """In a large group most do, whoever comes and goes."""
    before = assign_uniformly(members_of({name: {T[0], T[1]} for name in "abcd"}), {T[0]: 6, T[1]: 6})
    members = members_of({name: {T[0], T[1]} for name in "abcde"}, before)
    after = assign_uniformly(members, {T[0]: 7, T[1]: 7})
    check(members, {T[0]: 7, T[1]: 7}, after)
    assert [after[name] is before[name] for name in "abcd"] == [True, True, True, True]
    gone = members_of({name: {T[0], T[1]} for name in "abcd"}, before)
    fewer = assign_uniformly(gone, {T[0]: 6, T[1]: 5})
    check(gone, {T[0]: 6, T[1]: 5}, fewer)
    assert sum(fewer[name] is before[name] for name in "abcd") == 3


def test_uniform_spreads_a_topic_over_new_members() -> None:
    members = members_of({"a": {T[0], T[1]}, "b": {T[0], T[1]}})
    assigned = assign_uniformly(members, {T[0]: 2, T[1]: 2})
    assert all(len(partitions) == 2 for partitions in assigned.values())


def test_uniform_hands_on_from_member_to_member() -> None:
    """`a` can give only to `b`, and `b` only to `c`: all come level all the same."""
    target = {"a": {T[0]: frozenset({0, 1, 2})}, "b": {T[1]: frozenset({0, 1})}, "c": {}}
    members = members_of({"a": {T[0]}, "b": {T[0], T[1]}, "c": {T[1]}}, target)
    assigned = assign_uniformly(members, {T[0]: 3, T[1]: 2})
    assert sorted(map(size, assigned.values())) == [1, 2, 2]


def test_range_cuts_topics_alike() -> None:
    """Three members and two topics of four: the same numbers of both, the first member has one more."""
    members = members_of({name: {T[0], T[1]} for name in "cab"})
    assigned = assign_ranges(members, {T[0]: 4, T[1]: 4})
    assert assigned["a"] == {T[0]: frozenset({0, 1}), T[1]: frozenset({0, 1})}
    assert assigned["b"] == {T[0]: frozenset({2}), T[1]: frozenset({2})}
    assert assigned["c"] == {T[0]: frozenset({3}), T[1]: frozenset({3})}


def test_range_goes_by_instance_ids() -> None:
    """A static member that comes back under another member id has the same range."""
    counts = {T[0]: 3}
    first = assign_ranges(
        {
            "x": Subscriber(frozenset({T[0]}), {}, "one"),
            "y": Subscriber(frozenset({T[0]}), {}, "two"),
            "a": Subscriber(frozenset({T[0]}), {}),
        },
        counts,
    )
    assert first["x"] == {T[0]: frozenset({0})}
    second = assign_ranges(
        {
            "z": Subscriber(frozenset({T[0]}), {}, "one"),
            "y": Subscriber(frozenset({T[0]}), {}, "two"),
            "a": Subscriber(frozenset({T[0]}), {}),
        },
        counts,
    )
    assert second == {"z": first["x"], "y": first["y"], "a": first["a"]}


@settings(max_examples=100)
@given(counts=topic_counts, members=st.sets(names, min_size=1))
def test_range_gives_neighbours(counts: Counts, members: set[str]) -> None:
    assigned = assign_ranges(members_of({name: set(counts) for name in members}), counts)
    for partitions in assigned.values():
        for numbers in partitions.values():
            assert max(numbers) - min(numbers) == len(numbers) - 1
    for topic_id in counts:
        loads = [len(partitions.get(topic_id, ())) for partitions in assigned.values()]
        assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
def test_nothing_to_assign(assign: Assignor) -> None:
    members = members_of({"a": {T[0]}, "b": set()})
    assert assign(members, {}) == {"a": {}, "b": {}}
    assert assign(members_of({"a": set(), "b": set()}), {T[0]: 3}) == {"a": {}, "b": {}}


def test_many_come_to_one_who_has_everything() -> None:
    """With mixed subscriptions; this holds the event loop, so it must not take long."""
    topic_ids = [UUID(int=number + 1) for number in range(100)]
    counts = dict.fromkeys(topic_ids, 100)
    readings = [frozenset(topic_ids[start:end]) for start, end in ((0, 100), (0, 50), (25, 75), (0, 90))]
    first = {"m0": Subscriber(readings[0], {})}
    has = assign_uniformly(first, counts)["m0"]
    assert size(has) == 10_000
    members = {f"m{number}": Subscriber(readings[number % 4], {}) for number in range(1000)}
    members["m0"] = Subscriber(readings[0], has)
    spent = []
    for _ in range(3):  # one may be hit by a collection of all that the tests before have left
        started = thread_time()
        assigned = assign_uniformly(members, counts)
        spent.append(thread_time() - started)
    assert min(spent) < 0.4
    assert {size(partitions) for partitions in assigned.values()} == {10}
    found = owners(assigned)
    assert all(topic_id in members[member_id].topic_ids for (topic_id, _), member_id in found.items())
    assert all(numbers <= has[topic_id] for topic_id, numbers in assigned["m0"].items())
