"""The state of the model: three replicas of one partition, what is written down of it, and what is under way.

Everything is a tuple, so that states can be compared and hashed. A record is the leader epoch in which it
was written and who wrote it: no rule of the cluster lets two records of one epoch stand at one offset.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.cluster.metadata import PartitionState

Record = tuple[int, int]
Log = tuple[Record, ...]
Brokers = tuple[int, ...]

REPLICAS: Brokers = (0, 1, 2)
UNHEARD = (-1, -1)


class Partition(NamedTuple):
    """What the registry holds."""

    isr: Brokers = REPLICAS
    leader: int = 0
    leader_epoch: int = 0
    version: int = 0
    eligible: Brokers = ()
    doubted: Brokers = ()

    def state(self) -> PartitionState:
        return PartitionState(
            list(REPLICAS),
            list(self.isr),
            self.leader,
            self.leader_epoch,
            self.version,
            eligible=list(self.eligible),
            doubted=list(self.doubted),
        )

    def written(self, state: PartitionState) -> Partition:
        """The state written down: its version grows, unless nothing has changed."""
        found = Partition(
            tuple(state.isr),
            state.leader,
            state.leader_epoch,
            self.version,
            tuple(state.eligible),
            tuple(state.doubted),
        )
        return self if found == self else found._replace(version=self.version + 1)


class Proposal(NamedTuple):
    """An AlterPartition on its way: who leads in which epochs, and the ISR with broker epochs."""

    leader: int
    leader_epoch: int
    version: int
    isr: tuple[tuple[int, int], ...]


class Answer(NamedTuple):
    """What the controller answers to a proposal; no ISR if it wrote nothing down."""

    proposal: Proposal
    isr: Brokers | None
    version: int


class Broker(NamedTuple):
    """One broker with its replica. Its own news of the partition (`partition`) may be old."""

    is_up: bool = True
    is_registered: bool = True
    """Whether its session lives. It may not know, and lead on: the lease guards what clients see, but no
    record needs it."""
    epoch: int = 0
    log: Log = ()
    high_watermark: int = 0
    """As a leader. What a follower knows of it decides nothing, so it is left out."""
    partition: Partition | None = Partition()
    epoch_start: int = 0
    proposed: Brokers | None = None
    heard: tuple[tuple[int, int], ...] = (UNHEARD, UNHEARD, UNHEARD)
    """As a leader: the end and the broker epoch of each replica, by its last fetch."""
    damaged: int | None = None
    """If records of its log cannot be read: the last leader epoch in which it may have fetched."""

    @property
    def end(self) -> int:
        return len(self.log)


class State(NamedTuple):
    """All of it, and what may still befall it."""

    brokers: tuple[Broker, ...] = (Broker(), Broker(), Broker())
    partition: Partition = Partition()
    requests: frozenset[Proposal] = frozenset()
    answers: frozenset[Answer] = frozenset()
    committed: Log = ()
    """What some leader has acknowledged to all, ever: the longest."""
    unclean: frozenset[int] = frozenset()
    """Whose last stop was not clean, and who has not been in sync since."""
    hurt: frozenset[int] = frozenset()
    """Those of them that lost the ends of their logs."""
    records_left: int = 0
    proposals_left: int = 0
    faults_left: int = 0
    damages_left: int = 0

    def with_broker(self, number: int, broker: Broker) -> State:
        brokers = (*self.brokers[:number], broker, *self.brokers[number + 1 :])
        return self._replace(brokers=brokers)

    @property
    def live(self) -> set[int]:
        return {number for number, broker in enumerate(self.brokers) if broker.is_registered}


def epochs_of(log: Log) -> list[tuple[int, int]]:
    """Where each leader epoch of a log begins."""
    found: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(log):
        if not found or found[-1][0] != epoch:
            found.append((epoch, offset))
    return found
