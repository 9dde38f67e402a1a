"""Faults put into replication and the controller on purpose, to show that the checks can fail."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from millstream.broker.fetch_session import FetchPosition
from millstream.cluster import rules
from millstream.cluster.following import Following
from millstream.cluster.leadership import Leadership
from millstream.cluster.metadata import PartitionState
from millstream.cluster.replica import Replica
from millstream.controller import elections, partition_changes
from millstream.controller.isr import Proposal
from millstream.protocol.messages import FetchRequest
from tests.simulation.coordinator_mutations import let_zombies_go_on

MUTATION_S = 30.0

Mutation = Callable[[], AbstractContextManager[Any]]


def acknowledge_before_replication() -> AbstractContextManager[Any]:
    """A leader commits what it alone has."""

    def high_watermark(current: int, own_end: int, *_: Any, **__: Any) -> int:
        return max(current, own_end)

    return patch.object(rules, "high_watermark", high_watermark)


def ignore_epochs_on_truncation() -> AbstractContextManager[Any]:
    """A follower is cut off only where it is longer than its leader."""

    def divergence(_: Any, log_end: int, follower_epoch: int, follower_end: int) -> tuple[int, int] | None:
        return (follower_epoch, log_end) if follower_end > log_end else None

    return patch.object(rules, "divergence", divergence)


def skip_fencing() -> AbstractContextManager[Any]:
    """Old epochs are as good as new ones: of leaders that propose an ISR, and of whom they propose."""

    def altered(
        state: PartitionState, proposal: Proposal, _: Any, __: Any, topic: elections.Rules
    ) -> PartitionState:
        isr = [member.broker_id for member in proposal.isr]
        found = elections.with_isr(state, isr, topic)
        return found if state.leader in isr else replace(found, isr=[state.leader, *isr])

    return patch.object(partition_changes, "altered", altered)


def forget_the_old_isr() -> AbstractContextManager[Any]:
    """While a change is pending, only the proposed ISR counts."""

    def counted(
        isr: Collection[int], proposed: Collection[int] | None, joining: Collection[int] = ()
    ) -> set[int]:
        return set(isr if proposed is None else proposed)

    return patch.object(rules, "counted", counted)


def refuse_half_batches() -> AbstractContextManager[Any]:
    """A follower that begins anew in the middle of a batch cannot take it."""

    def first_offset(following: Following, _: memoryview) -> int:
        return following.partition.log.end_offset

    return patch.object(Following, "_first_offset", first_offset)


def delete_without_the_unheard() -> AbstractContextManager[Any]:
    """A new leader waits with a deletion for nobody of whom it has not heard yet."""

    def low_watermark(leadership: Leadership, own_start: int) -> int:
        found = [one.start_offset for one in leadership.followers.values() if one.broker_epoch >= 0]
        return min(found, default=own_start)

    return patch.object(Leadership, "low_watermark", low_watermark)


def tell_consumers_of_no_cut() -> AbstractContextManager[Any]:
    """A consumer that was past the place where a log was cut off reads on."""

    real = FetchPosition.update

    def update(position: FetchPosition, wanted: FetchRequest.FetchPartition) -> None:
        real(position, wanted)
        position.last_fetched_epoch = -1

    return patch.object(FetchPosition, "update", update)


def propose_later_lives() -> AbstractContextManager[Any]:
    """A proposal that is sent again names the brokers as they are by then, whatever they lost."""

    def proposal(leadership: Leadership) -> list[tuple[int, int]]:
        followers = leadership.followers
        return [
            (one, followers[one].broker_epoch if one in followers else -1)
            for one in leadership.proposed or ()
        ]

    return patch.object(Leadership, "proposal", proposal)


def tell_ends_too_early() -> AbstractContextManager[Any]:
    """A new leader tells where a partition ends before it knows how much of it is committed."""
    return patch.object(Replica, "check_available", lambda _: None)


MUTATIONS: dict[str, tuple[Mutation, str, dict[str, bool], int]] = {
    mutation.__name__: (mutation, favourite, chosen, first)
    for mutation, favourite, chosen, first in (
        (acknowledge_before_replication, "kill", {}, 0),
        (ignore_epochs_on_truncation, "cut_off", {}, 0),
        (skip_fencing, "lose_disk_unheard", {"loses_disks": True}, 0),
        (let_zombies_go_on, "lose_connections", {}, 0),
        (forget_the_old_isr, "kill_beside_a_cut", {}, 0),
        (refuse_half_batches, "kill", {"trims": True}, 2),
        (delete_without_the_unheard, "delay", {"trims": True}, 0),
        (tell_consumers_of_no_cut, "kill_beside_a_cut", {"unclean": True}, 16),
        (propose_later_lives, "lose_disk_unheard", {"loses_disks": True}, 0),
        (tell_ends_too_early, "kill_all", {"loses_disks": True}, 8),
    )
}
"""Each with the fault that brings it to light soonest, what a seed must not leave out for that, and the first
seed to try: those that show in one of many are begun where that was seen last, for the sake of time."""

LEFT_OUT = ("compacts", "loses_disks", "reads_anywhere", "new_groups", "is_wide")
"""What most mutations have nothing to do with."""


def seeds_until_caught(name: str, limit: int) -> int:
    """How many seeds it takes to notice a mutation; `limit` + 1 if that many do not."""
    from tests.simulation.cluster import simulate_cluster

    mutation, favourite, chosen, first = MUTATIONS[name]
    chosen = dict.fromkeys(LEFT_OUT, False) | chosen
    with mutation():
        for seed in range(first, first + limit):
            if not simulate_cluster(seed, duration_s=MUTATION_S, favourite=favourite, **chosen).is_good:
                return seed - first + 1
    return limit + 1
