"""The decisions of leaders and followers, each by itself."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster import rules

Log = list[tuple[int, int]]
"""A log as (epoch, value) of each record."""


def epochs_of(log: Log) -> list[tuple[int, int]]:
    return [
        (epoch, offset) for offset, (epoch, _) in enumerate(log) if offset == 0 or log[offset - 1][0] < epoch
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two logs that elections could have made: an epoch has one leader, and so one value a record."""
    logs: list[Log] = [[], []]
    for epoch in range(draw(st.integers(1, 6))):
        leader = draw(st.integers(0, 1))
        other = 1 - leader
        if draw(st.booleans()):  # the other follows in this epoch, and keeps what both have
            common = next(
                (at for at, (a, b) in enumerate(zip(*logs, strict=False)) if a != b), min(map(len, logs))
            )
            del logs[other][common:]
            is_copied = True
        else:
            is_copied = False
        for _ in range(draw(st.integers(0, 3))):
            logs[leader].append((epoch, len(logs[leader])))
        if is_copied:
            missing = logs[leader][len(logs[other]) :]
            logs[other] += missing[: draw(st.integers(0, len(missing)))]
    return logs[0], logs[1]


@given(histories(), st.integers(0, 3))
def test_a_follower_keeps_exactly_what_it_shares_with_its_leader(history: tuple[Log, Log], more: int) -> None:
    leader, follower = history
    epoch = 1 + max((one for log in history for one, _ in log), default=0)
    leader = leader + [(epoch, len(leader) + at) for at in range(more)]
    epochs = [*[one for one in epochs_of(leader) if one[0] < epoch], (epoch, len(leader) - more)]
    common = next(
        (at for at, (a, b) in enumerate(zip(leader, follower, strict=False)) if a != b),
        min(len(leader), len(follower)),
    )
    for _ in range(20):
        last = follower[-1][0] if follower else rules.UNKNOWN
        told = rules.divergence(epochs, len(leader), last, len(follower)) if follower else None
        if told is None:
            break
        cut = rules.truncation(epochs_of(follower), len(follower), *told)
        assert cut < len(follower)
        follower = follower[:cut]
    else:
        raise AssertionError("it never ended")
    assert follower == leader[:common]


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(st.integers(-1, 20)),
    st.booleans(),
)
def test_the_high_watermark_never_moves_back_and_never_passes_anyone(
    current: int, own_end: int, others: list[int], has_enough: bool
) -> None:
    found = rules.high_watermark(current, own_end, others, has_enough=has_enough)
    assert found >= current
    if found > current:
        assert has_enough
        assert found <= own_end
        assert all(found <= other for other in others)


def test_both_isrs_and_those_about_to_join_count() -> None:
    assert rules.counted([1, 2], None) == {1, 2}
    assert rules.counted([1, 2], [1]) == {1, 2}
    assert rules.counted([1], [1, 3]) == {1, 3}
    assert rules.counted([1], [1, 3], {2}) == {1, 2, 3}


def test_who_may_join() -> None:
    assert rules.may_join(10, 10, 10)
    assert not rules.may_join(9, 10, 0)
    assert not rules.may_join(10, 5, 11)  # it lacks what its leader began with


def test_who_is_out_of_sync() -> None:
    assert rules.is_caught_up(10, 10, float("-inf"), 100.0, 30.0)
    assert rules.is_caught_up(9, 10, 70.0, 100.0, 30.0)
    assert not rules.is_caught_up(9, 10, 69.9, 100.0, 30.0)


def test_isrs_keep_the_order_of_the_replicas() -> None:
    assert rules.with_member([3], 1, [3, 1, 2]) == [3, 1]
    assert rules.with_member([1, 3], 2, [3, 1, 2]) == [3, 1, 2]
    assert rules.without([3, 1, 2], [3], [3, 1, 2]) == [1, 2]


def test_enough_is_never_more_than_there_are() -> None:
    assert rules.has_enough([1], 2, [1])
    assert not rules.has_enough([1], 2, [1, 2, 3])
    assert rules.has_enough([1, 2], 2, [1, 2, 3])


@given(st.integers(0, 20), st.lists(st.integers(-1, 20)))
def test_what_is_acknowledged_is_committed_and_known_where_it_must_be(mark: int, known: list[int]) -> None:
    assert rules.acknowledged(mark, known, min_insync=1) == mark
    found = rules.acknowledged(mark, known, min_insync=2)
    assert found <= mark
    assert all(found <= one for one in known)


@given(histories())
def test_epochs_grow_along_a_log(history: tuple[Log, Log]) -> None:
    for log in history:
        assert all(before < after for before, after in pairwise(epochs_of(log)))
