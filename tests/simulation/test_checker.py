"""The checker can fail: each broken history is found, by the rule meant for it, and a good one passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.checker import check
from tests.simulation.history import Ack, Entry, History, Loss, Read, Trim


def good_history(*, is_flushed_before_ack: bool = False) -> History:
    """Two producers, the second idempotent; ten values each in one partition, read by one consumer."""
    history = History(is_flushed_before_ack, idempotent={"b"})
    offset = 0
    history.final[0] = []
    for index in range(10):
        for producer in ("a", "b"):
            value = history.send(producer, 0, index)
            history.acks.append(Ack(value, 0, offset, sent_at=float(index), acked_at=index + 0.5))
            history.reads.append(Read("c", 0, 0, offset, value, asked_at=index + 0.55, at=index + 0.6))
            history.final[0].append(Entry(offset, value))
            offset += 1
    return history


def kinds(history: History) -> set[str]:
    return {anomaly.kind for anomaly in check(history)}


def test_good_history_passes() -> None:
    assert check(good_history()) == []


def lose_last(history: History) -> None:
    history.final[0].pop()


def lose_first(history: History) -> None:
    del history.final[0][0]


def lose_middle(history: History) -> None:
    del history.final[0][5]


def overwrite(history: History) -> None:
    history.final[0][5] = Entry(5, "a/0/2")


def swap(history: History) -> None:
    log = history.final[0]
    log[4], log[6] = Entry(4, log[6].value), Entry(6, log[4].value)


def repeat(history: History) -> None:
    history.final[0].append(Entry(20, "b/0/3"))


def invent(history: History) -> None:
    history.final[0].append(Entry(20, "nobody/0/0"))


def move(history: History) -> None:
    history.final[1] = [Entry(0, "a/0/0")]


def skip(history: History) -> None:
    del history.reads[7]


def read_twice(history: History) -> None:
    history.reads.insert(7, history.reads[7])


def read_vanished(history: History) -> None:
    history.send("a", 0, 10)
    history.reads.append(Read("c", 0, 0, 20, "a/0/10", asked_at=10.9, at=11.0))


def disagree(history: History) -> None:
    history.reads.append(Read("d", 0, 0, 5, "a/0/0", asked_at=2.9, at=3.0))


def complain(history: History) -> None:
    history.complaints.append("a sequence was refused without a loss")


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lose_last, {"lost-write", "changed-read"}),
        (lose_first, {"lost-write", "changed-read", "late-start"}),
        (lose_middle, {"lost-write", "changed-read", "offset-gap"}),
        (overwrite, {"lost-write", "changed-read"}),
        (swap, {"lost-write", "changed-read", "reordered"}),
        (repeat, {"duplicate"}),
        (invent, {"invented-value"}),
        (move, {"invented-value"}),
        (skip, {"skipped-read"}),
        (read_twice, {"skipped-read"}),
        (read_vanished, {"changed-read"}),
        (disagree, {"changed-read", "inconsistent-offset"}),
        (complain, {"complaint"}),
    ],
)
def test_damage_is_found(damage: Callable[[History], None], found: set[str]) -> None:
    history = good_history()
    damage(history)
    assert kinds(history) == found


def cut_log(history: History, survived: int, *, at: float) -> None:
    """A power loss at a time, and nothing written after it."""
    history.losses.append(Loss(at, {0: survived}))
    del history.final[0][survived:]


def test_power_loss_may_cut_the_log_to_a_prefix() -> None:
    history = good_history()
    cut_log(history, 15, at=20.0)
    assert check(history) == []


def test_power_loss_cuts_nothing_where_an_acknowledgement_means_fsynced() -> None:
    history = good_history(is_flushed_before_ack=True)
    cut_log(history, 15, at=20.0)
    assert kinds(history) == {"lost-write", "changed-read"}


def test_recovery_may_not_drop_what_survived() -> None:
    history = good_history()
    cut_log(history, 15, at=20.0)
    history.final[0].pop()
    assert kinds(history) == {"lost-write", "changed-read"}


def test_power_loss_excuses_only_what_was_there_before_it() -> None:
    history = good_history()
    history.losses.append(Loss(3.0, {0: 2}))
    history.final[0].pop()
    assert kinds(history) == {"lost-write", "changed-read"}


def test_offset_may_get_another_value_after_a_power_loss_only() -> None:
    history = good_history()
    cut_log(history, 15, at=20.0)
    value = history.send("a", 0, 10)
    history.final[0].append(Entry(15, value))
    history.acks.append(Ack(value, 0, 15, sent_at=21.0, acked_at=22.0))
    assert check(history) == []
    history.acks[-1] = Ack(value, 0, 15, sent_at=12.0, acked_at=13.0)
    assert kinds(history) == {"inconsistent-offset"}


def test_idempotent_duplicate_after_a_power_loss_is_found() -> None:
    history = good_history()
    cut_log(history, 15, at=20.0)
    history.final[0].append(Entry(15, "b/0/3"))
    assert kinds(history) == {"duplicate"}


def test_plain_producer_may_repeat() -> None:
    history = good_history()
    history.final[0].append(Entry(20, "a/0/3"))
    assert check(history) == []


def trim_log(history: History, offset: int, start: int) -> None:
    """An operator deleted below an offset; the log then starts somewhere."""
    history.trims.append(Trim(0, offset, asked_at=30.0, done_at=31.0))
    del history.final[0][:start]


def test_deleted_records_may_be_gone() -> None:
    history = good_history()
    trim_log(history, 5, 5)
    assert check(history) == []


def test_deleting_takes_no_more_than_was_asked_for() -> None:
    history = good_history()
    trim_log(history, 5, 6)
    assert kinds(history) == {"late-start", "lost-write", "changed-read"}


def test_deleted_records_that_come_back_are_found() -> None:
    history = good_history()
    trim_log(history, 5, 4)
    assert kinds(history) == {"undeleted"}


def test_second_copy_may_follow_the_rest_of_a_first_that_was_deleted_in_part() -> None:
    history = good_history()
    history.final[0] += [Entry(20 + n, f"a/0/{n}") for n in range(10)]
    trim_log(history, 17, 17)
    assert check(history) == []
