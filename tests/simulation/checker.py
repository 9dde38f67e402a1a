"""Judges a history as Jepsen's Kafka workload does: each rule gives the anomalies it found.

What may be lost depends on the fault. The death of a process loses nothing that was acknowledged or
read. A power loss loses nothing either where acknowledgements mean fsynced; else it may cut each log
to a prefix, whose length the platter tells, and nothing below that may change.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.simulation.history import History


class Anomaly(NamedTuple):
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(history: History) -> list[Anomaly]:
    """Everything that is wrong with a history, by rule."""
    return [anomaly for rule in RULES for anomaly in rule(history)]


def lost_writes(history: History) -> Iterator[Anomaly]:
    """An acknowledged value is in the final log, at the acknowledged offset."""
    final = _by_offset(history)
    for ack in history.acks:
        if history.is_excused(ack.partition, ack.offset, ack.sent_at):
            continue
        found = final.get((ack.partition, ack.offset))
        if found is None:
            yield Anomaly("lost-write", f"{ack} is missing from the final log")
        elif found != ack.value:
            yield Anomaly("lost-write", f"{ack}, but the final log has {found!r} there")


def changed_reads(history: History) -> Iterator[Anomaly]:
    """What a consumer read is in the final log, at the same offset."""
    final = _by_offset(history)
    for read in history.reads:
        if history.is_excused(read.partition, read.offset, read.asked_at):
            continue
        found = final.get((read.partition, read.offset))
        if found != read.value:
            yield Anomaly("changed-read", f"{read}, but the final log has {found!r} there")


def inconsistent_offsets(history: History) -> Iterator[Anomaly]:
    """Between two power losses an offset has one value, whoever speaks of it."""
    seen: dict[tuple[int, int, int], str] = {}
    claims = [(a.partition, a.offset, a.value, a.sent_at, a.acked_at) for a in history.acks]
    claims += [(r.partition, r.offset, r.value, r.asked_at, r.at) for r in history.reads]
    for partition, offset, value, begin, end in claims:
        epoch = _losses_before(history, begin)
        if epoch != _losses_before(history, end):
            continue
        other = seen.setdefault((partition, offset, epoch), value)
        if other != value:
            yield Anomaly("inconsistent-offset", f"{partition}@{offset} is both {other!r} and {value!r}")


def invented_values(history: History) -> Iterator[Anomaly]:
    """Every value anywhere was sent, and to that partition."""
    claims = [(r.partition, r.offset, r.value) for r in history.reads]
    claims += [(p, entry.offset, entry.value) for p, log in history.final.items() for entry in log]
    for partition, offset, value in claims:
        sent = history.sends.get(value)
        if sent is None or sent.partition != partition:
            yield Anomaly("invented-value", f"{value!r} at {partition}@{offset} was never sent there")


def gaps(history: History) -> Iterator[Anomaly]:
    """A final log's offsets are contiguous."""
    for partition, log in history.final.items():
        for before, after in itertools.pairwise(log):
            if after.offset != before.offset + 1:
                yield Anomaly("offset-gap", f"{partition}: {after} follows {before}")


def late_starts(history: History) -> Iterator[Anomaly]:
    """A final log starts no later than where somebody asked it to."""
    for partition, log in history.final.items():
        asked = history.trimmed(partition)
        if log and log[0].offset > asked:
            yield Anomaly("late-start", f"{partition} starts at {log[0]}, not at or before {asked}")


def undeleted(history: History) -> Iterator[Anomaly]:
    """What was deleted stays deleted, unless a power loss cut the log off below that."""
    for trim in history.trims:
        log = history.final.get(trim.partition)
        if trim.done_at is None or not log or log[0].offset >= trim.offset:
            continue
        if not any(
            loss.at >= trim.asked_at and loss.survived.get(trim.partition, 0) < trim.offset
            for loss in history.losses
        ):
            yield Anomaly("undeleted", f"{log[0]} is there in spite of {trim}")


def skipped_reads(history: History) -> Iterator[Anomaly]:
    """Within a run a consumer gets the next offset each time: none skipped, none again."""
    position: dict[tuple[str, int, int], int] = {}
    for read in history.reads:
        key = (read.consumer, read.run, read.partition)
        expected = position.get(key)
        if expected is not None and read.offset != expected:
            yield Anomaly("skipped-read", f"{read} came where offset {expected} was next")
        position[key] = read.offset + 1


def duplicates(history: History) -> Iterator[Anomaly]:
    """A value of an idempotent producer is in the final log at most once."""
    for partition, log in history.final.items():
        first: dict[str, int] = {}
        for entry in log:
            sent = history.sends.get(entry.value)
            if sent is None or sent.producer not in history.idempotent:
                continue
            before = first.setdefault(entry.value, entry.offset)
            if before != entry.offset:
                text = f"{entry.value!r} is at {partition}@{before} and @{entry.offset}"
                yield Anomaly("duplicate", text)


def reordered(history: History) -> Iterator[Anomaly]:
    """The values of a producer appear (first) in the order in which it sent them.

    A producer that is not idempotent repeats what may have been lost. So where a power loss or an
    operator took the first of two copies, or a part of it, only the second tells of the order.
    """
    cut = {a.value for a in history.acks if history.is_excused(a.partition, a.offset, a.sent_at)}
    for partition, log in history.final.items():
        counts = Counter(entry.value for entry in log) if history.trimmed(partition) else Counter()
        last: dict[str, int] = {}
        seen: set[str] = set()
        for entry in log:
            sent = history.sends.get(entry.value)
            if sent is None or entry.value in seen:
                continue
            seen.add(entry.value)
            is_repeated = entry.value in cut or counts[entry.value] > 1
            if entry.value in history.repeated or (is_repeated and sent.producer not in history.idempotent):
                continue
            if sent.index < last.get(sent.producer, -1):
                text = f"{partition}@{entry.offset} has {entry.value!r} after {last[sent.producer]}"
                yield Anomaly("reordered", text)
            last[sent.producer] = max(sent.index, last.get(sent.producer, -1))


def complaints(history: History) -> Iterator[Anomaly]:
    """What clients saw themselves."""
    for text in history.complaints:
        yield Anomaly("complaint", text)


RULES: tuple[Callable[[History], Iterator[Anomaly]], ...] = (
    lost_writes,
    changed_reads,
    inconsistent_offsets,
    invented_values,
    gaps,
    late_starts,
    undeleted,
    skipped_reads,
    duplicates,
    reordered,
    complaints,
)


def _by_offset(history: History) -> dict[tuple[int, int], str]:
    return {(p, entry.offset): entry.value for p, log in history.final.items() for entry in log}


def _losses_before(history: History, at: float) -> int:
    return sum(1 for loss in history.losses if loss.at <= at)
