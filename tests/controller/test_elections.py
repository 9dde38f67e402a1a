"""Who leads, who is in sync: the decisions alone, over every state that can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.metadata import PartitionState
from millstream.controller.elections import (
    Rules,
    after_changes,
    elected,
    preferred,
    settled,
    stepping_down,
    uncleanly,
    with_isr,
    without_damaged,
)
from millstream.controller.isr import Member, Proposal, altered
from millstream.controller.reassignment import begun, cancelled, check_target, finished, is_moving
from millstream.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaError,
    NoReassignmentInProgress,
    NotController,
    PreferredLeaderNotAvailable,
)

BROKERS = (1, 2, 3, 4)
brokers = st.frozensets(st.sampled_from(BROKERS))


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """Any state that a partition of up to four replicas can be in."""
    replicas = draw(st.permutations(BROKERS))[: draw(st.integers(1, 4))]
    kinds = st.sampled_from(["isr", "eligible", "doubted", "neither"])
    split = list(zip(replicas, draw(st.lists(kinds, min_size=4, max_size=4)), strict=False))
    isr, eligible, doubted = (
        [each for each, kind in split if kind == wanted] for wanted in ("isr", "eligible", "doubted")
    )
    if not isr and not doubted:
        isr, eligible = [replicas[0]], [each for each in eligible if each != replicas[0]]
    leader = draw(st.sampled_from([-1, *isr]))
    return PartitionState(replicas, isr, leader, draw(st.integers(0, 5)), 3, [], [], eligible, doubted)


rules = st.builds(Rules, st.integers(1, 3), st.booleans())


def check(state: PartitionState) -> None:
    """What holds of every state."""
    assert state.leader == -1 or state.leader in state.isr
    assert set(state.isr) <= set(state.replicas)
    assert set(state.eligible) <= set(state.replicas) - set(state.isr)
    assert set(state.doubted) <= set(state.replicas) - set(state.isr) - set(state.eligible)
    assert state.isr or state.doubted
    assert len(set(state.isr)) == len(state.isr)


@given(states(), brokers, brokers, rules)
def test_brokers_that_come_and_go_leave_a_sound_state(
    state: PartitionState, live: frozenset[int], stopping: frozenset[int], rule: Rules
) -> None:
    candidates = live - stopping
    after = after_changes(state, live, candidates, rule)
    check(after)
    assert after_changes(after, live, candidates, rule) == after
    assert after.leader == -1 or after.leader in candidates
    if candidates & (set(state.isr) | set(state.eligible)):
        assert after.leader != -1
    if not rule.allows_unclean and (state.isr or state.eligible):
        assert set(after.isr) <= set(state.isr) | set(state.eligible)
    elif not rule.allows_unclean:  # of several that are doubted nobody leads before they are compared
        assert after.leader == -1
    assert after.leader_epoch - state.leader_epoch == (after.leader != state.leader)


@given(states(), brokers, st.data(), rules)
def test_who_may_have_lost_records_leads_only_if_nobody_else_could(
    state: PartitionState, live: frozenset[int], data: st.DataObject, rule: Rules
) -> None:
    unclean = frozenset(data.draw(st.frozensets(st.sampled_from(sorted(live))))) if live else frozenset()
    after = after_changes(state, live, live, replace(rule, allows_unclean=False), unclean=unclean)
    check(after)
    trusted = (set(state.isr) | set(state.eligible)) - unclean
    if after.leader in unclean:
        assert not trusted
    if trusted:
        assert not unclean & set(after.isr)
        assert set(after.isr) | set(after.eligible)
    if unclean & (set(state.isr) | set(state.eligible)) and after.leader != -1:
        assert after.leader_epoch > state.leader_epoch


def test_the_next_leader_is_the_first_in_sync_in_the_list() -> None:
    state = PartitionState([3, 1, 2], [1, 2, 3], 3, 7)
    after = after_changes(state, {1, 2}, {1, 2}, Rules())
    assert (after.leader, after.isr, after.leader_epoch) == (1, [1, 2], 8)
    last = after_changes(after, {2}, {2}, Rules())
    assert (last.leader, last.isr) == (2, [2])
    nobody = after_changes(last, {1, 3}, {1, 3}, Rules())
    assert (nobody.leader, nobody.isr) == (-1, [2])
    back = after_changes(nobody, {1, 2, 3}, {1, 2, 3}, Rules())
    assert (back.leader, back.isr) == (2, [2])


def test_unclean_election_only_where_the_topic_asks_for_it() -> None:
    state = PartitionState([1, 2, 3], [1], 1, 0)
    assert after_changes(state, {2, 3}, {2, 3}, Rules()).leader == -1
    after = after_changes(state, {2, 3}, {2, 3}, Rules(allows_unclean=True))
    assert (after.leader, after.isr) == (2, [2])


def test_who_left_a_too_small_isr_may_lead_until_commits_go_on() -> None:
    rule = Rules(min_isr=2)
    state = PartitionState([1, 2, 3], [1, 2, 3], 1, 0)
    two = after_changes(state, {1, 2}, {1, 2}, rule)
    assert (two.isr, two.eligible) == ([1, 2], [])
    one = after_changes(two, {1}, {1}, rule)
    assert (one.leader, one.isr, one.eligible) == (1, [1], [2])
    # 1 fails too. 3 returns and must not lead; 2 may.
    nobody = after_changes(one, {3}, {3}, rule)
    assert (nobody.leader, nobody.isr, nobody.eligible) == (-1, [1], [2])
    other = after_changes(nobody, {2, 3}, {2, 3}, rule)
    assert (other.leader, other.isr, other.eligible) == (2, [2], [1])
    # With two in sync again, whoever is not has fallen behind.
    again = altered(
        replace(other, version=5), Proposal(2, 2, 5, [Member(2, 1), Member(3, 1)]), {2: 1, 3: 1}, set(), rule
    )
    assert (again.isr, again.eligible) == ([2, 3], [])


def test_an_unclean_stop_costs_the_last_in_sync_its_place_while_another_has_everything() -> None:
    rule = Rules(min_isr=2)
    state = PartitionState([1, 2, 3], [1], -1, 4, eligible=[2])
    after = after_changes(state, {1}, {1}, rule, unclean={1})
    assert (after.leader, after.isr, after.eligible, after.doubted) == (-1, [], [2], [1])
    better = after_changes(after, {1, 2}, {1, 2}, rule)
    assert (better.leader, better.isr, better.doubted) == (2, [2], [1])
    assert settled(with_isr(better, [2, 3], rule), rule).doubted == []


def test_where_all_may_have_lost_records_the_longest_log_leads() -> None:
    rule = Rules(min_isr=2)
    state = PartitionState([1, 2, 3], [1, 2, 3], 1, 4)
    first = after_changes(state, {3}, {3}, rule, unclean={3})
    assert (first.leader, first.isr, first.doubted) == (-1, [1, 2], [3])
    both = after_changes(first, {2, 3}, {2, 3}, rule, unclean={2})
    assert (both.leader, both.isr, both.doubted) == (-1, [1], [2, 3])
    every = after_changes(both, {1, 2, 3}, {1, 2, 3}, rule, unclean={1})
    assert (every.leader, every.isr, every.doubted) == (-1, [], [1, 2, 3])
    assert elected(every, {1, 2, 3}, rule, ends={1: (4, 0), 3: (4, 9)}) == every
    after = elected(every, {1, 2, 3}, rule, ends={1: (4, 0), 2: (3, 20), 3: (4, 9)})
    assert (after.leader, after.isr, after.eligible, after.doubted) == (3, [3], [], [1, 2])
    # Whoever is away again is waited for; an operator may do without.
    told = {1: (4, 0), 2: (3, 20)}
    assert elected(every, {1, 2}, rule, ends=told) == every
    assert elected(every, {1, 2}, rule, ends={**told, 3: (4, 9)}) == every
    assert uncleanly(every, {1, 2}, rule, ends=told).leader == 1
    with pytest.raises(EligibleLeadersNotAvailable, match="not all have told"):
        uncleanly(every, {1, 2}, rule, ends={2: (3, 20)})
    # All at once, before anybody noticed that they had gone.
    at_once = after_changes(state, {1, 2, 3}, {1, 2, 3}, rule, unclean={1, 2, 3})
    assert (at_once.leader, at_once.isr, at_once.doubted) == (-1, [], [1, 2, 3])


def test_the_longest_log_counts_alone_when_enough_are_in_sync_with_it() -> None:
    """A leader that is gone again before is compared with the others once more."""
    rule = Rules(min_isr=2)
    state = PartitionState([1, 2, 3], [3], 3, 6, doubted=[1, 2])
    assert settled(state, rule) == state
    again = after_changes(state, {1, 2, 3}, {1, 2, 3}, rule, unclean={3})
    assert (again.leader, again.isr, again.doubted) == (-1, [], [1, 2, 3])
    joined = settled(with_isr(state, [2, 3], rule), rule)
    assert (joined.isr, joined.eligible, joined.doubted) == ([2, 3], [], [])
    # What the leader itself goes by counts.
    assert settled(state, Rules(min_isr=2, min_isrs={3: 1})).doubted == []


def test_a_log_whose_disk_failed_is_not_waited_for_if_enough_others_are_there() -> None:
    rule = Rules(min_isr=2)
    state = PartitionState([1, 2, 3], [], -1, 4, doubted=[1, 2, 3])
    after = elected(state, {2, 3}, rule, ends={1: None, 2: (4, 8), 3: (4, 9)})
    assert (after.leader, after.isr, after.doubted) == (3, [3], [1, 2])
    assert elected(state, {3}, rule, ends={1: None, 3: (4, 9)}) == state  # 2 may come back
    assert elected(state, {3}, rule, ends={1: None, 2: None, 3: (4, 9)}) == state  # one is not enough
    assert elected(state, {3}, Rules(), ends={1: None, 2: None, 3: (4, 9)}).leader == 3


def test_a_log_of_which_all_was_deleted_is_as_long_as_its_end() -> None:
    state = PartitionState([1, 2], [], -1, 4, doubted=[1, 2])
    assert elected(state, {1, 2}, Rules(), ends={1: (4, 90), 2: (-1, 100)}).leader == 2
    assert elected(state, {1, 2}, Rules(), ends={1: (4, 90), 2: (-1, 0)}).leader == 1
    assert elected(state, {1, 2}, Rules(), ends={1: (-1, 0), 2: (-1, 0)}).leader == 1


def test_who_was_in_sync_is_preferred_in_an_unclean_election() -> None:
    state = PartitionState([1, 2, 3], [1], -1, 4, doubted=[3])
    rule = Rules(allows_unclean=True)
    waiting = after_changes(state, {2, 3}, {2, 3}, rule)
    assert (waiting.leader, waiting.doubted) == (-1, [3])  # it will soon have told
    assert elected(waiting, {2, 3}, rule, ends={3: (4, 7)}).leader == 3
    assert elected(waiting, {2}, rule).leader == 2


def test_an_unclean_stop_begins_a_new_epoch_even_for_the_only_replica() -> None:
    state = PartitionState([1], [1], 1, 4)
    assert after_changes(state, {1}, {1}, Rules(), unclean={1}).leader_epoch == 5
    assert after_changes(state, {1}, {1}, Rules(), restarted={1}) == state
    two = PartitionState([1, 2], [1, 2], 1, 4)
    after = after_changes(two, {1, 2}, {1, 2}, Rules(), restarted={1})
    assert (after.leader, after.leader_epoch) == (1, 5)
    follower = after_changes(two, {1, 2}, {1, 2}, Rules(), unclean={2})
    assert (follower.leader, follower.leader_epoch, follower.isr) == (1, 5, [1])


@pytest.mark.parametrize("rule", [Rules(), Rules(2), Rules(allows_unclean=True)])
def test_the_last_in_sync_leads_until_it_is_gone(rule: Rules) -> None:
    """It is about to stop, and others come and go while one copies from it."""
    state = PartitionState([1, 2, 3], [1], 1, 5)
    assert after_changes(state, {1, 2}, {2}, rule, stopping={1}) == state
    forced = replace(state, eligible=[3])
    after = after_changes(forced, {1, 2, 3}, {2, 3}, rule, unclean={3}, stopping={1})
    assert (after.leader, after.leader_epoch, after.isr, after.eligible) == (1, 6, [1], [])
    both = replace(state, isr=[1, 2])
    assert after_changes(both, {1, 2}, {2}, rule, stopping={1}).leader == 2
    assert after_changes(state, {2}, {2}, rule).leader == (2 if rule.allows_unclean else -1)
    with pytest.raises(ElectionNotNeeded):
        uncleanly(state, {2}, rule, stopping={1})


@given(states(), st.sampled_from(BROKERS), brokers, rules)
def test_a_broker_that_steps_down_leads_only_what_no_other_in_sync_could(
    state: PartitionState, broker: int, candidates: frozenset[int], rule: Rules
) -> None:
    after = stepping_down(state, broker, candidates, rule)
    check(after)
    others = (candidates - {broker}) & set(state.isr)
    if state.leader == broker:
        assert (after.leader == broker) == (not others)
    else:
        assert after.leader == state.leader
        if state.leader != -1:
            assert broker not in after.isr


@given(states(), brokers)
def test_the_preferred_leader_leads_if_it_can(state: PartitionState, candidates: frozenset[int]) -> None:
    first = state.replicas[0]
    try:
        after = preferred(state, candidates)
    except ElectionNotNeeded:
        assert state.leader == first
    except PreferredLeaderNotAvailable:
        assert first not in candidates or first not in state.isr
    else:
        assert after == replace(state, leader=first, leader_epoch=state.leader_epoch + 1)


def test_an_unclean_election_by_hand() -> None:
    state = PartitionState([1, 2], [1], -1, 0)
    assert uncleanly(state, {2}, Rules()).leader == 2
    with pytest.raises(EligibleLeadersNotAvailable):
        uncleanly(state, set(), Rules())
    with pytest.raises(ElectionNotNeeded):
        uncleanly(PartitionState([1, 2], [1], 1, 0), {1, 2}, Rules())


# In-sync replicas that leaders propose


EPOCHS = {1: 10, 2: 20, 3: 30}


def propose(
    state: PartitionState,
    *isr: Member,
    broker_id: int = 1,
    leader_epoch: int = 5,
    partition_epoch: int = 3,
    unfit: frozenset[int] = frozenset(),
) -> PartitionState:
    return altered(state, Proposal(broker_id, leader_epoch, partition_epoch, isr), EPOCHS, unfit, Rules())


STATE = PartitionState([1, 2, 3], [1, 2], 1, 5, 3)


def test_a_leader_changes_who_is_in_sync() -> None:
    assert propose(STATE, Member(1, 10), Member(2, 20), Member(3, 30)).isr == [1, 2, 3]
    assert propose(STATE, Member(1), Member(2), Member(3, 30)).isr == [1, 2, 3]
    assert propose(STATE, Member(1)).isr == [1]
    # Who is in sync already, and registered anew without a stop, is not admitted by this change.
    assert propose(STATE, Member(1, 10), Member(2, 19), Member(3, 30)).isr == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "isr", "more"),
    [
        (FencedLeaderEpoch, [Member(1)], {"leader_epoch": 4}),
        (NotController, [Member(1)], {"leader_epoch": 6}),
        (NotController, [Member(1)], {"partition_epoch": 4}),
        (InvalidUpdateVersion, [Member(1)], {"partition_epoch": 2}),
        (InvalidRequest, [Member(2)], {"broker_id": 2}),
        (InvalidRequest, [Member(2)], {}),
        (InvalidRequest, [Member(1), Member(4)], {}),
        (InvalidRequest, [Member(1), Member(1)], {}),
        (IneligibleReplica, [Member(1), Member(3)], {}),  # it joins, but nobody says in which epoch
        (IneligibleReplica, [Member(1), Member(3, 29)], {}),  # it restarted since
        (IneligibleReplica, [Member(1), Member(3, 30)], {"unfit": frozenset({3})}),
    ],
)
def test_a_proposal_that_is_out_of_date_is_refused(
    error: type[KafkaError], isr: list[Member], more: dict[str, int]
) -> None:
    with pytest.raises(error):
        propose(STATE, *isr, **more)  # type: ignore[arg-type]


def test_a_broker_that_is_gone_does_not_join() -> None:
    with pytest.raises(IneligibleReplica):
        altered(STATE, Proposal(1, 5, 3, [Member(1, 10), Member(3, 30)]), {1: 10}, set(), Rules())


# Moves


def test_new_replicas_are_in_sync_before_old_ones_leave() -> None:
    live = {1, 2, 3, 4}
    state = PartitionState([1, 2], [1, 2], 1, 5)
    moving = begun(state, [3, 4], live, Rules())
    assert (moving.replicas, moving.adding, moving.removing) == ([3, 4, 1, 2], [3, 4], [1, 2])
    assert (moving.leader, moving.isr, moving.leader_epoch) == (1, [1, 2], 5)
    half = replace(moving, isr=[1, 2, 3])
    assert finished(half, live, Rules()) is half
    done = finished(replace(moving, isr=[1, 2, 3, 4]), live, Rules())
    assert (done.replicas, done.adding, done.removing, done.isr) == ([3, 4], [], [], [3, 4])
    assert (done.leader, done.leader_epoch) == (3, 6)


def test_a_move_is_taken_back() -> None:
    live = {1, 2, 3, 4}
    moving = begun(PartitionState([1, 2], [1, 2], 1, 5), [3, 2], live, Rules())
    back = cancelled(replace(moving, isr=[1, 2, 3], leader=3), live, Rules())
    assert (sorted(back.replicas), back.isr, back.adding, back.removing) == ([1, 2], [1, 2], [], [])
    assert back.leader in (1, 2)
    assert back.leader_epoch == 6
    assert cancelled(moving, live, Rules()).leader_epoch == 6  # who is removed begins anew if it comes again
    with pytest.raises(NoReassignmentInProgress):
        cancelled(back, live, Rules())
    with pytest.raises(InvalidReplicaAssignment):
        cancelled(replace(moving, isr=[3], leader=3), live, Rules())


def test_no_move_leaves_fewer_in_sync_than_min_isr() -> None:
    """Those removed delete their records: what is acknowledged would be left on too few disks."""
    rule = Rules(min_isr=2)
    live = {1, 2, 3, 4}
    moving = begun(PartitionState([1, 2, 3], [1, 2, 3], 2, 5), [1, 4], live, rule)
    without_1 = replace(moving, isr=[2, 3, 4])
    assert finished(without_1, live - {1}, rule) is without_1
    done = finished(replace(moving, isr=[1, 2, 3, 4]), live, rule)
    assert (done.replicas, done.isr) == ([1, 4], [1, 4])
    smaller = begun(PartitionState([1, 2, 3], [2, 3], 2, 5), [1, 2], live - {1}, rule)
    assert (smaller.isr, smaller.removing) == ([2, 3], [3])
    alone = begun(PartitionState([1, 2, 3], [1, 2, 3], 2, 5), [1], live, rule)
    assert (alone.replicas, alone.isr, alone.leader) == ([1], [1], 1)
    back = begun(PartitionState([1, 2], [1, 2], 1, 5), [3, 4], live, rule)
    with pytest.raises(InvalidReplicaAssignment):
        cancelled(replace(back, isr=[1, 3], leader=3), {1, 3, 4}, rule)
    another = begun(replace(back, isr=[1, 3], leader=3), [2, 4], live, rule)
    assert (another.isr, another.adding, another.removing) == ([1, 3], [4], [1, 3])
    assert finished(replace(another, isr=[1, 3, 2, 4]), live, rule).replicas == [2, 4]
    assert cancelled(replace(back, isr=[1]), {1}, rule).isr == [1]  # nobody in sync is let go of


def test_no_move_lets_go_of_those_that_left_a_too_small_isr() -> None:
    """They have what is acknowledged, and one alone in sync may lose it yet."""
    rule, live = Rules(min_isr=2), {1, 2, 3}
    alone = PartitionState([2, 3, 1], [1], 1, 5)
    for needed in (replace(alone, eligible=[3]), replace(alone, doubted=[3])):
        moving = begun(needed, [1, 2], live, rule)
        assert (moving.isr, moving.removing) == ([1], [3])
        assert finished(with_isr(moving, [1, 2], rule), live, rule).replicas == [1, 2]
        assert cancelled(moving, live, rule).replicas == [1, 2, 3]
        assert begun(needed, [1], live, rule).replicas == [1]  # that is what was asked for
        assert not is_moving(begun(needed, [1, 3], live, rule))  # it had nothing that counts


def test_a_move_elsewhere_begins_though_one_that_was_being_added_is_needed_and_gone() -> None:
    rule, live = Rules(min_isr=2), {1, 6, 7}
    moving = begun(PartitionState([1, 2, 3], [1, 2, 3], 1, 5), [1, 4, 5], {1, 2, 3, 4, 5}, rule)
    stuck = with_isr(with_isr(moving, [1, 4], rule), [1], rule)
    assert stuck.eligible == [4]
    with pytest.raises(InvalidReplicaAssignment):
        cancelled(stuck, live, rule)
    another = begun(stuck, [1, 6, 7], live, rule)
    assert (another.adding, set(another.removing), another.eligible) == ([6, 7], {2, 3, 4}, [4])
    assert finished(with_isr(another, [1, 6], rule), live, rule).removing == another.removing
    assert finished(with_isr(another, [1, 6, 7], rule), live, rule).replicas == [1, 6, 7]


def test_a_move_takes_the_place_of_another() -> None:
    live = {1, 2, 3, 4}
    moving = begun(PartitionState([1, 2], [1, 2], 1, 5), [3, 2], live, Rules())
    other = begun(replace(moving, isr=[1, 2, 3]), [4, 2], live, Rules())
    assert (other.replicas, other.adding, other.removing) == ([4, 2, 1], [4], [1])
    assert set(other.isr) == {1, 2}
    assert (other.leader, other.leader_epoch) == (1, 6)


def test_an_order_alone_is_changed_at_once() -> None:
    state = begun(PartitionState([1, 2], [1, 2], 1, 5), [2, 1], {1, 2}, Rules())
    assert (state.replicas, is_moving(state), state.leader) == ([2, 1], False, 1)


def test_targets_that_cannot_be() -> None:
    state = PartitionState([1, 2], [1, 2], 1, 5)
    for target in ([], [1, 1], [1, 9]):
        with pytest.raises(InvalidReplicaAssignment):
            check_target(state, target, {1, 2, 3}, may_resize=True)
    with pytest.raises(InvalidReplicationFactor):
        check_target(state, [1, 2, 3], {1, 2, 3}, may_resize=False)
    check_target(state, [1, 2, 3], {1, 2, 3}, may_resize=True)


@given(states(), st.permutations(BROKERS), st.integers(1, 4), brokers, rules)
def test_moves_leave_sound_states(
    state: PartitionState, order: list[int], count: int, live: frozenset[int], rule: Rules
) -> None:
    state = elected(state, live, replace(rule, allows_unclean=False))
    try:
        moving = begun(state, order[:count], live, rule)
    except InvalidReplicaAssignment:
        return
    check(moving)
    assert set(moving.replicas) == set(order[:count]) | set(moving.removing)
    assert set(moving.isr) <= set(state.isr) | set(state.eligible)
    if not is_moving(moving):
        assert moving.replicas == order[:count]
        return
    done = finished(replace(moving, isr=[*moving.isr, *(set(moving.adding) - set(moving.isr))]), live, rule)
    check(done)
    try:
        back = cancelled(moving, live, rule)
    except InvalidReplicaAssignment:
        return
    check(back)
    assert set(back.replicas) == set(state.replicas)
    assert back.leader_epoch > moving.leader_epoch or not moving.adding


@given(states(), st.sampled_from(BROKERS), brokers, rules)
def test_nobody_counts_on_a_damaged_replica_where_another_can_lead(
    state: PartitionState, damaged: int, candidates: frozenset[int], rule: Rules
) -> None:
    if damaged not in state.replicas:
        return
    found = without_damaged(state, damaged, candidates, rule)
    check(found)
    others = set(state.isr) - {damaged}
    leads = state.leader == damaged
    can_lead = bool(others & candidates) if leads else state.leader in candidates
    if not can_lead:
        assert found == state
        return
    assert found.leader not in (damaged, -1)
    is_needed = len(others) < min(rule.min_isr, len(state.replicas), len(state.isr))
    if is_needed and not leads:
        assert found == state
        return
    assert found.leader_epoch == state.leader_epoch + 1
    if is_needed:
        assert (found.isr, found.eligible) == (state.isr, state.eligible)
    else:
        assert damaged not in (*found.isr, *found.eligible)
        assert set(found.isr) == others
