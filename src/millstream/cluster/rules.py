"""What leaders and followers of a partition decide, as functions of what they know.

No log, no clock, no network: the broker runs these very functions, and so can whatever explores all
their outcomes. Offsets are exclusive ends: a replica whose end is 5 has the records 0 to 4.

The rules together keep one promise: a record below the high watermark is in the log of every replica
that may ever be elected.

- The high watermark counts every replica that is in the committed ISR or in a proposed one, so that
  it is right whichever of the two the controller has written down. With fewer in the committed ISR than
  min.insync.replicas asks for it stands still.
- A replica joins the ISR only when it has everything up to the high watermark, and everything up to the
  start of its leader's epoch.
- A follower keeps exactly the part of its log that its leader has too, found by leader epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from millstream.storage.epochs import UNKNOWN_EPOCH, end_of_epoch

UNKNOWN = UNKNOWN_EPOCH

Epochs = Sequence[tuple[int, int]]
"""(leader epoch, first offset) of a log, both growing."""

# The leader


def counted(
    isr: Collection[int], proposed: Collection[int] | None, joining: Collection[int] = ()
) -> set[int]:
    """The replicas that must have a record before it is committed.

    While a change is pending that is the union of old and new. Those about to join are waited for too, or
    they would never meet a high watermark that runs ahead of them.
    """
    return {*isr, *joining} if proposed is None else {*isr, *proposed, *joining}


def has_enough(isr: Collection[int], min_insync: int, replicas: Collection[int]) -> bool:
    """Whether the committed ISR is large enough for acks=all; never more than there are replicas."""
    return len(isr) >= min(min_insync, len(replicas))


def high_watermark(current: int, own_end: int, other_ends: Iterable[int], *, has_enough: bool) -> int:
    """Up to where everything is committed. It never moves back.

    `other_ends` are those of the counted replicas, UNKNOWN for one that has not been heard of in this
    epoch. Nothing is committed by fewer replicas than min.insync.replicas asks for: those that left when
    the ISR became that small still have all that is committed, and may be elected (KIP-966).
    """
    return max(current, min((own_end, *other_ends))) if has_enough else current


def acknowledged(high_watermark: int, known: Iterable[int], *, min_insync: int) -> int:
    """Up to where records may be acknowledged to a producer that wants all in-sync replicas to have them.

    `known` are the high watermarks that the counted followers have been told. Where a replica that is
    left alone may commit nothing more (min.insync.replicas of two or more), it can show only what it
    knows to be committed: so what was acknowledged must be known to all of them before.
    """
    return high_watermark if min_insync <= 1 else min((high_watermark, *known))


def may_join(end: int, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower has what every member of the ISR must have."""
    return end >= high_watermark and end >= epoch_start


def is_caught_up(end: int, leader_end: int, caught_up_at: float, now: float, max_lag: float) -> bool:
    """Whether a follower has everything, or had everything not long ago."""
    return end == leader_end or now - caught_up_at <= max_lag


def with_member(isr: Collection[int], replica: int, replicas: Sequence[int]) -> list[int]:
    """The ISR with one more, in the order of the replicas."""
    return [one for one in replicas if one in isr or one == replica]


def without(isr: Collection[int], gone: Collection[int], replicas: Sequence[int]) -> list[int]:
    """The ISR without some, in the order of the replicas."""
    return [one for one in replicas if one in isr and one not in gone]


# Epochs


def divergence(
    epochs: Epochs, log_end: int, follower_epoch: int, follower_end: int
) -> tuple[int, int] | None:
    """What a leader tells a follower whose log is not a part of its own; None if it is (KIP-595).

    The follower's last record is of `follower_epoch`. The answer is the leader's last epoch up to
    that one, and where it ends.
    """
    epoch, end = end_of_epoch(epochs, follower_epoch, log_end)
    if epoch < follower_epoch or end < follower_end:
        return epoch, end
    return None


def truncation(epochs: Epochs, log_end: int, leader_epoch: int, leader_end: int) -> int:
    """Where a follower cuts its log off, given what `divergence` told it.

    What is left may still differ from the leader's log (if the follower has no records of that epoch);
    then the next fetch says so, for an earlier epoch.
    """
    _, end = end_of_epoch(epochs, leader_epoch, log_end)
    return min(leader_end, log_end if end == UNKNOWN else end, log_end)
