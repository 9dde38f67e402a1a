"""Who reads what in a classic group: what its leader works out for all members. Functions only.

An assignor gets the members' subscriptions and how many partitions each topic has, and gives each member
its partitions. All members and versions of a group must come to agree, so names and rules are Kafka's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle

from millstream.model import TopicPartition

RANGE = "range"
ROUND_ROBIN = "roundrobin"
COOPERATIVE_STICKY = "cooperative-sticky"


@dataclass(frozen=True, slots=True)
class Member:
    """What one member said when it joined. A static member is known by its instance's name."""

    id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by name, so that a restart changes nothing."""
        return (self.instance_id is None, self.instance_id or self.id)


Members = list[Member]
Sizes = Mapping[str, int]
"""How many partitions each topic has; topics that do not exist are left out."""
Plan = dict[str, list[TopicPartition]]
"""The partitions of each member, by its id."""


def assign_range(members: Members, sizes: Sizes) -> Plan:
    """Topic by topic, consecutive partitions to each member; the first ones get one more."""
    plan: Plan = {member.id: [] for member in members}
    for topic, size in sorted(sizes.items()):
        takers = sorted((each for each in members if topic in each.topics), key=lambda each: each.order)
        start = 0
        for place, taker in enumerate(takers):
            count = size // len(takers) + (place < size % len(takers))
            plan[taker.id] += [TopicPartition(topic, index) for index in range(start, start + count)]
            start += count
    return plan


def assign_round_robin(members: Members, sizes: Sizes) -> Plan:
    """All partitions in order, one to each member in turn."""
    plan: Plan = {member.id: [] for member in members}
    turns = cycle(sorted(members, key=lambda each: each.order))
    for topic, size in sorted(sizes.items()):
        if not any(topic in member.topics for member in members):
            continue
        for index in range(size):
            taker = next(member for member in turns if topic in member.topics)
            plan[taker.id].append(TopicPartition(topic, index))
    return plan


def assign_cooperative_sticky(members: Members, sizes: Sizes) -> Plan:
    """As even as can be, moving as little as can be, and in two steps (KIP-429).

    A partition that moves is given to nobody at first: its owner gives it up, the group rebalances once
    more, and then its new owner gets it.
    """
    plan = _balanced(members, sizes)
    claimed = frozenset[TopicPartition]().union(*(member.owned for member in members))
    held = _kept(members, set(claimed))
    return {
        member_id: [each for each in partitions if each not in claimed or each in held[member_id]]
        for member_id, partitions in plan.items()
    }


@dataclass(slots=True)
class _Board:
    """A plan being made."""

    members: dict[str, Member]
    takers: dict[str, list[str]]
    held: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def load(self, member_id: str) -> tuple[int, tuple[bool, str]]:
        return len(self.held[member_id]), self.members[member_id].order


def _balanced(members: Members, sizes: Sizes) -> Plan:
    board = _Board(
        {member.id: member for member in members},
        {topic: [each.id for each in members if topic in each.topics] for topic in sizes},
    )
    wanted = {
        TopicPartition(topic, index)
        for topic, size in sizes.items()
        if board.takers[topic]
        for index in range(size)
    }
    board.held = _kept(members, wanted)
    kept = frozenset[TopicPartition]().union(*board.held.values())
    _shed(board, len(wanted))
    held = frozenset[TopicPartition]().union(*board.held.values())
    # Those that few members can take come first, while there is a choice; then what nobody had.
    loose = sorted(wanted - held, key=lambda each: (len(board.takers[each.topic]), each in kept, each))
    for partition in loose:
        taker = min(board.takers[partition.topic], key=board.load)
        board.held[taker].add(partition)
    _level(board)
    return {member_id: sorted(partitions) for member_id, partitions in board.held.items()}


def _kept(members: Members, wanted: set[TopicPartition]) -> dict[str, set[TopicPartition]]:
    """What each member may keep: of two that claim a partition, the one of the later generation."""
    claims: dict[TopicPartition, list[Member]] = defaultdict(list)
    for member in members:
        for partition in member.owned:
            if partition in wanted and partition.topic in member.topics:
                claims[partition].append(member)
    held: dict[str, set[TopicPartition]] = {member.id: set() for member in members}
    for partition, claimants in claims.items():
        latest = max(claimant.generation for claimant in claimants)
        best = [claimant for claimant in claimants if claimant.generation == latest]
        if len(best) == 1:  # of two in one generation neither is believed
            held[best[0].id].add(partition)
    return held


def _shed(board: _Board, total: int) -> None:
    """Where all members want the same topics: nobody keeps more than an even share."""
    if len({member.topics for member in board.members.values()}) != 1:
        return
    share, more = divmod(total, len(board.members))
    for member_id in sorted(board.held, key=board.load, reverse=True):
        held = board.held[member_id]
        quota = share + 1 if more > 0 and len(held) > share else share
        more -= quota > share
        for partition in sorted(held)[quota:]:
            held.discard(partition)


def _level(board: _Board) -> None:
    """Move partitions from members with more to members with less, while that makes it more even."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(board.held, key=board.load, reverse=True):
            for partition in sorted(board.held[giver], reverse=True):
                taker = min(board.takers[partition.topic], key=board.load)
                if len(board.held[taker]) + 1 < len(board.held[giver]):
                    board.held[giver].discard(partition)
                    board.held[taker].add(partition)
                    moved = True


ASSIGNORS: dict[str, Callable[[Members, Sizes], Plan]] = {
    COOPERATIVE_STICKY: assign_cooperative_sticky,
    RANGE: assign_range,
    ROUND_ROBIN: assign_round_robin,
}


def is_cooperative(names: tuple[str, ...]) -> bool:
    """Whether members keep what they read while they rebalance: all assignors must allow it."""
    return all(name == COOPERATIVE_STICKY for name in names)
