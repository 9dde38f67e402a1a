from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from millstream.errors import KafkaStorageError, OutOfOrderSequenceNumber
from millstream.protocol.batch import (
    BatchHeader,
    Codec,
    ControlMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    read_header,
)
from millstream.storage.batch_walk import Uncleanable
from millstream.storage.cleanable import find_cleanable
from millstream.storage.cleaning import Cleaning
from millstream.storage.cleaning_job import Rewritten, Scanned
from millstream.storage.compaction import Compaction, Interrupted, compact
from millstream.storage.segment import MAX_RELATIVE_OFFSET
from tests.storage.ledger import COMPACTED, Ledger, Producer, as_table
from tests.storage.logs import PARTITION, TOPIC_ID, FaultyDisk, World

LARGE = replace(COMPACTED, segment_bytes=1 << 20)
RETENTION_MS = COMPACTED.delete_retention_ms


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(FaultyDisk(), str(tmp_path), LARGE)


def batches(ledger: Ledger) -> list[tuple[BatchHeader, bytes]]:
    """Every batch on disk."""
    found = []
    for segment in ledger.log.segments:
        position = 0
        while position < segment.size:
            header = read_header(segment.open().pread(61, position))
            found.append((header, bytes(segment.open().pread(header.size, position))))
            position += header.size
    return found


def headers(ledger: Ledger) -> list[BatchHeader]:
    return [header for header, _ in batches(ledger)]


def offsets(ledger: Ledger) -> list[int]:
    return [record.offset for record in ledger.read(is_committed=False)]


def dirty(ledger: Ledger) -> None:
    """Something new that is worth a compaction."""
    ledger.append((b"dirt", b"x"))


# Records


@pytest.mark.parametrize("codec", Codec)
def test_superseded_records_go_and_the_rest_is_as_it_was(ledger: Ledger, codec: Codec) -> None:
    ledger.append((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec)
    ledger.append((b"b", b"4"), codec=codec)
    untouched = [data for _, data in batches(ledger)][1]
    ledger.clean()
    (first, _), (_, second) = batches(ledger)
    assert offsets(ledger) == [0, 2, 3]
    assert all(record == ledger.written[record.offset] for record in ledger.read())
    assert (first.base_offset, first.last_offset, first.count, first.codec) == (0, 2, 2, codec)
    assert second == untouched


def test_unchanged_batches_are_copied_byte_for_byte(ledger: Ledger) -> None:
    for codec in Codec:
        ledger.append((b"k%d" % codec, b"v" * 50), (b"K%d" % codec, b"v"), codec=codec)
    before = [data for _, data in batches(ledger)]
    ledger.clean()
    assert [data for _, data in batches(ledger)] == before


def test_records_without_a_key_go(ledger: Ledger) -> None:
    ledger.append((None, b"1"), (b"a", b"2"))
    ledger.append((None, b"3"))
    ledger.append((b"b", b"4"))
    ledger.clean()
    assert offsets(ledger) == [1, 3]


def test_an_empty_key_is_a_key(ledger: Ledger) -> None:
    ledger.append((b"", b"1"), (b"a", b"2"))
    ledger.append((b"", b"3"))
    ledger.clean()
    assert offsets(ledger) == [1, 2]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_large_batches_are_compacted_too(ledger: Ledger, codec: Codec) -> None:
    random = Random(1)
    for _ in range(2):
        ledger.append(*((b"%d" % key, random.randbytes(300)) for key in range(2000)), codec=codec)
    ledger.append((b"7", b"last"))
    ledger.clean()
    assert ledger.log.size_bytes < 2000 * 400
    assert as_table(ledger.read()) == ledger.table()
    assert offsets(ledger) == [*range(2000, 2007), *range(2008, 4001)]


def test_a_large_batch_may_be_the_last_of_its_segment(ledger: Ledger) -> None:
    for number in range(3):
        ledger.append((b"small", b"x"))
        ledger.append((b"%d" % number, bytes(700_000)))
        ledger.log.roll()
    ledger.clean()
    for segment in list(ledger.log.segments)[:-1]:
        assert segment.size == ledger.disk.size(segment.path)
        assert len(segment.index) == ledger.disk.size(segment.path.replace(".log", ".index")) // 8
    dirty(ledger)
    ledger.clean()
    assert as_table(ledger.read()) == ledger.table()


def test_log_append_times_stay(ledger: Ledger) -> None:
    records = [Record(key=key, value=value, timestamp=5) for key, value in ((b"a", b"1"), (b"b", None))]
    for key in (b"a", b"z"):
        data = encode_batch([*records, Record(key=key, value=b"2")], log_append_time_ms=ledger.clock.ms)
        ledger.log.append(memoryview(data), read_header(data), 0)
        ledger.clock.ms += 10
    ledger.clean()
    found = ledger.read()
    assert [record.offset for record in found] == [3, 4, 5]
    assert {record.timestamp for record in found} == {ledger.clock.ms - 10}
    assert headers(ledger)[-1].has_delete_horizon


# Tombstones


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_tombstones_stay_for_delete_retention_ms_after_they_were_first_cleaned(
    ledger: Ledger, codec: Codec
) -> None:
    ledger.append((b"a", b"1"), (b"b", b"2"), codec=codec)
    ledger.append((b"a", None), (b"c", b"3"), codec=codec)
    ledger.clock.ms += 50 * RETENTION_MS
    ledger.clean()
    assert offsets(ledger) == [1, 2, 3]
    kept = headers(ledger)[1]
    assert kept.has_delete_horizon
    assert kept.base_timestamp == ledger.clock.ms + RETENTION_MS
    assert all(record == ledger.written[record.offset] for record in ledger.read())
    dirty(ledger)
    ledger.clock.ms += RETENTION_MS - 1
    ledger.clean()
    assert 2 in offsets(ledger)
    assert headers(ledger)[1].base_timestamp == ledger.clock.ms + 1  # the clock does not start again
    dirty(ledger)
    ledger.clock.ms += 1
    ledger.clean()
    assert 2 not in offsets(ledger)
    assert as_table(ledger.read()) == ledger.table()


def test_a_tombstone_outlives_nothing_that_it_deletes(ledger: Ledger) -> None:
    """A small map: the tombstone's round is a later one than that of the value."""
    for number in range(40):
        ledger.append((b"%d" % number, b"x"))
        ledger.log.roll()
    for number in range(40):
        ledger.append((b"%d" % number, None))
        ledger.log.roll()
    for _ in range(30):
        ledger.clean(map_bytes=1)
        assert as_table(ledger.read()) == ledger.table()
        ledger.clock.ms += RETENTION_MS
        dirty(ledger)
    assert {record.key for record in ledger.read()} == {b"dirt"}


# Transactions


def test_records_of_aborted_transactions_go_and_supersede_nothing(ledger: Ledger) -> None:
    producer = Producer(9)
    ledger.append((b"a", b"1"))
    ledger.begin(producer)
    ledger.append((b"a", b"2"), (b"b", b"3"), producer=producer)
    ledger.append((b"c", b"4"), producer=producer, codec=Codec.SNAPPY)
    ledger.end(producer, is_commit=False)
    ledger.append((b"d", b"5"))
    ledger.clean()
    assert offsets(ledger) == [0, 5]


def test_a_marker_goes_after_its_records_and_its_horizon(ledger: Ledger) -> None:
    producer = Producer(9)
    ledger.begin(producer)
    ledger.append((b"a", b"1"), producer=producer)
    marker = ledger.end(producer, is_commit=False)
    ledger.begin(producer)
    ledger.append((b"b", b"2"), producer=producer)  # it is not the producer's last batch then
    ledger.end(producer, is_commit=True)
    ledger.append((b"b", b"3"))

    def marker_headers() -> list[BatchHeader]:
        return [header for header in headers(ledger) if header.base_offset == marker]

    ledger.clean()
    assert offsets(ledger) == [4]
    assert [header.has_delete_horizon for header in marker_headers()] == [False]
    assert ledger.log.aborted_transactions(0, 5) == [(9, 0)]  # for readers that still hold the records
    dirty(ledger)
    ledger.clean()
    assert [header.has_delete_horizon for header in marker_headers()] == [True]
    assert ledger.log.aborted_transactions(0, 5) == []
    dirty(ledger)
    ledger.clock.ms += RETENTION_MS
    ledger.clean()
    assert marker_headers() == []
    assert as_table(ledger.read()) == ledger.table()


def test_a_commit_marker_stays_while_records_of_its_transaction_do(ledger: Ledger) -> None:
    producer = Producer(9)
    ledger.begin(producer)
    ledger.append((b"a", b"1"), producer=producer)
    marker = ledger.end(producer, is_commit=True)
    for _ in range(4):
        dirty(ledger)
        ledger.clock.ms += RETENTION_MS
        ledger.clean()
    assert marker in [header.base_offset for header in headers(ledger)]
    replay_producers(ledger)
    (state,) = ledger.log.producers
    assert state.transaction_start == -1
    assert {record.key for record in ledger.read()} == {b"a", b"dirt"}


def test_open_transactions_hold_compaction_back(ledger: Ledger) -> None:
    producer = Producer(9)
    ledger.append((b"a", b"1"))
    ledger.append((b"a", b"2"))
    ledger.log.roll()
    ledger.append((b"b", b"3"))
    ledger.begin(producer)
    ledger.append((b"b", b"4"), producer=producer)
    ledger.append((b"b", b"5"))
    ledger.clean()
    assert offsets(ledger) == [1, 2, 3, 4]
    assert ledger.log.cleaned_until == 2
    ledger.end(producer, is_commit=True)
    ledger.clean()
    assert offsets(ledger) == [1, 4]


# Producers


def replay_producers(ledger: Ledger) -> None:
    """Open the log again without its snapshots."""
    ledger.log.flush()
    ledger.log.close()
    for name in ledger.disk.listdir(ledger.folder):
        if name.endswith(".snapshot"):
            ledger.disk.remove(f"{ledger.folder}/{name}")
    ledger.open(is_clean=False, recovery_point=ledger.log.end_offset)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_last_batch_of_a_producer_stays_without_records(ledger: Ledger, codec: Codec) -> None:
    producer = Producer(9)
    ledger.append((b"a", b"1"), producer=producer, codec=codec)
    ledger.append((b"a", b"2"), (b"b", b"3"), producer=producer, codec=codec)
    ledger.append((b"a", b"4"), (b"b", b"5"))
    original = headers(ledger)[1]
    ledger.clean()
    assert offsets(ledger) == [3, 4]
    empty = headers(ledger)[0]
    assert (empty.count, empty.size, empty.codec, empty.base_timestamp) == (0, 61, 0, -1)
    same = ("base_offset", "last_offset", "base_sequence", "producer_id", "producer_epoch", "max_timestamp")
    assert [getattr(empty, name) for name in same] == [getattr(original, name) for name in same]
    for _ in range(2):
        replay_producers(ledger)
        again = Producer(9)
        again.sequence = 1
        assert ledger.append((b"a", b"2"), (b"b", b"3"), producer=again) == 1  # answered as at first
        again.sequence = 4
        with pytest.raises(OutOfOrderSequenceNumber):
            ledger.append((b"a", b"6"), producer=again)
        dirty(ledger)
        ledger.clean()
    ledger.append((b"a", b"6"), producer=producer)
    ledger.clean()
    assert [header for header in headers(ledger) if header.count == 0] == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("is_transaction", [False, True])
def test_the_first_batch_of_a_leader_epoch_stays_without_records_and_producer(
    ledger: Ledger, codec: Codec, is_transaction: bool
) -> None:
    """Who was forgotten may go on: what is left of its first batch is not taken for its last."""
    producer = Producer(9)
    ledger.leader_epoch = 3
    if is_transaction:
        ledger.begin(producer)
    for value in (b"1", b"2"):
        ledger.append((b"a", value), producer=producer, codec=codec)
    if is_transaction:
        ledger.end(producer, is_commit=True)
    ledger.append((b"a", b"3"))
    ledger.log.producers.expire(ledger.clock.now_ms(), 0)
    ledger.clock.ms += 1
    ledger.log.producers.expire(ledger.clock.now_ms(), 0)
    for _ in range(5):
        ledger.clean()
        dirty(ledger)
        ledger.clock.ms += RETENTION_MS
    first = headers(ledger)[0]
    assert (first.base_offset, first.count, first.leader_epoch) == (0, 0, 3)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (-1, -1, -1)
    assert not first.is_transactional
    assert not any(header.producer_id == 9 for header in headers(ledger))
    replay_producers(ledger)
    ledger.append((b"b", b"4"), producer=producer)


def test_the_marker_of_a_producer_that_has_nothing_else_stays(ledger: Ledger) -> None:
    producer = Producer(9)
    ledger.begin(producer)
    ledger.append((b"a", b"1"), producer=producer)
    ledger.end(producer, is_commit=False, bumps_epoch=True)
    for _ in range(5):
        dirty(ledger)
        ledger.clock.ms += RETENTION_MS
        ledger.clean()
    replay_producers(ledger)
    assert [(one.producer_id, one.epoch) for one in ledger.log.producers] == [(9, 1)]


def test_the_last_batch_of_a_round_stays_without_records(ledger: Ledger) -> None:
    producer = Producer(9)
    ledger.append((b"a", b"1"))
    ledger.begin(producer)
    ledger.append((b"b", b"2"), producer=producer)
    ledger.end(producer, is_commit=False)
    ledger.append((None, b"3"))
    ledger.clean()
    last = headers(ledger)[-1]
    assert (last.last_offset, last.count) == (3, 0)


# Segments


def test_small_segments_become_one(ledger: Ledger) -> None:
    ledger.config = ledger.log.config = replace(COMPACTED, segment_bytes=2000)
    for number in range(60):
        ledger.append((b"%d" % (number % 25), b"x" * 40))
        if number % 3 == 2:
            ledger.log.roll()
    ledger.clean()
    ledger.append((b"0", b"y"))
    ledger.clean()
    sizes = [segment.size for segment in ledger.log.segments]
    assert len(sizes) < 6
    assert all(size <= 2000 for size in sizes)
    assert as_table(ledger.read()) == ledger.table()
    bases = {segment.base_offset for segment in ledger.log.segments}
    assert set(ledger.log.snapshots.offsets) <= bases
    ledger.reopen()
    assert as_table(ledger.read()) == ledger.table()


def test_segments_are_not_joined_beyond_what_relative_offsets_can_say(ledger: Ledger) -> None:
    for base in (0, MAX_RELATIVE_OFFSET - 5, MAX_RELATIVE_OFFSET + 5, 3 * MAX_RELATIVE_OFFSET):
        data = encode_batch([Record(key=b"%d" % base, value=b"x", timestamp=1)], base_offset=base)
        ledger.log.append_as_follower(memoryview(data))
        ledger.log.roll()
    ledger.clean()
    bases = [segment.base_offset for segment in ledger.log.segments]
    assert bases == [0, MAX_RELATIVE_OFFSET - 4, 3 * MAX_RELATIVE_OFFSET, 3 * MAX_RELATIVE_OFFSET + 1]
    assert offsets(ledger) == [0, MAX_RELATIVE_OFFSET - 5, MAX_RELATIVE_OFFSET + 5, 3 * MAX_RELATIVE_OFFSET]


def test_a_segment_of_which_nothing_is_left_keeps_the_logs_start(ledger: Ledger) -> None:
    ledger.append((b"a", b"1"))
    ledger.config = ledger.log.config = replace(LARGE, segment_bytes=80)
    ledger.log.roll()
    ledger.append((b"a", b"2"))
    ledger.clean()
    assert [(one.base_offset, one.size > 0) for one in ledger.log.segments] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    ledger.reopen()
    assert ledger.log.start_offset == 0
    assert offsets(ledger) == [1]


def test_every_offset_and_time_is_found_after_compaction(ledger: Ledger) -> None:
    random = Random(3)
    ledger.config = ledger.log.config = replace(COMPACTED, segment_bytes=6000)
    for _ in range(400):
        ledger.clock.ms += random.randrange(-20, 60)
        keys = [b"%d" % random.randrange(150) for _ in range(random.randrange(1, 4))]
        ledger.append(*((key, b"x" * 30) for key in keys), codec=random.choice([0, 0, 3]))
    ledger.clean()
    found = ledger.read()
    assert len(found) < len(ledger.written) / 2
    for reopened in (False, True):
        if reopened:
            ledger.reopen()
        for offset in range(ledger.log.end_offset):
            expected = next((one.offset for one in found if one.offset >= offset), None)
            assert next(records_from(ledger, offset), None) == expected
        for record in found:
            first = next(one for one in found if one.timestamp >= record.timestamp)
            by_time = ledger.log.offset_for_timestamp(record.timestamp)
            assert by_time is not None
            assert (by_time.timestamp, by_time.offset) == (first.timestamp, first.offset)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_largest_timestamp_is_that_of_a_record_that_stays(ledger: Ledger, codec: Codec) -> None:
    """Not that of a batch that stays without records, for its producer's sake."""
    ledger.append((b"b", b"0"))
    ledger.log.roll()
    ledger.clock.ms += 1000
    ledger.append((b"a", b"1"), producer=Producer(9), codec=codec)
    ledger.clock.ms -= 1000
    ledger.append((b"a", b"2"), codec=codec)
    ledger.clean()
    assert [header.count for header in headers(ledger)] == [1, 0, 1]
    for reopened in (False, True):
        if reopened:
            ledger.reopen()
        found = ledger.log.max_timestamp_offset()
        assert found is not None
        assert (found.timestamp, found.offset) == (ledger.clock.ms, 0)


def records_from(ledger: Ledger, offset: int) -> Iterator[int]:
    while (part := ledger.log.read(offset, 300)).data:
        yield from [record.offset for record in decode_records(part.data, from_offset=offset)]
        offset = part.next_offset


# The map


def test_a_full_map_cleans_what_fits_and_the_next_rounds_the_rest(ledger: Ledger) -> None:
    for number in range(300):
        ledger.append((b"%d" % (number % 100), b"x"), (b"%d" % (number % 7), b"y"))
    rounds = 0
    ledger.log.roll()
    while ledger.log.cleaned_until < ledger.log.end_offset:
        assert ledger.clean(map_bytes=24 * 50, rolls=False) is not None
        assert as_table(ledger.read()) == ledger.table()
        rounds += 1
    assert rounds > 3
    assert len(offsets(ledger)) == 100


# What ends a compaction early


class Round:
    """A round of compaction, step by step."""

    def __init__(self, ledger: Ledger) -> None:
        stable = ledger.log.last_stable_offset(ledger.log.end_offset)
        cleanable = find_cleanable(ledger.log, stable, ledger.clock.now_ms())
        self.compaction = Compaction(cleanable, ledger.clock.now_ms())
        self.cleaning = Cleaning(ledger.disk, self.compaction.prepare(1 << 20, 0.9, bytes(16)))
        *_, scanned = self.cleaning.scan_keys()
        assert isinstance(scanned, Scanned)
        self.groups = scanned.groups

    def rewrite(self) -> None:
        """Write the first group, and begin to swap it in."""
        *_, rewritten = self.cleaning.rewrite(self.groups[0])
        assert isinstance(rewritten, Rewritten)
        self.compaction.begin_swap(self.groups[0], rewritten)

    def end(self) -> None:
        self.cleaning.close()
        self.compaction.abandon()
        self.compaction.discard()


def fill(ledger: Ledger, count: int = 60) -> None:
    for number in range(count):
        ledger.append((b"%d" % (number % 10), b"x" * 50), codec=number % 5)
        if number % 10 == 9:
            ledger.log.roll()


def test_records_that_were_cut_off_supersede_nothing(ledger: Ledger) -> None:
    fill(ledger)
    begun = Round(ledger)
    ledger.log.truncate_to(5)
    with pytest.raises(Interrupted):
        begun.compaction.check()
    with pytest.raises((Uncleanable, Interrupted)) as caught:
        begun.rewrite()
    if isinstance(caught.value, Uncleanable):  # the bytes were gone while they were read
        assert isinstance(begun.compaction.explain(caught.value), Interrupted)
    begun.end()
    assert offsets(ledger) == [0, 1, 2, 3, 4]
    assert ledger.is_swept()


@pytest.mark.parametrize("how", ["truncate", "restart", "close", "retention"])
def test_a_swap_that_was_begun_is_undone_when_the_log_loses_records(ledger: Ledger, how: str) -> None:
    fill(ledger)
    before = offsets(ledger)
    begun = Round(ledger)
    assert len(begun.groups) == 1
    begun.rewrite()
    begun.compaction.make_durable()
    assert not ledger.is_swept()
    match how:
        case "truncate":
            ledger.log.truncate_to(35)
            expected = before[:35]
        case "restart":
            ledger.log.restart_at(100)
            expected = []
        case "close":
            ledger.log.close()
            expected = before
        case _:
            ledger.log.delete_records(12)
            ledger.log.apply_retention(ledger.clock.now_ms())
            expected = before[12:]
    with pytest.raises(Interrupted):
        begun.compaction.finish_swap()
    begun.end()
    if how != "close":
        assert offsets(ledger) == expected
    assert ledger.is_swept()
    ledger.open(recovery_point=ledger.log.end_offset)
    assert [offset for offset in offsets(ledger) if how != "retention" or offset >= 12] == expected


@pytest.mark.parametrize("suffix", [".log.cleaned", ".index.cleaned"])
def test_a_full_disk_ends_a_compaction_and_nothing_else(ledger: Ledger, suffix: str) -> None:
    disk = ledger.disk
    assert isinstance(disk, FaultyDisk)
    fill(ledger, 200)
    before = offsets(ledger)
    disk.failing_suffix, disk.room_bytes = suffix, 0
    with pytest.raises(KafkaStorageError, match="full"):
        ledger.clean()
    assert ledger.log.failure is None
    assert offsets(ledger) == before
    assert ledger.is_swept()
    disk.room_bytes = 1 << 62
    ledger.clean()
    assert as_table(ledger.read()) == ledger.table()


def test_a_failed_fsync_fails_the_log_dir(tmp_path: Path) -> None:
    ledger = Ledger(FaultyDisk(), str(tmp_path), LARGE)
    disk = ledger.disk
    assert isinstance(disk, FaultyDisk)
    fill(ledger)
    ledger.log.flush()
    disk.fails_fsync = True
    with pytest.raises(OSError, match="Input/output") as caught:
        ledger.clean()
    assert caught.value.errno == errno.EIO
    assert ledger.log.failure is not None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_changed_byte_anywhere_ends_the_compaction_and_is_not_copied(tmp_path: Path, codec: Codec) -> None:
    ledger = Ledger(FaultyDisk(), str(tmp_path), LARGE)
    for number in range(6):
        ledger.append((b"%d" % (number % 2), b"x" * 20), codec=codec)
    ledger.log.roll()
    ledger.log.flush()
    path = Path(ledger.log.segments.first.path)
    good = path.read_bytes()
    size = len(good) // 6
    for position in range(2 * size, 3 * size):
        if 12 <= position - 2 * size < 16:
            continue  # the leader epoch, which the log's own list of them shows on reading
        data = bytearray(good)
        data[position] ^= 0x41
        path.write_bytes(data)
        ledger.open(recovery_point=ledger.log.end_offset, is_clean=True)
        with pytest.raises(Uncleanable):
            ledger.clean()
        assert path.read_bytes() == data
        assert ledger.log.cleaned_until == 0
        assert ledger.is_swept()
        ledger.log.close(is_clean=False)


def test_a_disk_that_gives_no_names_either_does_not_hide_what_is_damaged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is known to be damaged is left out, so that the others are compacted."""
    dirty(ledger)
    ledger.log.roll()
    path = ledger.log.segments.first.path
    with open(path, "r+b") as file:
        file.seek(65)
        file.write(b"\xff\xff\xff\xff")

    def fail(_: str) -> list[str]:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(ledger.disk, "listdir", fail)
    with pytest.raises(Uncleanable):
        ledger.clean()


def test_how_far_logs_are_clean_is_written_down(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, LARGE)
    for _ in range(3):
        data = encode_batch([Record(key=b"a", value=b"x")])
        log.append(memoryview(data), read_header(data), 0)
    log.roll()
    compact(find_cleanable(log, 3, 0), 0, 1 << 20)
    store.checkpoints.write_cleaned(log)
    assert (tmp_path / "a" / "cleaner-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    store.close()
    again = world.store()
    found = again.get(PARTITION)
    assert found is not None
    assert found.cleaned_until == 3
    found.truncate_to(2)
    assert found.cleaned_until == 2
    again.close()


def test_markers_of_unknown_kinds_stay(ledger: Ledger) -> None:
    record = Record(key=b"\0\0\0\7", value=b"\0\0\0\0\0\1", timestamp=1)
    data = encode_batch([record], producer_id=5, producer_epoch=0, is_transactional=True, is_control=True)
    ledger.log.append(memoryview(data), read_header(data), 0)
    data = encode_marker(ControlMarker(True, 1), producer_id=6, producer_epoch=0, timestamp_ms=1)
    ledger.log.append(memoryview(data), read_header(data), 0)
    for _ in range(3):
        dirty(ledger)
        ledger.clock.ms += RETENTION_MS
        ledger.clean()
    assert [header.producer_id for header in headers(ledger) if header.is_control] == [5, 6]
