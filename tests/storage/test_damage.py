"""What is kept of a damaged log, and that it goes on from there."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.model import TopicPartition
from millstream.storage.log import Log
from tests.storage.logs import SMALL, FaultyFile, World, append, batch, records

COUNT = 30
STEP = 7
"""No batch is a multiple of it: so bytes of all kinds are met."""
TINY = replace(SMALL, segment_bytes=1024)


def written(world: World) -> Log:
    log = world.open(TINY)
    for number in range(COUNT):
        append(log, batch(b"%d" % number * 40), 1 + number // 10)
    assert len(log.segments) > 3
    return log


def is_damaged(log: Log) -> bool:
    return log.damage is not None


def meet(log: Log) -> int:
    """Read from the beginning until something cannot be read; its offset, the end if all can."""
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            offset = log.read(offset, 1).next_offset
        except KafkaStorageError:
            break
    return offset


def change(path: str, position: int) -> None:
    with Path(path).open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x41]))


@pytest.mark.parametrize("which", [0, 1, 2, -1])
def test_all_before_the_damage_is_kept_wherever_it_is(world: World, which: int) -> None:
    """Bytes all over a segment in turn; what was cut off is then written again, as a follower does."""
    log = written(world)
    whole = {record.offset: record.value for record in records(log)}
    batches = [bytes(log.read(offset, 1).data) for offset in range(COUNT)]
    segment = list(log.segments)[which]
    first = segment.base_offset
    for position in range(0, segment.size, STEP):
        segment = log.segments.floor(first)
        change(segment.path, position)
        bad = meet(log)
        assert bad < COUNT, f"byte {position} is not missed"
        assert is_damaged(log)
        sound = log.find_sound()
        assert sound is not None
        assert sound.end_offset <= bad
        log.keep_sound(sound)
        assert not is_damaged(log)
        assert first <= log.end_offset <= bad
        assert log.epochs.latest <= 1 + max(log.end_offset - 1, 0) // 10
        for data in batches[log.end_offset :]:
            log.append_as_follower(memoryview(bytearray(data)))
        assert {record.offset: record.value for record in records(log)} == whole
    log.close()
    again = world.open(TINY)
    assert {record.offset: record.value for record in records(again)} == whole


def test_damage_that_was_deleted_or_cut_off_is_none(world: World) -> None:
    log = written(world)
    segment = list(log.segments)[1]
    change(segment.path, segment.size // 2)
    meet(log)
    assert is_damaged(log)
    log.truncate_to(segment.base_offset)
    assert not is_damaged(log)
    log = world.open(TINY, partition=TopicPartition("other", 0))
    for number in range(COUNT):
        append(log, batch(b"%d" % number * 40))
    segment = list(log.segments)[1]
    change(segment.path, segment.size // 2)
    bad = meet(log)
    assert is_damaged(log)
    log.delete_records(bad + 1)
    assert not is_damaged(log)


def test_a_device_that_reads_again_leaves_the_log_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(world)

    def fails(file: FaultyFile, *_: object, **__: object) -> memoryview:
        raise OSError(errno.EIO, os.strerror(errno.EIO), file._path)

    with monkeypatch.context() as patch:
        patch.setattr(FaultyFile, "pread", fails)
        with pytest.raises(KafkaStorageError):
            log.read(COUNT // 2, 1)
    assert is_damaged(log)
    assert log.find_sound() is None
    assert not is_damaged(log)
    assert log.end_offset == COUNT
