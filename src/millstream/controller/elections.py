"""Who leads a partition, and who is in sync with it: decisions, as functions of their inputs.

Every function takes a partition's state and answers the state that it should have, the same one if nothing
is to change. What it rests on:

- Members of the ISR have every committed record. So have the `eligible` replicas: they left the ISR when it
  fell below min.insync.replicas, and since then nothing more could be committed (KIP-966).
- A broker whose last stop was not clean may have lost the end of its logs. It leaves both and is `doubted`.
  Where nobody else is left, all of the doubted are waited for, and the longest log leads: if any of them
  still has every committed record, so has that one.
- While nothing is damaged or moved the three together are never fewer than min.insync.replicas, so that fewer
  losses cost nothing. As soon as a leader has an ISR of that size, only this one counts: records may be
  committed that no other has.
- The leader epoch grows whenever another replica begins to lead, nobody does, or the same one leads on with
  a log that may be shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from millstream.cluster.metadata import NO_LEADER, PartitionState
from millstream.errors import ElectionNotNeeded, EligibleLeadersNotAvailable, PreferredLeaderNotAvailable


@dataclass(frozen=True, slots=True)
class Rules:
    """What of a topic's configuration elections depend on."""

    min_isr: int = 1
    """The largest of min.insync.replicas, where brokers have different ones."""
    allows_unclean: bool = False
    min_isrs: Mapping[int, int] = field(default_factory=dict)
    """Each broker's own, where they differ."""


NOBODY: frozenset[int] = frozenset()

End = tuple[int, int]
"""Where a log ends: the leader epoch of its last records, and the offset after them."""
Ends = Mapping[int, End | None]
"""The ends that brokers told of their replicas of a partition; None of those whose log dirs failed."""
UNTOLD: Ends = {}


def with_isr(state: PartitionState, isr: list[int], rules: Rules) -> PartitionState:
    """The state with other replicas in sync; who leaves a too small ISR stays eligible."""
    eligible: list[int] = []
    if len(isr) < min(rules.min_isr, len(state.replicas)):
        eligible = _in_order(state, (set(state.isr) | set(state.eligible)) - set(isr))
    return replace(state, isr=isr, eligible=eligible, doubted=_others(state.doubted, isr))


def settled(state: PartitionState, rules: Rules) -> PartitionState:
    """The state in which nobody is eligible or doubted if its leader can commit with the ISR alone.

    `with_isr` reckons with the largest min.insync.replicas there is; what counts is the leader's own.
    """
    if not (state.eligible or state.doubted) or not state.isr or state.leader == NO_LEADER:
        return state
    if len(state.isr) < min(rules.min_isrs.get(state.leader, rules.min_isr), len(state.replicas)):
        return state
    return replace(state, eligible=[], doubted=[])


def without(state: PartitionState, gone: AbstractSet[int], rules: Rules) -> PartitionState:
    """The state after brokers are gone. If all of the ISR are, it stays: one of them must lead next."""
    isr = _others(state.isr, gone)
    if not isr or len(isr) == len(state.isr):
        return state
    return with_isr(state, isr, rules)


def distrusting(state: PartitionState, broker: int) -> PartitionState:
    """The state after a broker came back from a stop that was not clean."""
    if broker not in state.isr and broker not in state.eligible:
        return state
    isr, eligible = _others(state.isr, [broker]), _others(state.eligible, [broker])
    if not isr and not eligible and not state.doubted:
        return state  # there is nobody to compare it with
    return replace(state, isr=isr, eligible=eligible, doubted=_in_order(state, {*state.doubted, broker}))


def elected(
    state: PartitionState,
    candidates: AbstractSet[int],
    rules: Rules,
    *,
    is_forced: bool = False,
    ends: Ends = UNTOLD,
    stopping: AbstractSet[int] = NOBODY,
) -> PartitionState:
    """The state with a leader that is a candidate: the one it has, else the first in sync in its list.

    One of those that are `stopping` leads on where no other in sync can: they copy from it until it is gone.
    `is_forced` begins a new leader epoch even if the same broker is to lead on. Where all are doubted, nobody
    leads before they are all there and have told their `ends`, but for those whose log dirs failed, if there
    are min.insync.replicas without them. An unclean election asks those that are there.
    """
    if not is_forced and state.leader in candidates and state.leader in state.isr:
        return state
    chosen = _first(state, candidates, state.isr)
    if chosen != NO_LEADER:
        return led_by(state, chosen)
    if state.leader in stopping and state.leader in state.isr:
        return led_by(state, state.leader) if is_forced else state
    chosen = _first(state, candidates, state.eligible)
    told = {each: end for each, end in ends.items() if end and each in state.doubted and each in candidates}
    if not state.isr and not state.eligible and _are_enough(state, told, ends, rules):
        chosen = _longest(state, told)
    if chosen != NO_LEADER:
        return led_by(with_isr(state, [chosen], rules), chosen)
    if rules.allows_unclean and told.keys() == candidates & set(state.doubted):
        chosen = _longest(state, told)
        for among in (set(state.replicas) - set(state.adding), state.adding):
            if chosen == NO_LEADER:  # one that is being added may have copied something
                chosen = _first(state, candidates, among)
        if chosen != NO_LEADER:
            return led_by(replace(state, isr=[chosen], eligible=[], doubted=[]), chosen)
    return state if state.leader == NO_LEADER else led_by(state, NO_LEADER)


def led_by(state: PartitionState, leader: int) -> PartitionState:
    """The state in a new leader epoch."""
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


def after_changes(
    state: PartitionState,
    live: AbstractSet[int],
    candidates: AbstractSet[int],
    rules: Rules,
    *,
    unclean: AbstractSet[int] = NOBODY,
    restarted: AbstractSet[int] = NOBODY,
    ends: Ends = UNTOLD,
    stopping: AbstractSet[int] = NOBODY,
) -> PartitionState:
    """The state after brokers came and went.

    `live` are the brokers that are there, `candidates` those of them that may lead, `stopping` those that
    may lead on where nobody else can. `unclean` are those
    that came back from a stop that was not clean, `restarted` those that came back from one that was,
    before anybody noticed that they had gone.
    """
    before = state
    for broker in _in_order(state, unclean):
        state = distrusting(state, broker)
    state = without(state, set(state.replicas) - live, rules)
    were_in_sync = unclean & {*before.isr, *before.eligible}
    is_forced = bool(were_in_sync) or (before.leader in restarted and len(state.isr) > 1)
    if is_forced and state.leader not in unclean and state.leader in state.isr and state.leader in candidates:
        return led_by(state, state.leader)
    is_forced = is_forced and state.leader != NO_LEADER
    return elected(state, candidates, rules, is_forced=is_forced, ends=ends, stopping=stopping)


def stepping_down(
    state: PartitionState, broker: int, candidates: AbstractSet[int], rules: Rules
) -> PartitionState:
    """The state before a broker stops: another in sync leads, if there is one, and it leaves the ISR."""
    others = candidates - {broker}
    if state.leader == broker:
        chosen = _first(state, others, state.isr)
        if chosen == NO_LEADER:
            return state
        state = led_by(state, chosen)
    if state.leader == NO_LEADER:
        return state
    return without(state, {broker}, rules)


def without_damaged(
    state: PartitionState, broker: int, candidates: AbstractSet[int], rules: Rules
) -> PartitionState:
    """The state in which a broker may cut off what is damaged of its replica.

    Nobody counts on it, and a new leader epoch begins: what the replica fetched before is forgotten by that,
    and it fetches again only after it was cut off. If no other in sync can lead, the state stays as it is.
    While it is needed for min.insync.replicas it only leads no more: all but a little of it is sound.
    """
    found = stepping_down(state, broker, candidates, rules)
    if found.leader not in candidates or broker in found.isr:
        return state
    if len(found.isr) < min(rules.min_isr, len(state.replicas), len(state.isr)):
        return led_by(state, found.leader) if state.leader == broker else state
    eligible, doubted = _others(found.eligible, [broker]), _others(found.doubted, [broker])
    found = replace(found, eligible=eligible, doubted=doubted)
    return found if found.leader_epoch > state.leader_epoch else led_by(found, found.leader)


def preferred(state: PartitionState, candidates: AbstractSet[int]) -> PartitionState:
    """The state with the first replica of the list as its leader, or why that cannot be."""
    first = state.replicas[0]
    if state.leader == first:
        raise ElectionNotNeeded
    if first not in candidates or first not in state.isr:
        raise PreferredLeaderNotAvailable(f"broker {first} is not in sync, or not there")
    return led_by(state, first)


def uncleanly(
    state: PartitionState,
    candidates: AbstractSet[int],
    rules: Rules,
    *,
    ends: Ends = UNTOLD,
    stopping: AbstractSet[int] = NOBODY,
) -> PartitionState:
    """The state with any live replica as its leader where it has none, or why that cannot be."""
    if state.leader in candidates or (state.leader in stopping and state.leader in state.isr):
        raise ElectionNotNeeded
    found = elected(state, candidates, replace(rules, allows_unclean=True), ends=ends)
    if found.leader == NO_LEADER:
        raise EligibleLeadersNotAvailable("no replica is there, or not all have told where their logs end")
    return found


def _first(state: PartitionState, candidates: AbstractSet[int], among: Iterable[int]) -> int:
    allowed = candidates & set(among)
    return next((each for each in state.replicas if each in allowed), NO_LEADER)


def _are_enough(state: PartitionState, told: Collection[int], ends: Ends, rules: Rules) -> bool:
    """Whether one of those that told where they end has all that any doubted one may have."""
    others = [each for each in state.doubted if each not in told]
    if any(each not in ends or ends[each] is not None for each in others):
        return False
    return not others or len(told) >= min(rules.min_isr, len(state.replicas))


def _longest(state: PartitionState, ends: Mapping[int, End]) -> int:
    """The one with the longest log; of several the first in the list."""
    newest = max((epoch for epoch, _ in ends.values()), default=-1)

    def end(broker: int) -> End:
        epoch, offset = ends[broker]
        return (newest if epoch < 0 else epoch), offset  # what had no epoch any more was deleted

    return max(_in_order(state, ends.keys()), key=end, default=NO_LEADER)


def _in_order(state: PartitionState, brokers: AbstractSet[int]) -> list[int]:
    return [each for each in state.replicas if each in brokers]


def _others(brokers: Iterable[int], these: Collection[int]) -> list[int]:
    return [each for each in brokers if each not in these]
