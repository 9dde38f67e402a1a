from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from millstream.errors import KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange, RecordListTooLarge
from millstream.model import TopicPartition
from millstream.protocol.batch import decode_records, read_header
from tests.storage.logs import NOW_MS, SMALL, FaultyFile, World, append, batch, fill, offsets, records


def test_offsets_are_assigned_in_order_and_read_back(world: World) -> None:
    log = world.open()
    first = append(log, batch(b"a", b"b", b"c"))
    second = append(log, batch(b"d"))
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset) == (3, 3)
    assert [(r.offset, r.value) for r in records(log)] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert (log.start_offset, log.end_offset) == (0, 4)


def test_the_bytes_on_disk_are_the_producers_but_for_offset_and_epoch(world: World) -> None:
    log = world.open()
    append(log, batch(b"a"))
    sent = batch(b"b", b"c", codec=3)
    untouched = bytes(sent)
    append(log, sent, 7)
    found = log.read(1, 1 << 20)
    assert bytes(found.data[21:]) == untouched[21:]
    header = read_header(found.data)
    assert (header.base_offset, header.leader_epoch, header.size) == (1, 7, len(untouched))


def test_a_read_inside_a_batch_gives_the_whole_batch(world: World) -> None:
    log = world.open()
    append(log, batch(b"a", b"b", b"c"))
    append(log, batch(b"d", b"e"))
    found = log.read(1, 1)
    assert (found.first_offset, found.next_offset) == (0, 3)
    found = log.read(4, 1)
    assert (found.first_offset, found.next_offset) == (3, 5)


def test_reads_hold_to_max_bytes_but_for_the_first_batch(world: World) -> None:
    log = world.open()
    fill(log, 10)
    size = len(log.read(0, 1).data)
    assert log.read(0, size * 3 + size // 2).next_offset == 3
    assert log.read(0, size * 3).next_offset == 3
    assert log.read(0, 1).next_offset == 1
    assert not log.read(0, size - 1, min_one=False).data
    assert log.read(0, size, min_one=False).next_offset == 1
    assert log.read(0, 0, min_one=True).next_offset == 1


def test_only_batches_that_start_below_the_limit_are_read(world: World) -> None:
    log = world.open()
    for _ in range(5):
        append(log, batch(b"a", b"b"))
    assert log.read(0, 1 << 20, limit=6).next_offset == 6
    assert log.read(0, 1 << 20, limit=5).next_offset == 6
    assert not log.read(6, 1 << 20, limit=6).data
    assert log.read(2, 1 << 20, limit=1 << 40).next_offset == 10


def test_reads_outside_of_the_log_are_refused(world: World) -> None:
    log = world.open()
    fill(log, 3)
    assert not log.read(3, 100).data
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 100)
    log.delete_records(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 100)


def test_segments_roll_by_size_and_every_offset_is_found(world: World) -> None:
    log = world.open()
    fill(log, 300)
    assert len(log.segments) > 5
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    assert offsets(log) == list(range(300))
    for offset in range(300):
        log.segments.positions.clear()
        assert log.read(offset, 1).first_offset == offset


def test_a_batch_larger_than_a_segment_is_refused(world: World) -> None:
    log = world.open()
    with pytest.raises(RecordListTooLarge):
        append(log, batch(b"x" * 5000))
    fill(log, 1)
    assert offsets(log) == [0]


def test_segments_roll_by_age_of_their_first_batch(world: World) -> None:
    log = world.open(replace(SMALL, segment_ms=1000))
    append(log, batch(b"a", timestamp=NOW_MS))
    append(log, batch(b"b", timestamp=NOW_MS + 1000))
    assert len(log.segments) == 1
    append(log, batch(b"c", timestamp=NOW_MS + 1001))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    append(log, batch(b"d", timestamp=NOW_MS + 2001))
    assert len(log.segments) == 2


def test_a_segment_without_timestamps_ages_by_the_clock(world: World) -> None:
    log = world.open(replace(SMALL, segment_ms=1000))
    append(log, batch(b"first", timestamp=-1))
    world.clock.ms += 1000
    append(log, batch(b"second", timestamp=-1))
    assert len(log.segments) == 1
    world.clock.ms += 1
    append(log, batch(b"third", timestamp=-1))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    world.clock.ms += 1001
    append(log, batch(b"fourth", timestamp=NOW_MS))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]
    world.clock.ms += 5000
    append(log, batch(b"fifth", timestamp=-1))  # the first of this segment has a timestamp: it counts
    assert len(log.segments) == 3


def test_jitter_makes_segments_roll_earlier_never_later(world: World) -> None:
    log = world.open(replace(SMALL, segment_ms=1000, segment_jitter_ms=900))
    rolled_after = []
    for round_number in range(5):
        start = NOW_MS + round_number * 100_000
        count = len(log.segments)
        for step in range(0, 1002, 10):
            append(log, batch(b"a", timestamp=start + step))
            if len(log.segments) > count + 1:
                rolled_after.append(step)
                break
    assert len(rolled_after) >= 4
    assert all(100 <= step <= 1010 for step in rolled_after)
    assert len(set(rolled_after)) > 1


def test_the_age_of_a_segment_survives_a_restart(world: World) -> None:
    config = replace(SMALL, segment_ms=1000)
    log = world.open(config)
    append(log, batch(b"a", timestamp=NOW_MS))
    log.close()
    log = world.open(config, is_clean=True)
    append(log, batch(b"b", timestamp=NOW_MS + 1001))
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_full_index_makes_the_segment_roll(world: World) -> None:
    log = world.open(replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=12 * 6))
    fill(log, 100)
    assert len(log.segments) > 3
    assert all(len(segment.index) <= 5 for segment in log.segments)
    assert offsets(log) == list(range(100))


def test_relative_offsets_do_not_overflow(world: World) -> None:
    log = world.open(SMALL)
    data = batch(b"a")
    header = read_header(data)
    append(log, data)
    far = bytearray(data)
    far[0:8] = (0x80000001).to_bytes(8, "big")
    log.append_as_follower(memoryview(far))
    assert [segment.base_offset for segment in log.segments] == [0, 0x80000001]
    assert log.end_offset == 0x80000002
    assert log.read(5, 1 << 20).first_offset == 0x80000001
    assert header.size == len(data)


def test_a_follower_takes_many_batches_with_gaps_as_they_are(world: World) -> None:
    log = world.open()
    data = b""
    for base in (10, 12, 20):
        one = batch(b"v%d" % base)
        one[0:8] = base.to_bytes(8, "big")
        one[12:16] = (3).to_bytes(4, "big")
        data += bytes(one)
    log.append_as_follower(memoryview(data))
    assert offsets(log) == [10, 12, 20]
    assert log.epochs.entries == ((3, 10),)
    assert log.read(13, 1 << 20).first_offset == 20
    with pytest.raises(OffsetOutOfRange):
        log.append_as_follower(memoryview(data))


def test_a_follower_writes_runs_of_batches_as_its_leader_wrote_each(world: World) -> None:
    """Segments, indexes, epochs and producers are the same, however the batches come."""
    config = replace(SMALL, segment_bytes=2000, index_interval_bytes=200)
    leader = world.open(config)
    for number in range(60):
        value = b"v%d" % number * (1 + number % 9)
        data = batch(value) if number % 3 else batch(value, producer_id=number, epoch=0, sequence=0)
        append(leader, data, number // 20)
    stored = b"".join(bytes(leader.read(one.base_offset, 1 << 20).data) for one in leader.segments)
    sizes = [read_header(stored).size]
    while sum(sizes) < len(stored):
        sizes.append(read_header(stored, sum(sizes)).size)
    for runs in (1, 7, 60):
        follower = world.open(config, partition=TopicPartition("copy", runs))
        position = 0
        for at in range(0, 60, runs):
            size = sum(sizes[at : at + runs])
            follower.append_as_follower(memoryview(stored)[position : position + size])
            position += size
        assert [(one.base_offset, one.size) for one in follower.segments] == [
            (one.base_offset, one.size) for one in leader.segments
        ]
        for ours, theirs in zip(follower.segments, leader.segments, strict=True):
            assert ours.max_timestamp == theirs.max_timestamp
            for offset in range(ours.base_offset, ours.base_offset + 20):
                assert ours.lookup(offset) == theirs.lookup(offset)
        assert follower.epochs.entries == leader.epochs.entries
        assert (follower.start_offset, follower.end_offset) == (0, 60)
        assert [(one.producer_id, one.last_sequence, one.last_offset) for one in follower.producers] == [
            (one.producer_id, one.last_sequence, one.last_offset) for one in leader.producers
        ]
        assert offsets(follower) == list(range(60))
        follower.close()


def test_a_follower_that_has_no_room_goes_on_where_it_stopped(world: World) -> None:
    log = world.open()
    data = b""
    for base in range(10):
        one = batch(b"x" * 100)
        one[0:8] = base.to_bytes(8, "big")
        one[12:16] = (0).to_bytes(4, "big")
        data += bytes(one)
    world.disk.failing_suffix, world.disk.room_bytes = ".log", len(data) // 5
    with pytest.raises(KafkaStorageError):
        log.append_as_follower(memoryview(data))
    assert offsets(log) == [0]
    world.disk.room_bytes = 1 << 62
    log.append_as_follower(memoryview(data)[log.end_offset * (len(data) // 10) :])
    assert offsets(log) == list(range(10))


def test_a_follower_that_has_no_room_knows_no_epoch_of_what_it_has_not(world: World) -> None:
    """Else it asks for the next records as one that has records of a later epoch, and can take none."""
    log = world.open()
    batches = []
    for base in range(10):
        one = batch(b"x" * 100)
        one[0:8] = base.to_bytes(8, "big")
        one[12:16] = (base // 2).to_bytes(4, "big")
        batches.append(bytes(one))
    log.append_as_follower(memoryview(batches[0]))
    world.disk.failing_suffix, world.disk.room_bytes = ".log", 10
    with pytest.raises(KafkaStorageError):
        log.append_as_follower(memoryview(b"".join(batches[1:])))
    assert log.epochs.entries == ((0, 0),)
    world.disk.room_bytes = 1 << 62
    log.append_as_follower(memoryview(b"".join(batches[log.end_offset :])))
    assert offsets(log) == list(range(10))
    assert log.epochs.entries == tuple((epoch, 2 * epoch) for epoch in range(5))


def test_epochs_never_fall_along_a_follower(world: World) -> None:
    log = world.open()
    for base, epoch in ((0, 4), (1, 3)):
        one = batch(b"x")
        one[0:8] = base.to_bytes(8, "big")
        one[12:16] = epoch.to_bytes(4, "big")
        if base == 0:
            log.append_as_follower(memoryview(one))
        else:
            with pytest.raises(OffsetOutOfRange, match="epoch 3"):
                log.append_as_follower(memoryview(one))
    assert log.end_offset == 1


def test_compressed_batches_are_kept_as_they_came(world: World) -> None:
    log = world.open()
    for codec in range(5):
        append(log, batch(b"value" * 20, codec=codec))
    assert [read_header(log.read(offset, 1).data).codec for offset in range(5)] == [0, 1, 2, 3, 4]
    assert [record.value for record in records(log)] == [b"value" * 20] * 5


def test_a_full_disk_is_a_retriable_error_and_writing_resumes(world: World) -> None:
    log = world.open()
    fill(log, 5)
    world.disk.room_bytes, world.disk.failing_suffix = 50, ".log"
    for _ in range(3):
        with pytest.raises(KafkaStorageError) as caught:
            append(log, batch(b"no room"))
        assert caught.value.retriable
    assert log.failure is None
    assert not world.failures
    assert offsets(log) == list(range(5))
    assert world.file(0).stat().st_size == log.segments.active.size
    world.disk.room_bytes = 1 << 62
    fill(log, 5)
    assert offsets(log) == list(range(10))
    log.close(is_clean=False)
    assert offsets(world.open()) == list(range(10))


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_a_full_disk_while_rolling_is_retriable_too(world: World, suffix: str) -> None:
    log = world.open()
    world.disk.room_bytes, world.disk.failing_suffix = 0, suffix
    with pytest.raises(KafkaStorageError):
        fill(log, 100)
    before = log.end_offset
    assert log.failure is None
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
    world.disk.room_bytes = 1 << 62
    fill(log, 100)
    assert offsets(log) == list(range(before + 100))
    log.close(is_clean=False)
    assert offsets(world.open()) == list(range(before + 100))


def test_any_other_error_fails_the_log_dir(world: World) -> None:
    log = world.open()
    fill(log, 2)
    world.disk.room_bytes, world.disk.write_errno = 0, errno.EIO
    with pytest.raises(KafkaStorageError):
        append(log, batch(b"a"))
    assert [error.errno for error in world.failures] == [errno.EIO]
    world.disk.room_bytes = 1 << 62
    with pytest.raises(KafkaStorageError):
        append(log, batch(b"a"))
    assert offsets(log) == [0, 1]


def test_a_closed_log_takes_nothing_and_gives_nothing(world: World) -> None:
    log = world.open()
    fill(log, 2)
    log.close()
    with pytest.raises(KafkaStorageError):
        append(log, batch(b"a"))
    with pytest.raises(NotLeaderOrFollower):  # deleted, or moved away: no disk has failed
        log.read(0, 100)
    with pytest.raises(NotLeaderOrFollower):
        log.offset_for_timestamp(NOW_MS)
    with pytest.raises(NotLeaderOrFollower):
        log.max_timestamp_offset()
    assert log.damage is None
    assert world.disk.open_count == 0


def test_a_full_disk_at_the_end_leaves_a_log_to_recover(world: World) -> None:
    log = world.open()
    fill(log, 50)
    world.disk.room_bytes = 0
    with pytest.raises(KafkaStorageError, match="full"):
        log.close()
    assert not world.failures
    assert world.disk.open_count == 0
    world.disk.room_bytes = 1 << 62
    assert offsets(world.open()) == list(range(50))


def test_log_append_time_is_answered(world: World) -> None:
    log = world.open()
    data = batch(b"a", timestamp=NOW_MS + 5)
    assert append(log, data).log_append_time_ms == -1
    data[22] |= 8
    assert append(log, data).log_append_time_ms == NOW_MS + 5


def test_deleted_records_are_gone_and_their_segments_go_with_retention(world: World) -> None:
    log = world.open()
    fill(log, 200)
    bases = [segment.base_offset for segment in log.segments]
    log.delete_records(bases[3] + 1)
    assert log.start_offset == bases[3] + 1
    assert offsets(log) == list(range(bases[3] + 1, 200))
    log.apply_retention(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == bases[3:]
    assert log.delete_records(5) == bases[3] + 1
    with pytest.raises(OffsetOutOfRange):
        log.delete_records(201)
    log.delete_records(200)
    assert offsets(log) == []


def test_a_read_that_begins_at_the_end_of_a_segment_goes_on_in_the_next(world: World) -> None:
    log = world.open()
    fill(log, 20)
    end = log.read(0, 1 << 20)
    assert end.next_offset == 20
    log.roll()
    fill(log, 5)
    assert [r.offset for r in decode_records(log.read(20, 1 << 20).data)] == [20, 21, 22, 23, 24]


def test_rolling_an_empty_segment_changes_nothing(world: World) -> None:
    log = world.open()
    segment = log.segments.active
    assert log.roll() is segment
    fill(log, 1)
    assert log.roll() is not segment
    assert log.roll() is log.segments.active
    assert len(log.segments) == 2


def test_a_changed_configuration_holds_from_the_next_append_on(world: World) -> None:
    log = world.open()
    fill(log, 10)
    assert len(log.segments) == 1
    log.config = replace(SMALL, segment_bytes=1000)
    fill(log, 10)
    assert len(log.segments) > 1


def test_a_segment_whose_start_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever appends is told of the disk, by an error of Kafka's."""
    log = world.open()
    fill(log, 1)
    log.close()
    log = world.open(is_clean=True, recovery_point=1)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(FaultyFile, "pread", fail)
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
