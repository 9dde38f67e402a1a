"""What there is in a simulated cluster besides the rest: by the seed, whatever else that decides."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

PARTS = {
    "is_changeful": (0.3, 0x5EED),
    "trims": (0.25, 0x7219),
    "unclean": (0.2, 0x0C1E),
    "compacts": (0.15, 0xC0DA),
    "loses_disks": (0.2, 0xD15C),
    "reads_anywhere": (0.2, 0x4EA2),
    "new_groups": (0.3, 0x848),
    "is_wide": (0.15, 0xFA12),
}
"""In how many of all seeds there is each, and what tells its random numbers from the others'."""


class Setting(NamedTuple):
    """What one seed has."""

    is_changeful: bool
    """A topic that comes and goes all the time, and an operator in a hurry."""
    trims: bool
    """A topic whose oldest records go all the time."""
    unclean: bool
    """A topic whose replicas are elected though they are not in sync: acknowledged records may be lost."""
    compacts: bool
    """A topic of which only the last record of each key stays; and so it is with the internal topics."""
    loses_disks: bool
    """Brokers that come back with empty disks; and somebody who asks where partitions end all the time."""
    reads_anywhere: bool
    """One who reads from any replica (KIP-392)."""
    new_groups: bool
    """A group of readers of the new protocol (KIP-848), in place of the old one's."""
    is_wide: bool
    """One broker is far from the others."""


def setting_of(seed: int, asked: dict[str, bool]) -> Setting:
    """That of a seed, but for what is asked for."""
    chosen = {name: Random(seed ^ salt).random() < share for name, (share, salt) in PARTS.items()}
    return Setting(**{**chosen, **asked})


def random_for(seed: int, part: str) -> Random:
    """Random numbers of one part's own."""
    return Random(seed ^ PARTS[part][1] << 1)
