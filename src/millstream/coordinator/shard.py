"""What a coordinator's state machine is to the runtime that drives it.

A shard is the state of one partition of an internal topic. Its operations are plain functions: they
look at the state and return the records to be written and the response; they change nothing that has
to survive. The runtime writes the records and gives each to `replay`, the only place where durable
state changes, and answers when they are committed. So the state is always what replaying the log
gives, and loading is nothing but replaying. What need not survive (who is waiting, timers) an
operation may change directly.

Shards do no I/O and know no event loop: time, timers and randomness are given to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from millstream.coordinator.promise import Promise

T = TypeVar("T")


class Entry(NamedTuple):
    """A record of an internal topic: a key, and a value or None, which deletes the key."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """The transactional producer on whose behalf entries are written (TxnOffsetCommit)."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False)
class Result(Generic[T]):
    """What an operation wants: entries to write, all in one batch or none, and what to answer then.

    Nobody changes it. (It is not frozen because that would make it three times as dear to make.)

    A Promise as the response is waited for after the entries are committed. Entries that may be more
    than fit in one batch, and of which any may be written without the others, are not atomic.
    """

    response: T | Promise[T]
    entries: Sequence[Entry] = ()
    producer: Producer | None = None
    is_atomic: bool = True


class Timers(Protocol):
    """Work that a shard wants done later. A timer is known by its key; setting it again moves it."""

    def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
        """Do `work` as an operation of this shard after `delay_ms`, unless moved or cancelled."""
        ...

    def set_idle(self, key: object, work: Callable[[], Result[Any]]) -> None:
        """Do `work` soon, in a turn of its own: other shards, and all else, get theirs in between."""
        ...

    def cancel(self, key: object) -> None: ...


class Shard(Protocol):
    """The state of one partition of an internal topic."""

    def replay(self, entry: Entry, producer: Producer | None, offset: int) -> None:
        """Take over an entry that is in the log. Unknown kinds of entries are passed over."""
        ...

    def replay_end(self, producer: Producer, is_commit: bool) -> None:
        """Take over the end of a transaction that wrote entries here."""
        ...

    def prepare(self) -> Iterator[None]:
        """All that is in the log has been replayed: make ready what `loaded` needs, in short steps.

        Others get their turn between the steps; nobody is served yet.
        """
        ...

    def loaded(self) -> None:
        """Begin to serve, set timers."""
        ...

    def unloaded(self, error: Exception) -> None:
        """This broker no longer leads the partition: break every promise with `error`."""
        ...
