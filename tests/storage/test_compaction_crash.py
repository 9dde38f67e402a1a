"""A crash at any moment of a compaction costs nothing and brings nothing back."""

from __future__ import annotations

from random import Random

import pytest

from millstream.protocol.batch import Record
from tests.simulation.disk import SimDisk
from tests.simulation.world import ProcessKilled, World
from tests.storage.ledger import COMPACTED, Ledger, Producer, as_table


def make() -> tuple[SimDisk, Ledger]:
    """A log of several segments with everything in it that compaction treats in its own way."""
    disk = SimDisk(World(0), lambda: 0)
    disk.on_kill = disk.crash
    ledger = Ledger(disk.mount(), "/data", COMPACTED)
    sequenced, aborter, committer = Producer(1), Producer(2), Producer(3)
    for number in range(12):
        ledger.append((b"a%d" % (number % 3), b"%d" % number), (b"b", b"x" * 60), codec=number % 5)
        ledger.append((b"c%d" % number, None if number % 2 else b"y"), producer=sequenced)
        ledger.begin(aborter)
        ledger.append((b"b", b"never"), producer=aborter)
        ledger.end(aborter, is_commit=False)
        ledger.begin(committer)
        ledger.append((b"d%d" % (number % 2), b"%d" % number), producer=committer)
        ledger.end(committer, is_commit=True)
        if number % 4 == 3:
            ledger.log.roll()
    ledger.log.roll()
    ledger.append((b"active", b"z"))
    ledger.log.flush()
    for path in ("/", "/data", ledger.folder):
        ledger.disk.fsync_dir(path)
    return disk, ledger


def contents(ledger: Ledger) -> list[Record]:
    return ledger.read(is_committed=False)


def producers(ledger: Ledger) -> dict[int, tuple[int, int, int]]:
    return {
        one.producer_id: (one.epoch, one.last_sequence, one.transaction_start) for one in ledger.log.producers
    }


def test_it_is_worth_testing() -> None:
    _, ledger = make()
    before = contents(ledger)
    assert len(ledger.log.segments) >= 4
    ledger.clean(rolls=False)
    assert len(ledger.log.segments) >= 2
    assert len(contents(ledger)) < len(before) / 2


@pytest.mark.parametrize("has_power", [True, False])
def test_a_crash_inside_any_disk_call_leaves_old_or_new_segments(has_power: bool) -> None:
    _, whole = make()
    before = contents(whole)
    whole.clean(rolls=False)
    after = [record.offset for record in contents(whole)]
    count = 0
    while True:
        count += 1
        disk, ledger = make()
        state = producers(ledger)
        point = ledger.log.recovery_point
        disk.kill_after = count
        try:
            ledger.clean(rolls=False)
        except ProcessKilled:
            pass
        else:
            break
        _crash(disk, has_power, count)
        for again in range(3):  # crashes while it is put right, then none
            if again < 2:
                disk.kill_after = 1 + (count * 7 + again * 3) % 12
            try:
                ledger.open(disk.mount(), recovery_point=point)
            except ProcessKilled:
                _crash(disk, has_power, count + again)
        found = contents(ledger)
        offsets = [record.offset for record in found]
        assert all(record == ledger.written[record.offset] for record in found)
        assert {record.offset for record in before} >= set(offsets) >= set(after), count
        assert as_table(ledger.read()) == ledger.table()
        assert producers(ledger) == state
        assert ledger.is_swept()
        ledger.log.cleaned_until = 0
        ledger.clean(rolls=False)
        assert [record.offset for record in contents(ledger)] == after
        assert as_table(ledger.read()) == ledger.table()
    assert count > 40


def _crash(disk: SimDisk, has_power: bool, seed: int) -> None:
    if has_power:
        disk.crash()
    else:
        disk.power_loss(Random(seed))
