"""Judges a ledger: transactions are seen whole or not at all, groups lose no position, and share well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tests.simulation.checker import Anomaly
from tests.simulation.ledger import Fate, Ledger, payload_of, transaction_of


def check_ledger(ledger: Ledger) -> list[Anomaly]:
    """Everything that is wrong with a ledger, by rule."""
    return [anomaly for rule in RULES for anomaly in rule(ledger)]


def aborted_reads(ledger: Ledger) -> Iterator[Anomaly]:
    """No reader of committed records, at any time, gets a value of a transaction that did not commit."""
    claims = [(read.reader, read.place, read.offset, read.value) for read in ledger.reads]
    claims += [("the end", place, *entry) for place, log in ledger.final.items() for entry in log]
    for reader, place, offset, value in claims:
        transaction = ledger.transactions.get(transaction_of(value))
        if transaction is None:
            if place in ledger.accounts or place in ledger.outputs:
                yield Anomaly("invented-value", f"{reader} got {value!r} at {place}@{offset}")
        elif transaction.fate in (Fate.ABORTED, Fate.OPEN):
            text = f"{reader} got {value!r} at {place}@{offset}"
            yield Anomaly("aborted-read", f"{text} of a transaction that is {transaction.fate.value}")


def torn_transactions(ledger: Ledger) -> Iterator[Anomaly]:
    """In the end a committed transaction is there whole, one in doubt whole or not at all; none twice."""
    count = Counter(value for log in ledger.final.values() for _, value in log)
    for value, times in count.items():
        if times > 1:
            yield Anomaly("duplicate", f"{value!r} is there {times} times")
    for transaction in ledger.transactions.values():
        values = [value for each in transaction.values.values() for value in each]
        missing = [value for value in values if value not in count]
        if missing and transaction.fate is Fate.COMMITTED:
            yield Anomaly("lost-commit", f"{transaction.name}: {missing} of {len(values)} are missing")
        elif missing and len(missing) < len(values):
            yield Anomaly("torn-transaction", f"{transaction.name}: {missing} of {len(values)} are missing")


def changed_reads(ledger: Ledger) -> Iterator[Anomaly]:
    """What a reader got up to where it came is what is there in the end: nothing more, less, or else."""
    read: dict[tuple[str, tuple[str, int]], list[tuple[int, str]]] = {}
    for each in ledger.reads:
        read.setdefault((each.reader, each.place), []).append((each.offset, each.value))
    for (reader, place), position in ledger.positions.items():
        expected = [entry for entry in ledger.final.get(place, ()) if entry[0] < position]
        got = read.get((reader, place), [])
        if got != expected:
            wrong = next((pair for pair in zip(got, expected, strict=False) if pair[0] != pair[1]), None)
            text = f"{reader} read {len(got)} values of {place} below {position}, there are {len(expected)}"
            yield Anomaly("changed-read", f"{text}; the first that differ: {wrong}")


def wrong_totals(ledger: Ledger) -> Iterator[Anomaly]:
    """Transfers make no money."""
    log = [entry for place in ledger.accounts for entry in ledger.final.get(place, ())]
    total = sum(int(payload_of(value)) for _, value in log)
    if total:
        yield Anomaly("wrong-total", f"{len(log)} transfers make {total}")


def zombies(ledger: Ledger) -> Iterator[Anomaly]:
    """A commit that is asked for after another producer has taken the id does not happen."""
    committed = {transaction_of(value) for log in ledger.final.values() for _, value in log}
    for transaction in ledger.transactions.values():
        if transaction.name not in committed:
            continue
        for arrival in ledger.arrivals:
            if (
                arrival.producer_id == transaction.producer_id
                and arrival.epoch > transaction.epoch
                and arrival.at < transaction.asked_at
            ):
                yield Anomaly(
                    "zombie", f"{transaction.name} of epoch {transaction.epoch} in spite of {arrival}"
                )
                break


def moved_back(ledger: Ledger) -> Iterator[Anomaly]:
    """A position that was committed is the least told later, unless one that was in doubt came late."""
    for read in ledger.offset_reads:
        commits = [c for c in ledger.commits if c.group == read.group and c.place == read.place]
        best = max((c.offset for c in commits if c.is_done and c.done_at < read.asked_at), default=-1)
        if read.offset >= best:
            continue
        if not any(c.is_done is None and c.offset == read.offset and c.sent_at < read.at for c in commits):
            yield Anomaly("moved-back", f"{read}, though {best} was committed")


def skipped(ledger: Ledger) -> Iterator[Anomaly]:
    """What lies below a committed position has been handled by the group."""
    best: dict[tuple[str, tuple[str, int]], int] = {}
    for commit in ledger.commits:
        if commit.is_done:
            key = (commit.group, commit.place)
            best[key] = max(best.get(key, -1), commit.offset)
    for (group, place), offset in best.items():
        handled = ledger.consumed.get((group, place), set())
        missing = [at for at, _ in ledger.final.get(place, ()) if at < offset and at not in handled]
        if missing:
            yield Anomaly("skipped", f"{group} committed {place}@{offset} without {missing[:5]}")


def badly_shared(ledger: Ledger) -> Iterator[Anomaly]:
    """In a generation no partition belongs to two members, and each to one if all members were told."""
    generations: dict[tuple[str, int], list[int]] = {}
    for index, given in enumerate(ledger.assignments):
        generations.setdefault((given.group, given.generation), []).append(index)
    everything: dict[str, set[tuple[str, int]]] = {}
    for given in ledger.assignments:
        everything.setdefault(given.group, set()).update(given.places)
    for (group, generation), indexes in generations.items():
        told = [ledger.assignments[index] for index in indexes]
        owners: dict[tuple[str, int], str] = {}
        for given in told:
            for place in given.places:
                other = owners.setdefault(place, given.member)
                if other != given.member:
                    text = f"{group} generation {generation}: {place} belongs to {other} and {given.member}"
                    yield Anomaly("badly-shared", text)
        members = next((given.members for given in told if given.members), None)
        if members is not None and set(members) <= {given.member for given in told}:
            missing = everything[group] - set(owners)
            if missing:
                yield Anomaly("badly-shared", f"{group} generation {generation}: {missing} belong to nobody")


def held_twice(ledger: Ledger) -> Iterator[Anomaly]:
    """No two members of a group of the new protocol hold a partition at one moment."""
    last: dict[tuple[str, tuple[str, int]], tuple[float, str]] = {}
    for held in sorted(ledger.holdings, key=lambda each: each.since):
        until, member = last.get((held.group, held.place), (-1.0, ""))
        if held.since < until and member != held.member:
            yield Anomaly("held-twice", f"{held} while {member} has it until {until}")
        last[held.group, held.place] = max((until, member), (held.until, held.member))


def inexact_outputs(ledger: Ledger) -> Iterator[Anomaly]:
    """The workers' output holds each input once, in the order of its partition."""
    if not ledger.outputs:
        return
    for (topic, partition), values in ledger.inputs.items():
        place = next((place for place in ledger.outputs if place[1] == partition), None)
        made = [payload_of(value) for _, value in ledger.final.get(place, ())] if place else []
        if made != values:
            count = Counter(made)
            missing = [value for value in values if value not in count]
            repeated = [value for value, times in count.items() if times > 1]
            text = f"{topic}-{partition}: {len(values)} became {len(made)}"
            yield Anomaly("inexact-output", f"{text}; missing {missing[:5]}, repeated {repeated[:5]}")


def complaints(ledger: Ledger) -> Iterator[Anomaly]:
    """What clients saw themselves."""
    for text in ledger.complaints:
        yield Anomaly("complaint", text)


RULES: tuple[Callable[[Ledger], Iterator[Anomaly]], ...] = (
    aborted_reads,
    torn_transactions,
    changed_reads,
    wrong_totals,
    zombies,
    moved_back,
    skipped,
    badly_shared,
    held_twice,
    inexact_outputs,
    complaints,
)
