"""How a member comes from the assignment that it has to the one that is meant for it.

One step a heartbeat. First it is told what to give up, and stays in its epoch until it has (it says what it
owns). Then it is in the epoch of the target and gets what is free; what others have not given up yet it
gets later, while it waits. So no partition is ever held by two members.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from millstream.coordinator.groups.consumer_member import (
    ConsumerMember,
    Held,
    MemberState,
    Partitions,
)

IsFree = Callable[[UUID, int], bool]
"""Whether no member holds a partition, whether as its own or as one that it has to give up."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: frozenset[UUID],
    owned: Partitions | None,
    is_free: IsFree,
    *,
    has_new_subscription: bool,
) -> ConsumerMember:
    """The member after its next step; the same if it has to wait, or is there.

    `owned` is what the member says that it reads, None if it does not say. Topics that it is no longer
    subscribed to are taken away at once, also where the target still has them.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return _without_unsubscribed(member, subscribed, owned) if has_new_subscription else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking):
        return _without_unsubscribed(member, subscribed, owned) if has_new_subscription else member
    return _towards(member, target_epoch, target, subscribed, owned, is_free)


def _towards(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: frozenset[UUID],
    owned: Partitions | None,
    is_free: IsFree,
) -> ConsumerMember:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, epochs in member.assigned.items():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        for number, epoch in epochs.items():
            (assigned if number in wanted else revoking).setdefault(topic_id, {})[number] = epoch
    if revoking and _owns_any(owned, revoking):
        return member.moved(MemberState.UNREVOKED_PARTITIONS, member.epoch, assigned, revoking)
    is_waiting = False
    for topic_id, numbers in target.items():
        if topic_id not in subscribed:
            continue
        for number in sorted(numbers):
            if number in assigned.get(topic_id, ()):
                continue
            if is_free(topic_id, number) or number in member.revoking.get(topic_id, ()):
                assigned.setdefault(topic_id, {})[number] = target_epoch
            else:
                is_waiting = True
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return member.moved(state, target_epoch, assigned)


def _without_unsubscribed(
    member: ConsumerMember, subscribed: frozenset[UUID], owned: Partitions | None
) -> ConsumerMember:
    """The member in its epoch, without the topics that it has left."""
    left = [topic_id for topic_id in member.assigned if topic_id not in subscribed]
    if not left:
        return member
    assigned = {topic_id: each for topic_id, each in member.assigned.items() if topic_id in subscribed}
    revoking = dict(member.revoking)
    for topic_id in left:
        revoking[topic_id] = {**revoking.get(topic_id, {}), **member.assigned[topic_id]}
    if _owns_any(owned, revoking):
        return member.moved(MemberState.UNREVOKED_PARTITIONS, member.epoch, assigned, revoking)
    return member.moved(member.state, member.epoch, assigned, member.revoking)


def _owns_any(owned: Partitions | None, held: Held) -> bool:
    """Whether a member still reads some of these; if it does not say, it does."""
    if owned is None:
        return True
    return any(not numbers.isdisjoint(held.get(topic_id, ())) for topic_id, numbers in owned.items())
