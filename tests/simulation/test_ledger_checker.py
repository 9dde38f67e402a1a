"""Each rule of the ledger finds what it is there for, and nothing in a good ledger."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.ledger import (
    Arrival,
    Assignment,
    CommittedRead,
    Fate,
    Holding,
    Ledger,
    OffsetCommit,
    OffsetRead,
)
from tests.simulation.ledger_checker import check_ledger

A, B = ("accounts", 0), ("accounts", 1)
IN, OUT = ("input", 0), ("output", 0)


def good() -> Ledger:
    """One transfer that was committed, one that was aborted, one copy, and a group that has read all."""
    ledger = Ledger(accounts=(A, B), outputs=(OUT,))
    committed = ledger.open("t.1", 1, 0)
    committed.values = {A: ["t.1:a:-5"], B: ["t.1:b:5"]}
    committed.fate, committed.asked_at = Fate.COMMITTED, 3.0
    aborted = ledger.open("t.2", 1, 1)
    aborted.values = {A: ["t.2:a:-7"], B: ["t.2:b:7"]}
    aborted.fate = Fate.ABORTED
    copy = ledger.open("w.1", 2, 0)
    copy.values, copy.fate = {OUT: ["w.1:o:x"]}, Fate.COMMITTED
    ledger.final = {A: [(0, "t.1:a:-5")], B: [(0, "t.1:b:5")], IN: [(0, "x")], OUT: [(0, "w.1:o:x")]}
    ledger.inputs = {IN: ["x"]}
    ledger.reads = [CommittedRead("r", A, 0, "t.1:a:-5")]
    ledger.positions = {("r", A): 2}
    ledger.commits = [OffsetCommit("g", A, 2, 1.0, 2.0, True)]
    ledger.offset_reads = [OffsetRead("g", A, 2, 3.0, 4.0)]
    ledger.consumed = {("g", A): {0}}
    ledger.assignments = [Assignment("g", 1, "m", (A,), ("m", "n")), Assignment("g", 1, "n", (B,))]
    ledger.holdings = [Holding("h", A, "m", 1.0, 2.0), Holding("h", A, "n", 2.5, 3.0)]
    return ledger


def test_a_good_ledger() -> None:
    assert check_ledger(good()) == []


def invent(ledger: Ledger) -> None:
    ledger.final[A].append((4, "nobody:a:0"))
    ledger.positions.clear()


def read_aborted(ledger: Ledger) -> None:
    ledger.reads.append(CommittedRead("r", A, 1, "t.2:a:-7"))


def lose(ledger: Ledger) -> None:
    ledger.final[B].clear()


def tear(ledger: Ledger) -> None:
    ledger.transactions["t.1"].fate = Fate.ASKED
    ledger.final[B].clear()


def repeat(ledger: Ledger) -> None:
    ledger.final[B].append((3, "t.1:b:5"))


def skip_one(ledger: Ledger) -> None:
    ledger.reads.clear()


def make_money(ledger: Ledger) -> None:
    ledger.transactions["t.1"].values[B] = ["t.1:b:6"]
    ledger.final[B] = [(0, "t.1:b:6")]


def raise_the_dead(ledger: Ledger) -> None:
    ledger.arrivals.append(Arrival(1, 2, 2.0))


def move_back(ledger: Ledger) -> None:
    ledger.offset_reads.append(OffsetRead("g", A, 1, 5.0, 6.0))


def commit_unread(ledger: Ledger) -> None:
    ledger.consumed.clear()


def share_twice(ledger: Ledger) -> None:
    ledger.assignments.append(Assignment("g", 1, "n", (A,)))


def share_too_little(ledger: Ledger) -> None:
    ledger.assignments += [Assignment("g", 2, "m", (A,), ("m",))]


def hold_twice(ledger: Ledger) -> None:
    ledger.holdings.append(Holding("h", A, "o", 2.8, 4.0))


def copy_twice(ledger: Ledger) -> None:
    again = ledger.open("w.2", 2, 1)
    again.values, again.fate = {OUT: ["w.2:o:x"]}, Fate.COMMITTED
    ledger.final[OUT].append((2, "w.2:o:x"))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (invent, "invented-value"),
        (read_aborted, "aborted-read"),
        (lose, "lost-commit"),
        (tear, "torn-transaction"),
        (repeat, "duplicate"),
        (skip_one, "changed-read"),
        (make_money, "wrong-total"),
        (raise_the_dead, "zombie"),
        (move_back, "moved-back"),
        (commit_unread, "skipped"),
        (share_twice, "badly-shared"),
        (share_too_little, "badly-shared"),
        (hold_twice, "held-twice"),
        (copy_twice, "inexact-output"),
    ],
)
def test_a_spoilt_ledger(spoil: Callable[[Ledger], None], kind: str) -> None:
    ledger = good()
    spoil(ledger)
    assert kind in {anomaly.kind for anomaly in check_ledger(ledger)}


def test_a_late_commit_may_move_back() -> None:
    """One that nobody answered may come after one that was."""
    ledger = good()
    ledger.commits.append(OffsetCommit("g", A, 1, 0.5))
    move_back(ledger)
    assert check_ledger(ledger) == []
