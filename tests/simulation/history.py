"""What clients of a simulated broker did and saw, and what was left in the end: the checker's input."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Send:
    """A value that a producer handed over; `index` counts its values for that partition."""

    producer: str
    partition: int
    index: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The broker said that a value is at an offset. `sent_at`: when that attempt began."""

    value: str
    partition: int
    offset: int
    sent_at: float
    acked_at: float


@dataclass(frozen=True, slots=True)
class Read:
    """A consumer got a value at an offset, for what it asked at `asked_at`.

    `run` changes whenever it set its position anew.
    """

    consumer: str
    run: int
    partition: int
    offset: int
    value: str
    asked_at: float
    at: float


@dataclass(frozen=True, slots=True)
class Loss:
    """A power loss, and for each partition the offset up to which its log survived on the platter."""

    at: float
    survived: dict[int, int]


@dataclass(slots=True)
class Trim:
    """An operator asked to delete the records below an offset; done if the broker said so."""

    partition: int
    offset: int
    asked_at: float
    done_at: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a final log."""

    offset: int
    value: str


@dataclass(slots=True)
class History:
    """All of it, of one topic.

    `is_flushed_before_ack`: acknowledgements promise to outlive a power loss, and so does what
    consumers saw. `idempotent`: the producers that promise no duplicates. `repeated`: what
    they sent once more because it may have been deleted before they heard of it.
    """

    is_flushed_before_ack: bool
    idempotent: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    sends: dict[str, Send] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    final: dict[int, list[Entry]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """What a client saw itself that may never happen, such as a gap of sequences."""

    def send(self, producer: str, partition: int, index: int) -> str:
        value = f"{producer}/{partition}/{index}"
        if value in self.sends:
            raise ValueError(f"{value} was sent before")
        self.sends[value] = Send(producer, partition, index)
        return value

    def trimmed(self, partition: int) -> int:
        """The offset below which somebody asked to delete records."""
        return max((trim.offset for trim in self.trims if trim.partition == partition), default=0)

    def is_excused(self, partition: int, offset: int, since: float) -> bool:
        """Whether the offset may be gone: deleted, or taken by a power loss in a mode that allows it."""
        if offset < self.trimmed(partition):
            return True
        return not self.is_flushed_before_ack and any(
            loss.at >= since and offset >= loss.survived.get(partition, 0) for loss in self.losses
        )
