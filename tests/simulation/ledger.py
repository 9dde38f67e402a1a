"""What transactional producers, committed readers and groups did and saw: input of `ledger_checker`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

Place = tuple[str, int]
"""A topic and a partition."""


class Fate(Enum):
    """What its producer knows of a transaction."""

    OPEN = "open"
    """Nobody asked for its commit: it must never be seen."""
    ASKED = "in doubt"
    """Its commit was asked for, and the answer did not come, or said nothing."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """One attempt: its values by place, and its end."""

    name: str
    producer_id: int
    epoch: int
    values: dict[Place, list[str]] = field(default_factory=dict)
    fate: Fate = Fate.OPEN
    asked_at: float = 0.0
    """When its commit was asked for first."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A producer got its id and epoch; all with a lower epoch of that id are fenced."""

    producer_id: int
    epoch: int
    at: float


@dataclass(frozen=True, slots=True)
class CommittedRead:
    """A reader of committed records got a value at an offset."""

    reader: str
    place: Place
    offset: int
    value: str


@dataclass(slots=True)
class OffsetCommit:
    """A group's position that a member asked to commit. `is_done` is None while nobody knows."""

    group: str
    place: Place
    offset: int
    sent_at: float
    done_at: float = 0.0
    is_done: bool | None = None


@dataclass(frozen=True, slots=True)
class OffsetRead:
    """The position of a group, as the coordinator told it; -1 for none."""

    group: str
    place: Place
    offset: int
    asked_at: float
    at: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member of a generation was given, and who were its members."""

    group: str
    generation: int
    member: str
    places: tuple[Place, ...]
    members: tuple[str, ...] = ()
    """Known to the leader only."""


@dataclass(slots=True)
class Holding:
    """A partition that a member of the new protocol held, from when to when at least."""

    group: str
    place: Place
    member: str
    since: float
    until: float


@dataclass(slots=True)
class Ledger:
    """All of it."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    reads: list[CommittedRead] = field(default_factory=list)
    positions: dict[tuple[str, Place], int] = field(default_factory=dict)
    """How far each reader came."""
    final: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    """Offsets and values of each partition, read committed, when all was over."""
    commits: list[OffsetCommit] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    consumed: dict[tuple[str, Place], set[int]] = field(default_factory=dict)
    """The offsets that members of a group have handled."""
    assignments: list[Assignment] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    inputs: dict[Place, list[str]] = field(default_factory=dict)
    """What was acknowledged to those who fill the input of the workers, in order."""
    outputs: tuple[Place, ...] = ()
    """Where the workers write; their values end with the input they were made from."""
    accounts: tuple[Place, ...] = ()
    """Where transfers are written; their values end with an amount."""
    complaints: list[str] = field(default_factory=list)

    def open(self, name: str, producer_id: int, epoch: int) -> Transaction:
        if name in self.transactions:
            raise ValueError(f"a transaction {name} was there before")
        made = self.transactions[name] = Transaction(name, producer_id, epoch)
        return made

    def fates(self) -> Iterable[Fate]:
        return (transaction.fate for transaction in self.transactions.values())


def transaction_of(value: str) -> str:
    """The name of the transaction that a value was written in."""
    return value.partition(":")[0]


def payload_of(value: str) -> str:
    """What a value says, without its transaction."""
    return value.rpartition(":")[2]
