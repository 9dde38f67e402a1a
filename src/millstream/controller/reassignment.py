"""Moving a partition to other brokers: decisions, as functions of their inputs.

While it goes on, the replicas are the target's, in its order, followed by those that will be removed. It
ends when every added replica is in sync, and as many of the target's as min.insync.replicas asks for: then
those are removed, and delete their records. All of it is in the partition's state and
its topic's node, so that any controller can go on with it, or take it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from millstream.cluster.metadata import PartitionState
from millstream.controller.elections import Rules, elected, led_by
from millstream.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
)


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding or state.removing)


def original(state: PartitionState) -> list[int]:
    """The replicas as they were before the reassignment that goes on, though not in their order."""
    return [each for each in state.replicas if each not in state.adding]


def check_target(
    state: PartitionState, target: Sequence[int], known: AbstractSet[int], *, may_resize: bool
) -> None:
    """Raise unless a partition may move to these brokers."""
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment("the target has no replica, or one twice")
    for broker in target:
        if broker not in known:
            raise InvalidReplicaAssignment(f"there is no live broker {broker}")
    if not may_resize and len(target) != len(original(state)):
        raise InvalidReplicationFactor(
            f"{len(target)} replicas instead of {len(original(state))}: the number may not change"
        )


def begun(
    state: PartitionState, target: Sequence[int], candidates: AbstractSet[int], rules: Rules
) -> PartitionState:
    """The state when a partition begins to move, also in place of another move.

    Those that were to be added by that one go at once. If too few would stay in sync, those that may be
    needed go at the end, and belong to the partition until then as if they had before.
    """
    base = original(state)
    adding = [each for each in target if each not in base]
    removing = [each for each in base if each not in target]
    if _lets_go_of_too_many(state, [*target, *removing], rules):
        removing += [each for each in _needed(state) if each not in target and each not in base]
    moved = replace(state, replicas=[*target, *removing], adding=adding, removing=removing)
    if not set(moved.replicas) & {*state.isr, *state.eligible}:
        raise InvalidReplicaAssignment("none of the replicas is in sync")
    return _fencing(state, finished(_restricted(moved, candidates, rules), candidates, rules))


def finished(state: PartitionState, candidates: AbstractSet[int], rules: Rules) -> PartitionState:
    """The state after the move, if every added replica is in sync and enough are; else the same state."""
    if not is_moving(state):
        return state
    staying = {each for each in state.isr if each not in state.removing}
    if not set(state.adding) <= staying or not staying & candidates:
        return state
    replicas = [each for each in state.replicas if each not in state.removing]
    if _lets_go_of_too_many(state, replicas, rules):
        return state
    done = replace(state, replicas=replicas, adding=[], removing=[])
    return _fencing(state, _restricted(done, candidates, rules))


def cancelled(state: PartitionState, candidates: AbstractSet[int], rules: Rules) -> PartitionState:
    """The state with the move taken back."""
    if not is_moving(state):
        raise NoReassignmentInProgress
    back = replace(state, replicas=original(state), adding=[], removing=[])
    if not set(back.replicas) & set(state.isr):
        raise InvalidReplicaAssignment("none of the replicas to go back to is in sync")
    if _lets_go_of_too_many(state, back.replicas, rules):
        raise InvalidReplicaAssignment(
            "too few of the replicas to go back to are in sync: wait for them, or move it elsewhere"
        )
    return _fencing(state, _restricted(back, candidates, rules))


def _fencing(before: PartitionState, after: PartitionState) -> PartitionState:
    """The state in a new leader epoch, if replicas are removed that were there before.

    They delete their records. One that is added again begins empty: what its leader knows of it, which may
    never hear that it was away, must not count.
    """
    if set(before.replicas) <= set(after.replicas) or after.leader_epoch > before.leader_epoch:
        return after
    return led_by(after, after.leader)


def _needed(state: PartitionState) -> list[int]:
    """Replicas that may hold what is acknowledged: of an ISR that fell below min.insync.replicas also those
    that left it."""
    return [*state.isr, *state.eligible, *state.doubted]


def _lets_go_of_too_many(state: PartitionState, replicas: Sequence[int], rules: Rules) -> bool:
    """Whether replicas that may be needed would go, and fewer stay in sync than what is acknowledged must
    be on."""
    needed = _needed(state)
    if all(each in replicas for each in needed):
        return False
    staying = sum(each in replicas for each in state.isr)
    return staying < min(rules.min_isr, len(replicas), len(needed))


def _restricted(state: PartitionState, candidates: AbstractSet[int], rules: Rules) -> PartitionState:
    """The state with nobody in sync who is no replica, and led by a replica."""
    known = set(state.replicas)
    isr = [each for each in state.isr if each in known]
    eligible = [each for each in state.eligible if each in known]
    doubted = [each for each in state.doubted if each in known]
    state = replace(state, isr=isr, eligible=eligible, doubted=doubted)
    if state.leader in known:
        return state
    return elected(state, candidates, replace(rules, allows_unclean=False))
