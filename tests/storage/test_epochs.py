from __future__ import annotations

import pytest

from millstream.storage.checkpoints import BadCheckpoint
from millstream.storage.epochs import Epochs

ENTRIES = ((1, 0), (3, 100), (4, 100_000))


def test_the_file_is_kafkas() -> None:
    assert Epochs(ENTRIES).encode() == b"0\n3\n1 0\n3 100\n4 100000\n"
    assert Epochs.parse(b"0\n3\n1 0\n3 100\n4 100000\n").entries == ENTRIES
    with pytest.raises(BadCheckpoint):
        Epochs.parse(b"0\n2\n1 0\n")


def test_epochs_are_assigned_where_they_start() -> None:
    epochs = Epochs()
    for epoch, start in ((0, 0), (0, 10), (2, 10), (2, 30), (5, 40)):
        epochs.assign(epoch, start)
    assert epochs.entries == ((0, 0), (2, 10), (5, 40))
    assert epochs.latest == 5
    epochs.assign(-1, 50)
    assert epochs.latest == 5


def test_an_epoch_without_records_is_replaced_by_the_next() -> None:
    epochs = Epochs(ENTRIES)
    epochs.assign(5, 100_000)
    assert epochs.entries == ((1, 0), (3, 100), (5, 100_000))


def test_the_epoch_of_an_offset() -> None:
    epochs = Epochs(((1, 10), (3, 100)))
    assert [epochs.epoch_of(offset) for offset in (0, 9, 10, 99, 100, 5000)] == [-1, -1, 1, 1, 3, 3]
    assert epochs.run_of(50) == (1, 100)
    assert epochs.run_of(5) == (-1, 10)
    assert epochs.run_of(100)[0] == 3
    assert epochs.start_offset_of(3) == 100
    assert epochs.start_offset_of(2) == -1


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (0, (0, 0)),
        (1, (1, 100)),
        (2, (1, 100)),
        (3, (3, 100_000)),
        (4, (4, 200_000)),
        (5, (-1, -1)),
        (-1, (-1, -1)),
    ],
)
def test_where_an_epoch_ends(asked: int, answer: tuple[int, int]) -> None:
    """The answers of OffsetForLeaderEpoch, as Kafka gives them."""
    assert Epochs(ENTRIES).end_offset_for(asked, 200_000) == answer


def test_no_epochs_no_answer() -> None:
    assert Epochs().end_offset_for(0, 10) == (-1, -1)


def test_truncation_at_both_ends() -> None:
    epochs = Epochs(ENTRIES)
    epochs.truncate_end(100_001)
    assert (list(epochs.entries), epochs.is_changed) == (list(ENTRIES), False)
    epochs.truncate_end(100_000)
    assert (list(epochs.entries), epochs.is_changed) == ([(1, 0), (3, 100)], True)
    epochs = Epochs(ENTRIES)
    epochs.truncate_start(150)
    assert list(epochs.entries) == [(3, 150), (4, 100_000)]
    epochs.truncate_start(200_000)
    assert list(epochs.entries) == [(4, 200_000)]
    epochs.truncate_start(5)
    assert list(epochs.entries) == [(4, 200_000)]


@pytest.mark.parametrize(
    ("found", "believed"),
    [
        ([1, 1, 99, 1, 2, -7, 2], [(1, 0), (2, 4)]),
        ([1, 1, 99, 1], [(1, 0)]),
        ([99, 1, 1], [(1, 0)]),
        ([3, 2, 3, 3], [(3, 0)]),
        ([3, 3, 2], [(3, 0)]),
        ([1, 99, 2, 2], [(1, 0), (2, 1)]),
        ([1, 2, 3, 3, 5], [(1, 0), (2, 1), (3, 2), (5, 4)]),
    ],
)
def test_recovery_sees_through_a_damaged_epoch(found: list[int], believed: list[tuple[int, int]]) -> None:
    epochs = Epochs()
    for offset, epoch in enumerate(found):
        epochs.observe(epoch, offset)
    assert list(epochs.entries) == believed
