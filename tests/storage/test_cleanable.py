from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.storage.cleanable import Cleanable, find_cleanable
from tests.storage.ledger import COMPACTED, Ledger
from tests.storage.logs import NOW_MS, FaultyDisk, append, batch


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Four segments of three records each, a second apart, and an active one with one record."""
    ledger = Ledger(FaultyDisk(), str(tmp_path), COMPACTED)
    for _ in range(4):
        for number in range(3):
            ledger.append((b"%d" % number, b"x"))
            ledger.clock.ms += 1000
        ledger.log.roll()
    ledger.append((b"a", b"x"))
    return ledger


def look(ledger: Ledger, stable_offset: int | None = None, **config: object) -> Cleanable:
    ledger.log.config = replace(COMPACTED, **config)  # type: ignore[arg-type]
    stable = ledger.log.end_offset if stable_offset is None else stable_offset
    return find_cleanable(ledger.log, stable, ledger.clock.now_ms())


def test_everything_but_the_active_segment_can_be_compacted(ledger: Ledger) -> None:
    found = look(ledger)
    assert (found.first_dirty_offset, found.end_offset) == (0, 12)
    assert (found.clean_bytes, found.dirty_ratio) == (0, 1.0)
    assert found.dirty_bytes == ledger.log.size_bytes - ledger.log.segments.active.size
    assert found.is_due


@pytest.mark.parametrize(("stable_offset", "end_offset"), [(13, 12), (12, 12), (11, 9), (3, 3), (2, 0)])
def test_it_ends_before_the_segment_with_the_last_stable_offset(
    ledger: Ledger, stable_offset: int, end_offset: int
) -> None:
    assert look(ledger, stable_offset).end_offset == end_offset


def test_young_records_are_left_alone(ledger: Ledger) -> None:
    # the newest records of the segments are 10, 7, 4 and 1 seconds old
    assert look(ledger, min_compaction_lag_ms=1).end_offset == 12
    assert look(ledger, min_compaction_lag_ms=2000).end_offset == 9
    assert look(ledger, min_compaction_lag_ms=7000).end_offset == 6
    nothing = look(ledger, min_compaction_lag_ms=20_000)
    assert (nothing.end_offset, nothing.dirty_bytes, nothing.is_due) == (0, 0, False)


@pytest.mark.parametrize("change_ms", [-1000, 1_000_000_000])
def test_what_a_damaged_time_index_says_of_their_age_is_not_believed(ledger: Ledger, change_ms: int) -> None:
    path = Path(ledger.log.segments[2].path).with_suffix(".timeindex")
    ledger.reopen()
    *earlier, (timestamp, offset) = struct.iter_unpack(">qi", path.read_bytes())
    entries = [*earlier, (timestamp + change_ms, offset)]
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    ledger.reopen()
    # by the batches the newest records of the last two segments are 4 and 1 seconds old
    assert look(ledger, min_compaction_lag_ms=3999).end_offset == 9
    assert look(ledger, min_compaction_lag_ms=4001).end_offset == 6


def test_records_without_a_timestamp_are_as_old_as_their_file(ledger: Ledger) -> None:
    ledger.log.roll()
    append(ledger.log, batch(b"x", b"y", timestamp=-1))
    ledger.log.roll()
    ledger.log.cleaned_until = 13
    written_s = ledger.clock.now_ms() / 1000 - 5
    os.utime(ledger.log.segments[-2].path, (written_s, written_s))
    assert look(ledger, min_compaction_lag_ms=4000).end_offset == 15
    assert look(ledger, min_compaction_lag_ms=6000).end_offset == 13


def test_the_dirty_ratio_decides(ledger: Ledger) -> None:
    ledger.log.cleaned_until = 9
    assert look(ledger).dirty_ratio == pytest.approx(0.25)
    assert not look(ledger, min_cleanable_dirty_ratio=0.25).is_due
    assert look(ledger, min_cleanable_dirty_ratio=0.2).is_due
    ledger.log.cleaned_until = 12
    nothing = look(ledger, min_cleanable_dirty_ratio=0.0)
    assert (nothing.dirty_bytes, nothing.is_due) == (0, False)


def test_records_older_than_max_compaction_lag_are_compacted_whatever_the_ratio(ledger: Ledger) -> None:
    ledger.log.cleaned_until = 9
    # the dirty segment's first record is 3 seconds old
    assert look(ledger, max_compaction_lag_ms=2999).is_due
    assert not look(ledger, max_compaction_lag_ms=3000).is_due
    assert not look(ledger, max_compaction_lag_ms=2999, min_compaction_lag_ms=2000).is_due


@pytest.mark.parametrize("cleaned_until", [1, 99])
def test_what_was_written_down_and_cannot_be_true_is_not_believed(ledger: Ledger, cleaned_until: int) -> None:
    ledger.log.delete_records(4)
    ledger.log.cleaned_until = cleaned_until
    assert look(ledger).first_dirty_offset == 4


def test_a_segment_that_is_clean_in_part_counts_as_dirty(ledger: Ledger) -> None:
    ledger.log.cleaned_until = 4
    found = look(ledger)
    assert (found.first_dirty_offset, found.end_offset) == (4, 12)
    assert found.dirty_ratio == pytest.approx(0.75)


def test_a_compacted_log_rolls_in_time_for_max_compaction_lag(tmp_path: Path) -> None:
    config = replace(COMPACTED, segment_bytes=1 << 20, max_compaction_lag_ms=5000)
    ledger = Ledger(FaultyDisk(), str(tmp_path), config)
    ledger.append((b"a", b"1"))
    ledger.clock.ms = NOW_MS + 5000
    ledger.append((b"a", b"2"))
    assert len(ledger.log.segments) == 1
    ledger.clock.ms += 1
    ledger.append((b"a", b"3"))
    assert len(ledger.log.segments) == 2
