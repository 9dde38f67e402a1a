from __future__ import annotations

import errno
from pathlib import Path

import pytest

from millstream.protocol.batch import Record, encode_batch
from millstream.storage.segment import Segment
from tests.storage.logs import NOW_MS, PARTITION, SMALL, TOPIC_ID, World, append, batch, fill, offsets


@pytest.mark.parametrize("offset", [0, 1, 17, 18, 19, 50, 99, 100, 150])
def test_the_log_ends_where_it_was_truncated_and_goes_on_from_there(world: World, offset: int) -> None:
    log = world.open()
    fill(log, 100, step_ms=10)
    log.truncate_to(offset)
    end = min(offset, 100)
    assert log.end_offset == end
    assert offsets(log) == list(range(end))
    fill(log, 60, step_ms=10)
    assert offsets(log) == list(range(end + 60))
    for one in range(end + 60):
        log.segments.positions.clear()
        assert log.read(one, 1).first_offset == one
    found = log.offset_for_timestamp(NOW_MS + (end + 5) * 10)
    assert found is not None
    assert found.offset == end + 5
    log.close()
    log = world.open(is_clean=True)
    assert offsets(log) == list(range(end + 60))
    log.close()
    assert offsets(world.open()) == list(range(end + 60))


def test_a_batch_that_reaches_beyond_goes_as_a_whole(world: World) -> None:
    log = world.open()
    for _ in range(4):
        append(log, batch(b"a", b"b", b"c"))
    log.truncate_to(7)
    assert log.end_offset == 6
    assert offsets(log) == list(range(6))


def test_epochs_producers_and_transactions_go_back_too(world: World) -> None:
    log = world.open()
    for sequence in range(60):
        append(log, batch(b"x" * 100, producer_id=7, epoch=0, sequence=sequence), sequence // 20)
    log.flush()
    log.truncate_to(30)
    assert list(log.epochs.entries) == [(0, 0), (1, 20)]
    assert log.recovery_point == 30
    assert log.producers.producers[7].last_sequence == 29
    assert append(log, batch(b"x" * 100, producer_id=7, epoch=0, sequence=30), 5).base_offset == 30
    assert list(log.epochs.entries) == [(0, 0), (1, 20), (5, 30)]
    assert max(log.snapshots.offsets) <= 30
    assert not [path for path in Path(log.folder).glob("*.snapshot") if int(path.stem) > 30]


def test_an_open_transaction_is_undone(world: World) -> None:
    log = world.open()
    fill(log, 5)
    append(log, batch(b"t", producer_id=1, epoch=0, sequence=0, is_transactional=True))
    assert log.last_stable_offset(6) == 5
    log.truncate_to(5)
    assert log.last_stable_offset(5) == 5


def test_the_largest_timestamp_is_found_again(world: World) -> None:
    log = world.open()
    fill(log, 10)
    append(log, batch(b"late", timestamp=NOW_MS + 99))
    append(log, batch(b"later", timestamp=NOW_MS + 100))
    log.truncate_to(11)
    assert log.segments.active.max_timestamp == NOW_MS + 99
    log.truncate_to(10)
    assert log.segments.active.max_timestamp == NOW_MS


def test_segments_are_gone_for_good_before_the_one_before_them_is_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.open()
    fill(log, 200)
    bases = [segment.base_offset for segment in log.segments]
    sizes: list[int] = []
    fsync_dir = world.disk.fsync_dir

    def look(path: str) -> None:
        sizes.append(world.file(bases[1]).stat().st_size)
        assert sorted(int(one.stem) for one in Path(path).glob("*.log")) == bases[:2]
        fsync_dir(path)

    size = log.segments[1].size
    monkeypatch.setattr(world.disk, "fsync_dir", look)
    log.truncate_to(bases[1] + 2)
    assert sizes == [size]
    assert world.file(bases[1]).stat().st_size < size


def test_a_log_can_start_anew_anywhere(world: World) -> None:
    log = world.open()
    fill(log, 100, leader_epoch=3)
    log.flush()
    log.restart_at(5000)
    assert (log.start_offset, log.end_offset) == (5000, 5000)
    assert log.epochs.entries == ()
    fill(log, 3, leader_epoch=4)
    assert offsets(log) == [5000, 5001, 5002]
    assert log.flush() == 5003
    log.close()
    assert offsets(world.open(is_clean=True)) == [5000, 5001, 5002]


def test_starting_anew_at_an_existing_segments_offset(world: World) -> None:
    log = world.open()
    fill(log, 10)
    log.restart_at(0)
    assert offsets(log) == []
    fill(log, 3, size=5)
    assert offsets(log) == [0, 1, 2]
    log.close()
    assert offsets(world.open(is_clean=True)) == [0, 1, 2]


def test_what_takes_the_place_of_the_end_is_not_believed_after_a_crash(world: World) -> None:
    """The recovery point and the leader epochs on disk were those of what was cut off."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 8, leader_epoch=1)
    fill(log, 2, leader_epoch=2)
    log.flush()
    store.checkpoints.write()
    log.truncate_to(8)
    fill(log, 2, leader_epoch=3)
    store.close(clean=False)
    again = world.store().get(PARTITION, TOPIC_ID)
    assert again is not None
    assert list(again.epochs.entries) == [(1, 0), (3, 8)]
    assert offsets(again) == list(range(10))


def test_what_takes_the_place_of_a_whole_batch_is_not_believed_either(world: World) -> None:
    """The cut falls into the batch, and the log ends before it."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 2, leader_epoch=1)
    append(log, batch(b"a", b"b"), 1)
    log.roll()
    fill(log, 1, leader_epoch=1)
    log.flush()
    store.checkpoints.write()
    log.truncate_to(3)
    append(log, batch(b"c", b"d"), 2)
    store.close(clean=False)
    again = world.store().get(PARTITION, TOPIC_ID)
    assert again is not None
    assert list(again.epochs.entries) == [(1, 0), (2, 2)]
    assert offsets(again) == [0, 1, 2, 3]


def test_a_finished_segment_that_is_cut_off_is_flushed_again(world: World) -> None:
    """It was durable as a whole, but what follows the cut is not."""
    log = world.open(SMALL)
    fill(log, 100)
    log.flush()
    first = next(iter(log.segments))
    offset = next(one.base_offset for one in log.segments if one is not first) - 2
    world.disk.synced.clear()
    log.truncate_to(offset)
    assert first.path in world.disk.synced  # before anything else may be written there
    fill(log, 1, leader_epoch=1)
    world.disk.synced.clear()
    assert log.flush() == log.end_offset
    assert first.path in world.disk.synced


def test_a_finished_segment_that_is_gone_on_with_is_flushed_again(world: World) -> None:
    log = world.open()
    fill(log, 60)
    log.flush()
    first = log.segments.first
    assert first is not log.segments.active
    log.truncate_to(10)
    assert log.segments.active is first
    world.disk.synced.clear()
    fill(log, 60)
    log.flush()
    assert str(world.file(0)) in world.disk.synced
    assert log.recovery_point == 70


def test_a_snapshot_of_what_was_cut_off_is_gone_for_good_before_other_records_count(world: World) -> None:
    log = world.open()
    append(log, batch(b"a", b"b", producer_id=7, epoch=0, sequence=0))
    append(log, batch(b"c", producer_id=7, epoch=0, sequence=2))
    log.close()
    log = world.open(is_clean=True, recovery_point=3)
    assert world.file(3, ".snapshot").exists()
    append(log, batch(b"d"))
    log.flush()
    log.truncate_to(2)
    assert not world.file(3, ".snapshot").exists()
    append(log, batch(b"other"))
    world.disk.synced.clear()
    log.flush()
    assert f"{world.path}/{PARTITION}" in world.disk.synced


@pytest.mark.parametrize(("offset", "end"), [(3, 3), (6, 5), (12, 12), (16, 15)])
def test_a_log_that_is_cut_off_in_a_gap_goes_on_there(world: World, offset: int, end: int) -> None:
    """Compaction, here the leader's, left gaps within segments and between them."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    for base in (0, 5, 10, 15):
        if base == 10:
            log.roll(10)
        made = [Record(value=b"x", timestamp=NOW_MS + base) for _ in range(2)]
        log.append_as_follower(memoryview(encode_batch(made, base_offset=base, leader_epoch=0)))
    log.flush()
    store.checkpoints.write()
    log.truncate_to(offset)
    assert log.end_offset == end
    kept = [each for base in (0, 5, 10, 15) if base + 1 < end for each in (base, base + 1)]
    assert append(log, batch(b"new", b"er", timestamp=NOW_MS + 50), 1).base_offset == end
    expected = [*kept, end, end + 1]
    for is_clean in (False, True):
        assert offsets(log) == expected
        latest = log.max_timestamp_offset()
        assert latest is not None
        assert latest.offset == end
        last = log.offset_for_timestamp(NOW_MS + kept[-1] - 1)
        assert last is not None
        assert last.offset == kept[-2]
        store.close(clean=is_clean)
        store = world.store(boot_id="today")
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        log = found
    store.close()


def test_a_log_that_was_cut_off_in_a_gap_ends_there_after_a_stop(world: World) -> None:
    log = world.open()
    for base in (0, 5):
        data = encode_batch([Record(value=b"x", timestamp=NOW_MS)], base_offset=base, leader_epoch=0)
        log.append_as_follower(memoryview(data))
    log.truncate_to(3)
    log.close()
    log = world.open(is_clean=True, recovery_point=3)
    assert log.end_offset == 3
    assert append(log, batch(b"y"), 1).base_offset == 3
    assert offsets(log) == [0, 3]


@pytest.mark.parametrize("is_full", [False, True])
def test_where_a_log_began_anew_is_known_after_a_kill(
    world: World, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """Nothing is in it, and its start is not written down yet: else its offsets would begin at 0 again."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 3)

    def no_room(_: Segment) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        if is_full:
            patch.setattr(Segment, "create", no_room)
        log.restart_at(50)
    assert log.failure is None
    if is_full:
        fill(log, 1)  # makes the file that could not be made
    store.release()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert (found.start_offset, found.end_offset) == (50, 51 if is_full else 50)
    fill(found, 1)
    assert offsets(found) == list(range(50, found.end_offset))
    store.close()
