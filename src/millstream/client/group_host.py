"""What a member of a group asks of the consumer whose partitions it looks after."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from re import Pattern
from typing import Protocol

from millstream.client.group_metadata import GroupMetadata
from millstream.client.metadata import Metadata
from millstream.errors import KafkaError, UnknownMemberId
from millstream.model import TopicPartition

RE2_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
JOINS_AGAIN = "the next poll joins again and goes on where the group has committed"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name, or those whose whole names match a pattern."""

    topics: frozenset[str] = frozenset()
    pattern: Pattern[str] | None = None

    @property
    def expression(self) -> str | None:
        """The pattern for a broker, which reads RE2 (KIP-848): flags stand in the text there."""
        if self.pattern is None:
            return None
        if self.pattern.flags & re.VERBOSE:
            raise ValueError("brokers cannot read a verbose pattern (re.VERBOSE): write it without")
        flags = "".join(letter for flag, letter in RE2_FLAGS.items() if self.pattern.flags & flag)
        return f"(?{flags}){self.pattern.pattern}" if flags else self.pattern.pattern

    def of(self, metadata: Metadata) -> frozenset[str]:
        """The topics that are subscribed to now."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, topic in metadata.topics.items()
            if not topic.is_internal and self.pattern.fullmatch(name)
        )


class GroupHost(Protocol):
    """The consumer, as its membership sees it. The coroutines end once a poll has done them."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""

    @property
    def idle_ms(self) -> float:
        """How long ago the caller last asked for records."""

    async def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading partitions after having committed, and tell the caller."""

    async def lose(self) -> None:
        """Stop reading all partitions, which may be somebody else's already, and tell the caller."""

    async def take_on(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin to read partitions, and tell the caller."""

    async def until_polled(self) -> None:
        """Wait until the caller asks for records again."""

    def fail(self, error: BaseException, *, for_good: bool = False) -> None:
        """Let the next poll raise an error; every poll, where the membership is over for good."""


class Membership(Protocol):
    """A consumer's place in a group, of either protocol."""

    @property
    def identity(self) -> GroupMetadata:
        """Who commits. One who was put out keeps its last identity until it has joined again: brokers
        refuse that one, and let in those who have none."""

    @property
    def loss(self) -> KafkaError | None:
        """Why the group has this member no more; None while it has it, and before it had."""

    @property
    def losses(self) -> int:
        """How often the group had this member no more."""

    @property
    def is_asking(self) -> bool:
        """Whether the coordinator's answer, which may change who commits, is still to come."""

    @property
    def is_joined(self) -> bool:
        """Whether the group has given this member its partitions."""

    def subscribe(self, subscription: Subscription) -> None:
        """Want other topics."""

    def start(self) -> None:
        """Join the group in the background."""

    async def leave(self) -> None:
        """Stop, and tell the coordinator unless the member is static."""


def too_slow(group: str, max_poll_interval_ms: int) -> KafkaError:
    """Why a member is out whose caller did not poll."""
    return UnknownMemberId(
        f"this consumer is out of group {group} and its partitions are given to others, since it was not "
        f"polled in max_poll_interval_ms={max_poll_interval_ms}: {JOINS_AGAIN}. To be in time, ask for "
        "fewer records with each poll or raise max_poll_interval_ms"
    )


def put_out(group: str) -> KafkaError:
    """Why a member is out that the coordinator does not know any more."""
    return UnknownMemberId(
        f"group {group} has put this consumer out and gives its partitions to others: {JOINS_AGAIN}"
    )


Callback = Callable[[list[TopicPartition]], "Awaitable[None] | None"]
