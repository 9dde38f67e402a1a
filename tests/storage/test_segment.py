from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from millstream.storage import names
from millstream.storage.os_disk import OsDisk
from millstream.storage.segment import Segment
from millstream.storage.time_index import TimeIndex
from tests.storage.logs import NOW_MS, batch


def make(tmp_path: Path, base_offset: int = 1000) -> Segment:
    return Segment(OsDisk(), str(tmp_path), base_offset, 0, NOW_MS)


def put(segment: Segment, last_offset: int, timestamp: int = NOW_MS, size: int = 100) -> None:
    data = batch(b"x" * size, timestamp=timestamp)
    segment.append(data, len(data), last_offset, timestamp, 300)


def test_files_appear_with_the_first_append(tmp_path: Path) -> None:
    segment = make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    put(segment, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000001000.log"]
    segment.spill()
    assert {path.suffix for path in tmp_path.iterdir()} == {".log", ".index", ".timeindex"}
    assert segment.size == (tmp_path / "00000000000000001000.log").stat().st_size


def test_about_one_batch_in_an_interval_is_indexed_by_its_last_offset(tmp_path: Path) -> None:
    segment = make(tmp_path)
    positions = []
    for number in range(20):
        positions.append(segment.size)
        put(segment, 1000 + number)
    entries = segment.index.entries()
    assert entries == [(offset, positions[offset]) for offset, _ in entries]
    gaps = [later[1] - earlier[1] for earlier, later in pairwise(entries)]
    assert all(300 < gap <= 300 + 2 * (positions[1] - positions[0]) for gap in gaps)
    assert segment.entry_count == len(entries)
    assert segment.lookup(1000) == (-1, 0)
    assert segment.lookup(1019) == (1000 + entries[-1][0], entries[-1][1])


def test_time_entries_only_grow_and_the_last_is_the_largest(tmp_path: Path) -> None:
    segment = make(tmp_path)
    random = Random(3)
    stamps = []
    for number in range(50):
        stamps.append(NOW_MS + random.randrange(1000))
        put(segment, 1000 + number, stamps[-1])
    segment.spill()
    entries = segment.time_index.entries()
    assert entries == sorted(set(entries))
    assert entries[-1] == (max(stamps), stamps.index(max(stamps)))
    for timestamp, offset in entries:
        assert timestamp == max(stamps[: offset + 1])
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (max(stamps), 1000 + entries[-1][1])
    assert segment.first_timestamp == stamps[0]


def test_what_a_segment_knows_is_found_again_in_its_files(tmp_path: Path) -> None:
    segment = make(tmp_path)
    for number in range(10):
        put(segment, 1000 + number, NOW_MS + number)
    segment.spill()
    again = Segment(OsDisk(), str(tmp_path), 1000, segment.size, NOW_MS)
    assert again.max_timestamp == NOW_MS + 9
    assert again.max_timestamp_offset == 1009
    assert again.first_timestamp == NOW_MS
    assert again.age_timestamp() == NOW_MS + 9
    put(again, 1010, NOW_MS + 3)
    assert again.max_timestamp == NOW_MS + 9
    assert again.entry_count == len(again.index)


def test_records_without_a_timestamp_age_by_their_file(tmp_path: Path) -> None:
    segment = make(tmp_path)
    assert segment.age_timestamp() == NOW_MS
    put(segment, 1000, -1)
    assert segment.max_timestamp == -1
    assert segment.age_timestamp() == OsDisk().mtime_ms(segment.path)


def test_a_retired_segment_is_not_opened_again(tmp_path: Path) -> None:
    segment = make(tmp_path)
    put(segment, 1000)
    segment.retire()
    Path(segment.path).write_bytes(b"another file")
    with pytest.raises(OSError, match="closed"):
        segment.open().pread(5, 0)
    unopened = Segment(OsDisk(), str(tmp_path), 1000, 12, NOW_MS)
    unopened.retire()
    with pytest.raises(FileNotFoundError):
        unopened.open()
    with pytest.raises(FileNotFoundError):
        unopened.lookup(1000)


def test_a_file_that_is_not_open_makes_who_cannot_wait_go_away(tmp_path: Path) -> None:
    segment = make(tmp_path)
    put(segment, 1000)
    segment.spill()
    again = Segment(OsDisk(), str(tmp_path), 1000, segment.size, NOW_MS)
    with pytest.raises(BlockingIOError):
        again.open(nowait=True)
    with pytest.raises(BlockingIOError):
        again.lookup(1000, nowait=True)
    again.open()
    assert again.lookup(1000) == (-1, 0)
    assert again.lookup(1000, nowait=True) == (-1, 0)
    assert len(again.open(nowait=True).pread(10, 0)) == 10


def test_a_cut_takes_the_indexes_along(tmp_path: Path) -> None:
    segment = make(tmp_path)
    sizes = []
    for number in range(20):
        sizes.append(segment.size)
        put(segment, 1000 + number, NOW_MS + number)
    segment.spill()
    segment.cut(sizes[10], 1010)
    assert segment.size == Path(segment.path).stat().st_size == sizes[10]
    assert all(offset < 10 and position < sizes[10] for offset, position in segment.index.entries())
    assert all(offset < 10 for _, offset in segment.time_index.entries())
    assert segment.entry_count == len(segment.index)


@pytest.mark.parametrize(
    ("name", "offset"),
    [("00000000000000000042.log", 42), ("0042.log", -1), ("leader-epoch-checkpoint", -1), ("", -1)],
)
def test_names_of_files(name: str, offset: int) -> None:
    assert names.offset_of(name) == offset


@pytest.mark.parametrize(
    ("folder", "partition"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b.c_d-12", ("a-b.c_d", 12)),
        ("orders-0.abc-delete", None),
        ("orders-0.abc-stray", None),
        ("orders-0.abc-future", None),
        ("orders", None),
        ("orders-", None),
        ("-1", None),
    ],
)
def test_names_of_folders(folder: str, partition: tuple[str, int] | None) -> None:
    assert names.parse_folder(folder) == partition


def test_a_batch_is_not_refused_for_want_of_an_index_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the file already: what comes next would be taken for it."""
    segment = make(tmp_path)
    for number in range(10):
        put(segment, 1000 + number, NOW_MS + number)
    segment.spill()

    def none_left(_: TimeIndex) -> None:
        raise OSError(errno.EMFILE, "no descriptors")

    with monkeypatch.context() as patch:
        patch.setattr(TimeIndex, "last", none_left)
        for number in range(10, 20):
            put(segment, 1000 + number, NOW_MS + number)
    put(segment, 1020, NOW_MS + 20)
    assert segment.size == (tmp_path / "00000000000000001000.log").stat().st_size
    segment.add_time_entry()
    assert segment.time_index.last() == (NOW_MS + 20, 20)
