"""Leader epochs that were written down wrongly are mended by the batches, when one of these is read."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest

from millstream.errors import KafkaStorageError
from millstream.storage.epochs import Epochs
from millstream.storage.log import Log
from millstream.storage.reading import locate
from tests.storage.logs import World, append, batch, fill, offsets

RIGHT = ((3, 0), (5, 10), (8, 12), (9, 20))
"""Of single records, but for the two that are one batch and alone of epoch 5."""
EPOCH_AT = 12


def stopped(world: World) -> Path:
    """A log that was stopped cleanly; the file with its epochs."""
    log = world.open()
    fill(log, 10, leader_epoch=3)
    append(log, batch(b"a", b"b"), 5)
    fill(log, 8, leader_epoch=8)
    fill(log, 5, leader_epoch=9)
    assert log.epochs.entries == RIGHT
    log.close()
    return Path(log.folder, "leader-epoch-checkpoint")


def reopened(world: World, file: Path, entries: tuple[tuple[int, int], ...]) -> Log:
    file.write_bytes(Epochs(entries).encode())
    return world.open(is_clean=True, recovery_point=25)


@pytest.mark.parametrize(
    "entries",
    [
        ((3, 0), (6, 10), (8, 12), (9, 20)),
        ((3, 0), (4, 10), (8, 12), (9, 20)),
        ((3, 0), (5, 12), (8, 13), (9, 20)),
        ((3, 0), (5, 10), (8, 13), (9, 20)),
        ((3, 0), (5, 9), (8, 12), (9, 20)),
        ((3, 0), (8, 10), (9, 20)),
        ((3, 0), (8, 12), (9, 20)),
        ((3, 0), (5, 10), (8, 16), (9, 20)),
        ((3, 0), (5, 10), (8, 12), (9, 21)),
        ((3, 0), (5, 10), (8, 12), (9, 19)),
        ((2, 0), (3, 1), (5, 10), (8, 12), (9, 20)),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_file_that_is_wrong_for_a_batch_or_more(
    world: World, caplog: pytest.LogCaptureFixture, entries: tuple[tuple[int, int], ...], seed: int
) -> None:
    file = stopped(world)
    log = reopened(world, file, entries)
    order = list(range(25))
    if seed:
        Random(seed).shuffle(order)
    for offset in order:
        assert offset in range(log.read(offset, 1).first_offset, log.read(offset, 1).next_offset)
    assert offsets(log) == list(range(25))
    assert log.epochs.entries == RIGHT
    assert str(file) in caplog.text
    fill(log, 1, leader_epoch=9)  # with new records it is written down
    log.close()
    assert Epochs.parse(file.read_bytes()).entries == RIGHT


@pytest.mark.parametrize("offset", [0, 5, 9, 10, 12, 15, 24])
@pytest.mark.parametrize("epoch", [2, 12])
def test_a_damaged_batch_is_not_served(world: World, offset: int, epoch: int) -> None:
    """Its epoch is higher than that of the next, or lower than that of the one before."""
    if offset == 0 and epoch == 2:
        epoch = -7  # nothing is before it that could be higher
    stopped(world)
    log = world.open(is_clean=True, recovery_point=25)
    found = locate(log.segments, offset, 1)
    assert found is not None
    with open(found.segment.path, "r+b") as file:
        file.seek(found.position + found.start + EPOCH_AT)
        file.write(struct.pack(">i", epoch))
    with pytest.raises(KafkaStorageError):
        log.read(offset, 1)
    assert log.epochs.entries == RIGHT


def test_what_is_around_it_is_read_in_a_thread(world: World) -> None:
    log = reopened(world, stopped(world), ((3, 0), (6, 10), (8, 12), (9, 20)))
    with pytest.raises(BlockingIOError):
        log.read(10, 1, nowait=True)
    assert log.read(10, 1).next_offset == 12
    assert log.read(10, 1, nowait=True).next_offset == 12
