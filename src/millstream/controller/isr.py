"""In-sync replicas that a leader proposes (AlterPartition): what is admitted, and why something is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from millstream.cluster.metadata import PartitionState
from millstream.controller.elections import Rules, with_isr
from millstream.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
)


class Member(NamedTuple):
    """A replica to be in sync, and the epoch of its broker that the leader saw; -1 if it saw none."""

    broker_id: int
    epoch: int = -1


class Proposal(NamedTuple):
    """What a leader proposes, and what it believes the state to be."""

    broker_id: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[Member]


def altered(
    state: PartitionState,
    proposal: Proposal,
    epochs: Mapping[int, int],
    unfit: AbstractSet[int],
    rules: Rules,
) -> PartitionState:
    """The state with the proposed ISR; an error of Kafka's if it may not be.

    `epochs` are those of the live brokers, `unfit` the brokers that may not join: they are about to stop,
    or their log dir failed. A broker that joins must be in the very epoch in which its leader saw it: one
    that restarted since may have lost what made it fit (KIP-903).
    """
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > state.version:
        raise NotController("the leader knows a newer state than this controller")
    if proposal.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch
    if proposal.broker_id != state.leader:
        raise InvalidRequest(f"broker {proposal.broker_id} does not lead this partition")
    if proposal.partition_epoch < state.version:
        raise InvalidUpdateVersion
    isr = [member.broker_id for member in proposal.isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(state.replicas):
        raise InvalidRequest(f"{isr} are not distinct replicas of the partition")
    if state.leader not in isr:
        raise InvalidRequest("a leader is in sync with itself")
    for member in proposal.isr:
        _check_member(state, member, epochs, unfit)
    return with_isr(state, isr, rules)


def _check_member(
    state: PartitionState, member: Member, epochs: Mapping[int, int], unfit: AbstractSet[int]
) -> None:
    """Who is in the ISR stays there by the decisions of controllers, which know of every registration."""
    broker_id, epoch = member
    if broker_id not in epochs:
        raise IneligibleReplica(f"broker {broker_id} is not there")
    if broker_id in state.isr:
        return
    if broker_id in unfit:
        raise IneligibleReplica(f"broker {broker_id} is about to stop, or cannot serve the partition")
    if epoch != epochs[broker_id]:
        raise IneligibleReplica(f"broker {broker_id} was seen in epoch {epoch}, not {epochs[broker_id]}")
