"""Which brokers get the replicas of new partitions: evenly, leaders too, and across racks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from millstream.errors import InvalidReplicationFactor


def place(
    count: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    random: Random,
    first: int = 0,
) -> list[list[int]]:
    """Replica lists for partitions `first`, `first + 1`, …; the first of a list is to lead.

    Leaders go round the brokers from a random start. The other replicas follow at a distance that
    grows each time round, so that the partitions of a broker that stops are taken over by all.
    Brokers are ordered so that neighbours stand in different racks where they can.
    """
    if replication_factor < 1 or replication_factor > len(racks):
        raise InvalidReplicationFactor(
            f"a replication factor of {replication_factor} needs as many brokers; there are {len(racks)}"
        )
    brokers = _across_racks(racks)
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
        placed.append(_spread(replicas, brokers, racks))
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
        used = {racks[broker] for broker in chosen}
        at = brokers.index(replica)
        around = [*brokers[at:], *brokers[:at]]
        free = [broker for broker in around if broker not in chosen]
        chosen.append(next((broker for broker in free if racks[broker] not in used), free[0]))
    return chosen
