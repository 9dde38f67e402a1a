"""Which brokers get the replicas of new partitions: evenly, leaders too, and across racks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from millstream.errors import InvalidReplicationFactor

NONE: Mapping[int, str | None] = {}


def place(
    count: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    random: Random,
    first: int = 0,
    absent: Mapping[int, str | None] = NONE,
) -> list[list[int]]:
    """Replica lists for partitions `first`, `first + 1`, …; the first of a list is to lead.

    Leaders go round the brokers from a random start. The other replicas follow at a distance that
    grows each time round, so that the partitions of a broker that stops are taken over by all.
    Brokers are ordered so that neighbours stand in different racks where they can.

    Only if `racks`, the brokers that are there, are too few, the last replicas are on `absent` ones.
    """
    if replication_factor < 1 or not racks or replication_factor > len(racks) + len(absent):
        away = f", and {len(absent)} are away" if absent else ""
        raise InvalidReplicationFactor(
            f"a replication factor of {replication_factor} needs as many brokers;"
            f" there are {len(racks)}{away}"
        )
    missing = max(0, replication_factor - len(racks))
    replication_factor -= missing
    brokers = _across_racks(racks)
    reserve = _across_racks(absent) if missing else []
    size = len(brokers)
    start = random.randrange(size)
    distance = random.randrange(size)
    placed = []
    for partition in range(first, first + count):
        lead = (partition + start) % size
        step = distance + partition // size
        replicas = [
            brokers[lead],
            *(
                brokers[(lead + 1 + (step + follower) % (size - 1)) % size]
                for follower in range(replication_factor - 1)
            ),
        ]
        chosen = _spread(replicas, brokers, racks)
        for _ in range(missing):
            chosen.append(_next(_from(partition, reserve), chosen, {**racks, **absent}))
        placed.append(chosen)
    return placed


def _across_racks(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers in an order that takes one of each rack in turn."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    groups = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, groups))
    return [group[i] for i in range(longest) for group in groups if i < len(group)]


def _spread(replicas: Sequence[int], brokers: Sequence[int], racks: Mapping[int, str | None]) -> list[int]:
    """Change followers for the next broker of a rack not used yet, while there is one."""
    if len(set(racks.values())) < 2:
        return list(replicas)
    chosen = [replicas[0]]
    for replica in replicas[1:]:
        chosen.append(_next(_from(brokers.index(replica), brokers), chosen, racks))
    return chosen


def _from(at: int, brokers: Sequence[int]) -> list[int]:
    """Brokers in their order, from one of them on, round to the one before it."""
    at %= len(brokers)
    return [*brokers[at:], *brokers[:at]]


def _next(brokers: Sequence[int], chosen: Sequence[int], racks: Mapping[int, str | None]) -> int:
    """The first broker that is not chosen yet, if there is one of a rack that is not used yet."""
    used = {racks[broker] for broker in chosen}
    free = [broker for broker in brokers if broker not in chosen]
    return next((broker for broker in free if racks[broker] not in used), free[0])
