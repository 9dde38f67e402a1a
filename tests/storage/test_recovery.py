"""After a crash: what is torn goes, what is whole stays, and nothing damaged is ever served."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.config.log import LogConfig
from millstream.errors import KafkaStorageError
from millstream.protocol.batch import (
    ControlMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    read_header,
)
from millstream.storage.log import Log
from millstream.storage.segment import MAX_RELATIVE_OFFSET, Segment
from tests.storage.logs import (
    NOW_MS,
    PARTITION,
    SMALL,
    TOPIC_ID,
    World,
    append,
    batch,
    fill,
    offsets,
    records,
)

ONE_SEGMENT = replace(SMALL, segment_bytes=1 << 20)


def kill(log: Log) -> None:
    """End as `kill -9` does: what was written stays, nothing else is done."""
    log.close(is_clean=False)


def test_truncation_at_every_byte_of_the_last_two_batches(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 20)
    append(log, batch(b"x", b"y", b"z", producer_id=5, epoch=0, sequence=0))
    append(log, batch(b"last" * 20, codec=4))
    kill(log)
    file = world.file(0)
    whole = file.read_bytes()
    ends = _batch_ends(whole)
    for size in range(ends[-3], len(whole) + 1):
        file.write_bytes(whole[:size])
        log = world.open(ONE_SEGMENT)
        kept = [end for end in ends if end <= size]
        expected_end = 20 + (3 if len(kept) >= 21 else 0) + (1 if len(kept) >= 22 else 0)
        assert log.end_offset == expected_end
        assert offsets(log) == list(range(expected_end))
        assert file.stat().st_size == kept[-1]
        assert len(log.producers) == (1 if len(kept) >= 21 else 0)
        assert append(log, batch(b"next")).base_offset == expected_end
        assert offsets(log) == list(range(expected_end + 1))
        kill(log)


def test_garbage_and_zeros_after_the_last_batch_are_cut_off(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 10)
    kill(log)
    whole = world.file(0).read_bytes()
    for tail in (b"\0" * 5000, b"\xff" * 100, whole[:100], bytes(range(256)) * 3, whole):
        world.file(0).write_bytes(whole + tail)
        log = world.open(ONE_SEGMENT)
        assert log.end_offset == 10
        assert world.file(0).read_bytes() == whole
        kill(log)


def test_segments_after_a_torn_one_go(world: World) -> None:
    log = world.open()
    fill(log, 200)
    bases = [segment.base_offset for segment in log.segments]
    kill(log)
    torn = world.file(bases[2])
    torn.write_bytes(torn.read_bytes()[:-1])
    log = world.open(recovery_point=bases[1])
    assert log.end_offset == bases[3] - 1
    assert offsets(log) == list(range(bases[3] - 1))
    fill(log, 10)
    assert offsets(log) == list(range(bases[3] + 9))
    world.trash.empty()
    assert not [name for name in world.file(0).parent.iterdir() if name.name.endswith(".deleted")]


def test_an_end_torn_off_between_two_batches_is_noticed(world: World) -> None:
    """Nothing in the segment shows it, but the next one does not begin where it ends."""
    log = world.open()
    fill(log, 200)
    bases = [segment.base_offset for segment in log.segments]
    kill(log)
    torn = world.file(bases[1])
    whole = torn.read_bytes()
    torn.write_bytes(whole[: _batch_ends(whole)[-3]])
    log = world.open(recovery_point=bases[1])
    assert log.end_offset == bases[2] - 2
    assert offsets(log) == list(range(bases[2] - 2))
    fill(log, 10)
    assert offsets(log) == list(range(bases[2] + 8))


@pytest.mark.parametrize("evidence", ["recovery point", "cleaner's checkpoint"])
def test_the_gaps_that_compaction_leaves_are_no_losses(world: World, evidence: str) -> None:
    log = world.open()
    fill(log, 200)
    bases = [segment.base_offset for segment in log.segments]
    kill(log)
    cleaned = world.file(bases[1])
    whole = cleaned.read_bytes()
    cleaned.write_bytes(whole[: _batch_ends(whole)[-3]])
    if evidence == "recovery point":
        log = world.open(recovery_point=bases[2])
    else:
        log = world.open(recovery_point=0, cleaned_until=bases[2])
    expected = [*range(bases[2] - 2), *range(bases[2], 200)]
    assert offsets(log) == expected


def copied(log: Log, bases: Iterable[int]) -> None:
    """What a follower has of a compacted log: batches with gaps between them."""
    for base in bases:
        record = Record(value=b"x" * 100, timestamp=NOW_MS + base)
        log.append_as_follower(memoryview(encode_batch([record], base_offset=base, leader_epoch=0)))


def test_a_copy_of_a_compacted_log_is_whole_after_a_kill(world: World) -> None:
    log = world.open()
    bases = [*range(0, 200, 2), 199, 200]
    copied(log, bases)
    assert len(log.segments) > 3
    kill(log)
    log = world.open()
    assert offsets(log) == bases


def test_what_was_written_in_this_boot_of_the_machine_has_no_lost_ends(world: World) -> None:
    store = world.store(boot_id="today")
    store.dirs.mark_boot()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    bases = [0, 1, MAX_RELATIVE_OFFSET + 5, MAX_RELATIVE_OFFSET + 6]
    copied(log, bases)
    assert len(log.segments) == 2
    store.close(clean=False)
    again = world.store(boot_id="today").get(PARTITION, TOPIC_ID)
    assert again is not None
    assert offsets(again) == bases


def test_a_flushed_batch_after_a_gap_outlives_a_power_loss(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    copied(log, [0, 1, 7])
    log.flush()
    store.checkpoints.write()
    store.close(clean=False)
    again = world.store().get(PARTITION, TOPIC_ID)
    assert again is not None
    assert offsets(again) == [0, 1, 7]


def test_a_flushed_batch_between_a_gap_and_torn_bytes_stays(world: World) -> None:
    log = world.open()
    copied(log, [0, 1, 7])
    kill(log)
    whole = world.file(0).read_bytes()
    world.file(0).write_bytes(whole + bytes(50))
    log = world.open(recovery_point=8)
    assert offsets(log) == [0, 1, 7]
    kill(log)
    assert world.file(0).read_bytes() == whole


def test_indexes_without_records_are_nobodys(world: World) -> None:
    """A power loss took the records of a segment, or its name, but not what was written of its indexes."""
    log = world.open(ONE_SEGMENT)
    append(log, batch(b"a", timestamp=NOW_MS + 99, producer_id=1, epoch=0, sequence=0, is_transactional=True))
    append(log, encode_marker(ControlMarker(False, 4), producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS))
    log.segments.active.spill()
    kill(log)
    for suffix in (".index", ".timeindex", ".txnindex"):
        shutil.copy(world.file(0, suffix), world.file(3, suffix))
    world.file(0).write_bytes(b"")
    log = world.open(ONE_SEGMENT)
    append(
        log, batch(b"b", b"c", timestamp=NOW_MS, producer_id=1, epoch=1, sequence=0, is_transactional=True)
    )
    append(log, encode_marker(ControlMarker(True, 4), producer_id=1, producer_epoch=1, timestamp_ms=NOW_MS))
    log.roll()
    fill(log, 1)
    log.close()
    log = world.open(ONE_SEGMENT, is_clean=True, recovery_point=4)
    assert log.aborted_transactions(0, 4) == []
    assert [segment.max_timestamp for segment in log.segments] == [NOW_MS, NOW_MS]
    found = log.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert found.offset == 0
    kill(log)


def test_a_power_loss_during_recovery_leaves_no_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a torn segment is gone for good, from the last on, before the torn one looks whole."""
    log = world.open()
    fill(log, 200)
    bases = [segment.base_offset for segment in log.segments]
    kill(log)
    torn = world.file(bases[1])
    torn.write_bytes(torn.read_bytes()[:-1])
    size = torn.stat().st_size
    rename = world.disk.rename

    def lose_power(source: str, target: str) -> None:
        if source.endswith(f"{bases[4]:020d}.log"):
            raise OSError(5, "gone")
        rename(source, target)

    monkeypatch.setattr(world.disk, "rename", lose_power)
    with pytest.raises(OSError, match="gone"):
        world.open(recovery_point=0)
    left = sorted(int(path.stem) for path in torn.parent.glob("*.log"))
    assert left == bases[:5]
    assert torn.stat().st_size == size
    monkeypatch.undo()
    world.disk.synced.clear()
    log = world.open(recovery_point=0)
    assert log.end_offset == bases[2] - 1
    assert world.disk.synced.index(str(torn.parent)) < world.disk.synced.index(str(torn))
    assert offsets(log) == list(range(bases[2] - 1))


def test_a_clean_start_scans_nothing(world: World) -> None:
    log = world.open()
    fill(log, 100)
    log.close()
    damaged = bytearray(world.file(0).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    world.file(0).write_bytes(damaged)
    log = world.open(is_clean=True)
    assert log.end_offset == 100
    assert log.recovery_point == 100
    with pytest.raises(KafkaStorageError):
        offsets(log)
    kill(log)


def test_indexes_are_derived_again(world: World) -> None:
    log = world.open()
    fill(log, 200, step_ms=10)
    log.close()
    expected = _index_files(world)
    for path in expected:
        path.write_bytes(b"\x55" * 80)
    log = world.open()
    for segment in log.segments:
        segment.spill()
    assert _index_files(world) == expected
    assert offsets(log) == list(range(200))


def test_a_time_that_recovery_or_a_cut_derived_is_known_after_a_clean_stop(world: World) -> None:
    """Also if the log has not changed since, and is too small for an entry of its own."""
    log = world.open(LogConfig())
    fill(log, 3, step_ms=10)
    log.close()
    kill(world.open(LogConfig(), is_clean=True, recovery_point=3))
    world.open(LogConfig(), recovery_point=3).close()
    log = world.open(LogConfig(), is_clean=True, recovery_point=3)
    assert log.segments.active.max_timestamp == NOW_MS + 20
    log.truncate_to(2)
    log.close()
    log = world.open(LogConfig(), is_clean=True, recovery_point=2)
    assert log.segments.active.max_timestamp == NOW_MS + 10
    kill(log)


def test_lost_indexes_of_durable_segments_are_derived_again(world: World) -> None:
    log = world.open()
    fill(log, 200, step_ms=10)
    log.close()
    expected = _index_files(world)
    active = log.segments.active.base_offset
    for is_clean, recovery_point in ((True, 200), (False, 200), (False, active)):
        for path in expected:
            path.unlink()
        log = world.open(is_clean=is_clean, recovery_point=recovery_point)
        assert log.end_offset == 200
        assert offsets(log) == list(range(200))
        log.close()
        assert _index_files(world) == expected


@pytest.mark.parametrize("lost", [".index", ".timeindex"])
def test_a_start_that_is_cut_short_leaves_no_half_of_an_index(
    world: World, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, segment_bytes=1 << 20, index_interval_bytes=0)
    log = world.open(config)
    fill(log, 1200, size=10, step_ms=10)
    log.roll()
    fill(log, 1, size=10)
    log.close()
    expected = _index_files(world)
    world.file(0, lost).unlink()
    note_batch, count = Segment.note_batch, 0

    def cut_short(segment: Segment, *given: Any) -> None:
        nonlocal count
        count += 1
        if count == 1000:
            raise KeyboardInterrupt
        note_batch(segment, *given)

    monkeypatch.setattr(Segment, "note_batch", cut_short)
    with pytest.raises(KeyboardInterrupt):
        world.open(config, is_clean=True, recovery_point=1201)
    monkeypatch.undo()
    log = world.open(config, recovery_point=1201)
    assert log.segments.first.max_timestamp == NOW_MS + 11990
    log.close()
    assert _index_files(world) == expected


def test_small_segments_get_their_time_index_again(world: World) -> None:
    log = world.open(LogConfig())
    fill(log, 2, step_ms=10)
    log.roll()
    fill(log, 1)
    log.close()
    world.file(0, ".timeindex").unlink()
    log = world.open(LogConfig(), is_clean=True, recovery_point=3)
    assert log.segments.first.max_timestamp == NOW_MS + 10
    kill(log)


def test_zero_padded_indexes_as_kafka_leaves_them_are_read(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 200, step_ms=10)
    log.close()
    expected = _index_files(world)
    for path, content in expected.items():
        path.write_bytes(content + bytes(10 * 1024 * 1024 // 24 * 24 - len(content)))
    log = world.open(ONE_SEGMENT, is_clean=True)
    assert log.end_offset == 200
    log.segments.positions.clear()
    assert log.read(150, 1).first_offset == 150
    found = log.offset_for_timestamp(NOW_MS + 1000)
    assert found is not None
    assert found.offset == 100
    log.close()
    assert _index_files(world) == expected


def test_a_wrong_index_costs_time_but_no_record(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 100)
    log.close()
    index = world.file(0, ".index")
    good = index.read_bytes()
    for bad in (good[:3] + b"\x01" + good[4:7] + b"\x07" + good[8:], b"\x00\x00\x00\x05\x00\x00\x00\x03" * 4):
        index.write_bytes(bad)
        log = world.open(ONE_SEGMENT, is_clean=True, recovery_point=100)
        log.segments.positions.clear()
        assert [log.read(offset, 1).first_offset for offset in range(100)] == list(range(100))
        kill(log)


def test_damage_below_the_recovery_point_loses_nothing_else(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 100)
    assert log.flush() == 100
    fill(log, 50)
    log.segments.active.spill()
    kill(log)
    whole = world.file(0).read_bytes()
    ends = _batch_ends(whole)
    for at in (ends[40] + 80, ends[40] + 9, ends[40] + 16, ends[40] + 3, ends[40] + 25):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        world.file(0).write_bytes(damaged)
        log = world.open(ONE_SEGMENT, recovery_point=100)
        assert log.end_offset == 150
        served = _readable_offsets(log)
        assert 41 not in served
        assert set(range(41)) <= served
        missing = set(range(150)) - served
        assert max(missing) < 60
        kill(log)


def test_damage_up_to_the_end_of_what_was_durable_leaves_the_file_alone(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 100)
    assert log.flush() == 100
    kill(log)
    whole = world.file(0).read_bytes()
    damaged = whole[: _batch_ends(whole)[59]] + b"\x13" * 3000
    world.file(0).write_bytes(damaged)
    log = world.open(ONE_SEGMENT, recovery_point=100)
    assert log.end_offset == 100
    assert append(log, batch(b"new")).base_offset == 100
    assert world.file(0).read_bytes() == damaged
    assert offsets(log, start=100) == [100]
    assert [record.offset for record in decode_records(log.read(0, 1 << 20).data)] == list(range(60))
    with pytest.raises(KafkaStorageError):
        log.read(60, 1000)


@pytest.mark.parametrize("change", [0, 0xFF])
@pytest.mark.parametrize("stop", ["clean", "killed after a flush", "killed"])
def test_every_changed_byte_of_a_segment_is_found_and_never_served(
    world: World, stop: str, change: int
) -> None:
    """The changed batch is never served; others are, except behind it where a crash makes the end unsure."""
    log = world.open(ONE_SEGMENT)
    for number in range(6):
        append(log, batch(b"a%d" % number, b"b%d" % number), 3)
    if stop != "killed":
        log.flush()
    originals = {record.offset: record for record in records(log)}
    recovery_point = log.recovery_point
    log.close(is_clean=stop == "clean")
    kept = {path: path.read_bytes() for path in world.file(0).parent.iterdir()}
    whole = kept[world.file(0)]
    ends = _batch_ends(whole)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= change or 1 << (at % 8)
        _restore(kept | {world.file(0): bytes(damaged)})
        log = world.open(ONE_SEGMENT, is_clean=stop == "clean", recovery_point=recovery_point)
        hit = next(number for number, end in enumerate(ends) if at < end)
        in_batch = at - (ends[hit - 1] if hit else 0)
        seen = _checked_offsets(log, originals)
        if stop == "killed" and 12 <= in_batch < 16:
            # where nothing was written down, only the batches themselves tell of leader epochs
            assert seen >= set(range(12)) - {2 * hit, 2 * hit + 1}
            kill(log)
            continue
        assert not seen & {2 * hit, 2 * hit + 1}, f"byte {at} was changed and served"
        assert set(range(2 * hit)) <= seen
        if stop != "killed":
            assert world.file(0).read_bytes() == bytes(damaged), f"byte {at}: durable bytes were cut off"
        if stop == "killed after a flush" or (stop == "clean" and not 8 <= in_batch < 12):
            assert seen == set(range(12)) - {2 * hit, 2 * hit + 1}, f"byte {at} hides good batches"
        kill(log)


def _checked_offsets(log: Log, originals: dict) -> set[int]:
    """The offsets that can be read, each with the record that was written there."""
    seen: set[int] = set()
    for start in range(log.start_offset, min(12, log.end_offset)):
        log.segments.positions.clear()
        for max_bytes in (1, 1 << 20):
            try:
                found = log.read(start, max_bytes)
            except KafkaStorageError:
                continue
            assert found.data, f"offset {start} is neither served nor reported"
            for record in decode_records(found.data):
                assert record == originals[record.offset]
                seen.add(record.offset)
    return seen


def test_a_damaged_batch_is_not_passed_over_as_a_gap(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    for _ in range(4):
        append(log, batch(b"a", b"b"))
    log.close()
    damaged = bytearray(world.file(0).read_bytes())
    at = _batch_ends(damaged)[0] + 26
    assert damaged[at] == 1  # the offset delta of its last record
    damaged[at] = 0
    world.file(0).write_bytes(damaged)
    log = world.open(ONE_SEGMENT, is_clean=True)
    with pytest.raises(KafkaStorageError):
        log.read(3, 1000)
    assert log.read(4, 1000).first_offset == 4


def _restore(files: dict[Path, bytes]) -> None:
    for path in next(iter(files)).parent.iterdir():
        path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


def test_producers_are_known_again_after_a_crash(world: World) -> None:
    log = world.open()
    for number in range(100):
        append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=number))
    assert len(log.segments) > 2
    kill(log)
    log = world.open()
    assert append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=98)).is_duplicate
    assert append(log, batch(b"y", producer_id=7, epoch=2, sequence=100)).base_offset == 100


def test_producers_are_known_again_from_the_latest_snapshot(world: World) -> None:
    log = world.open()
    for number in range(100):
        append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=number))
    bases = [segment.base_offset for segment in log.segments]
    log.flush()
    kill(log)
    log = world.open(recovery_point=100)
    assert append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=99)).is_duplicate
    kill(log)
    for path in world.file(0).parent.glob("*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1])
    log = world.open(recovery_point=bases[-1])
    assert append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=99)).is_duplicate


def test_a_snapshot_of_records_that_were_cut_off_does_not_come_back(world: World) -> None:
    """A power loss brought its name back, at an offset that other records have reached since."""
    log = world.open()
    append(log, batch(b"a", b"b", b"c", producer_id=7, epoch=0, sequence=0))
    log.close()
    stale = world.file(3, ".snapshot").read_bytes()
    log = world.open(is_clean=True, recovery_point=3)
    log.truncate_to(0)
    append(log, batch(b"d", b"e", b"f", producer_id=8, epoch=0, sequence=0, is_transactional=True))
    kill(log)
    world.file(3, ".snapshot").write_bytes(stale)
    world.open().close()
    log = world.open(is_clean=True, recovery_point=3)
    assert [one.producer_id for one in log.producers] == [8]
    assert log.last_stable_offset(3) == 0
    kill(log)


def test_snapshots_beyond_the_end_go(world: World) -> None:
    log = world.open()
    for number in range(100):
        append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=number))
    last = log.segments.active.base_offset
    kill(log)
    for name in world.file(0).parent.glob(f"{last:020d}*"):
        if not name.name.endswith(".snapshot"):
            name.unlink()
    previous = max(world.file(0).parent.glob("*.log"))
    previous.write_bytes(previous.read_bytes()[:-1])
    log = world.open()
    assert log.end_offset == last - 1
    assert not world.file(last, ".snapshot").exists()
    assert append(log, batch(b"x" * 100, producer_id=7, epoch=2, sequence=last - 1)).base_offset == last - 1


def test_aborted_transactions_are_durable_after_recovery(world: World) -> None:
    """A clean stop flushes nothing of a log that has not changed, and the next start looks at nothing."""
    log = world.open()
    append(log, batch(b"a", producer_id=1, epoch=0, sequence=0, is_transactional=True))
    append(log, encode_marker(ControlMarker(False, 4), producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS))
    kill(log)
    world.disk.synced.clear()
    world.open()
    index = str(world.file(0, ".txnindex"))
    assert world.disk.synced.index(index) < world.disk.synced.index(f"{world.path}/{PARTITION}")


def test_open_and_aborted_transactions_are_known_again(world: World) -> None:
    log = world.open()
    append(log, batch(b"a", producer_id=1, epoch=0, sequence=0, is_transactional=True))
    append(log, batch(b"b", producer_id=2, epoch=0, sequence=0, is_transactional=True))
    append(log, encode_marker(ControlMarker(False, 4), producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS))
    kill(log)
    world.file(0, ".txnindex").write_bytes(b"\x11" * 20)
    log = world.open()
    assert log.last_stable_offset(3) == 1
    assert log.aborted_transactions(0, 3) == [(1, 0)]
    assert world.file(0, ".txnindex").stat().st_size == 34
    kill(log)
    log = world.open()
    assert log.aborted_transactions(0, 3) == [(1, 0)]
    assert world.file(0, ".txnindex").stat().st_size == 34


def test_leader_epochs_are_known_again(world: World) -> None:
    log = world.open()
    fill(log, 10, leader_epoch=1)
    fill(log, 50, leader_epoch=4)
    log.flush()
    fill(log, 10, leader_epoch=5)
    expected = log.epochs.entries
    assert expected == ((1, 0), (4, 10), (5, 60))
    kill(log)
    assert world.open(recovery_point=60).epochs.entries == expected
    Path(world.path, str(PARTITION), "leader-epoch-checkpoint").unlink()
    assert world.open().epochs.entries == expected


def test_a_damaged_leader_epoch_does_not_spoil_those_after_it(world: World) -> None:
    log = world.open(ONE_SEGMENT)
    fill(log, 10, leader_epoch=1)
    kill(log)
    whole = bytearray(world.file(0).read_bytes())
    whole[_batch_ends(whole)[3] + 13] ^= 1
    world.file(0).write_bytes(whole)
    log = world.open(ONE_SEGMENT)
    assert log.epochs.entries == ((1, 0),)
    assert _readable_offsets(log) == set(range(10)) - {4}


def test_a_log_without_files_starts_where_its_checkpoint_says(world: World) -> None:
    log = world.open(start_offset=42)
    assert (log.start_offset, log.end_offset) == (42, 42)
    assert append(log, batch(b"a")).base_offset == 42
    assert world.file(42).exists()


def test_the_start_offset_is_kept_within_the_log(world: World) -> None:
    log = world.open()
    fill(log, 50)
    log.close()
    assert world.open(is_clean=True, start_offset=20).start_offset == 20
    log = world.open(is_clean=False, start_offset=70)  # it lost its end: new records come after the start
    assert (log.start_offset, log.end_offset) == (70, 70)


def test_files_of_an_interrupted_removal_go(world: World) -> None:
    log = world.open()
    fill(log, 100)
    log.close()
    shutil.copy(world.file(0), f"{world.file(0)}.deleted")
    Path(world.file(0).parent, "leader-epoch-checkpoint.tmp").write_bytes(b"half")
    log = world.open(is_clean=True)
    assert offsets(log) == list(range(100))
    assert not [name for name in world.file(0).parent.iterdir() if name.suffix in (".deleted", ".tmp")]


def _batch_ends(data: bytes | bytearray) -> list[int]:
    ends = []
    position = 0
    while position < len(data):
        position += read_header(data, position).size
        ends.append(position)
    return ends


def _index_files(world: World) -> dict[Path, bytes]:
    folder = world.file(0).parent
    return {
        path: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in (".index", ".timeindex")
    }


def _readable_offsets(log: Log) -> set[int]:
    found: set[int] = set()
    for offset in range(log.start_offset, log.end_offset):
        log.segments.positions.clear()
        try:
            found |= {record.offset for record in decode_records(log.read(offset, 1).data)}
        except KafkaStorageError:
            continue
    return found
