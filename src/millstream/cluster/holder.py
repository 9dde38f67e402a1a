"""What a partition knows of the broker that holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.clock import Clock
from millstream.cluster.transactional_appends import Admission, no_admission
from millstream.storage.threads import Threads

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition


def _always() -> bool:
    return True


def _is_anyone_there(_broker_id: int, _broker_epoch: int) -> bool:
    return True


def _nobody_decides(_: Partition) -> None:
    """There is no controller to ask."""


def _half_a_minute() -> float:
    return 30.0


@dataclass(slots=True)
class Holder:
    """A broker, as far as its partitions are concerned; by itself, unless told otherwise."""

    broker_id: int
    clock: Clock
    max_decompressed_bytes: Callable[[], int]
    """How much a batch may unfold to, as it is set now."""
    admission: Admission = no_admission
    """Asks the coordinators about transactional batches."""
    is_lease_held: Callable[[], bool] = _always
    """Whether this broker may still act as what the cluster believes it to be."""
    is_there: Callable[[int, int], bool] = _is_anyone_there
    """Whether a broker of this id is in the cluster, and has no later broker epoch than this."""
    is_alive: Callable[[int, int], bool] = _is_anyone_there
    """The same of one that stays: it is not about to stop."""
    propose: Callable[[Partition], None] = _nobody_decides
    """Have the controller decide about the ISR that a partition's leader proposes."""
    max_lag_s: Callable[[], float] = _half_a_minute
    """How long a follower may lag behind and stay in sync."""
    threads: Threads = field(default_factory=Threads)
    """Where it is waited for disks, and where large batches are checked."""
